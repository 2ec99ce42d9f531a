"""Batch priority with real models on their threads: the same speech parked, live turns first."""

from __future__ import annotations

import time
from pathlib import Path
from queue import SimpleQueue

import numpy as np
import pytest

from shoal.engine.api import EndText, Open, Pcm, Priority, PushText, Sampling, StreamId, Voice
from shoal.engine.config import BUILTIN_VOICE
from tests.live import ENOUGH_S, Live, Take, live

TINY = Path(__file__).parents[1] / "data" / "s2_tiny"


def backfill(engine: Live, number: int, text: str, sampling: Sampling) -> StreamId:
    stream = StreamId(1000 + number)
    engine.takes[stream] = Take()
    engine.engine.submit(Open(stream, Voice(), sampling, priority=Priority.BATCH))
    engine.engine.submit(PushText(stream, text))
    engine.engine.submit(EndText(stream))
    return stream


@pytest.mark.parametrize(("model", "frame_samples"), [(TINY, 2048), (BUILTIN_VOICE, 1200)])
def test_a_parked_stream_sounds_as_if_it_never_was(model: Path, frame_samples: int) -> None:
    text = "The old mill stood by the river. Nobody had lived there for years, they said."
    sampling = Sampling(seed=11, max_frames_per_segment=60)
    with live(model, slots=1) as engine:
        alone = backfill(engine, 1, text, sampling)
        engine.wait(alone)
        engine.quiet()
        assert engine.engine.stats().parked == 0
        drawn = engine.runner.codes.setdefault(sampling.seed, [])
        drawn.clear()
        after, live_turns = [4, 18, 30], list[StreamId]()

        def interrupt() -> None:
            """Each time that it got so far: what it had before it was parked is drawn again."""
            if after and len(drawn) >= after[0]:
                brief = Sampling(seed=after.pop(0), max_frames_per_segment=6)
                live_turns.append(engine.speak("Yes.", brief))
                drawn.clear()

        engine.runner.launching = interrupt
        parked = backfill(engine, 2, text, sampling)
        engine.wait(parked)
        engine.wait(*live_turns)
        engine.quiet()
        assert (len(live_turns), engine.engine.stats().parked) == (3, 3)
    heard, expected = engine.takes[parked], engine.takes[alone]
    mine, other = (np.frombuffer(take.pcm, "<i2").astype(int) for take in (heard, expected))
    assert len(mine) == len(other) > 33 * frame_samples
    # Chunks of other lengths round a sample differently; one other code would be heard.
    assert np.abs(mine - other).max() <= 2
    assert [s.text for s in heard.segments] == [s.text for s in expected.segments]
    assert [s.at_samples for s in heard.segments] == [s.at_samples for s in expected.segments]
    assert [e.seq for e in heard.events if isinstance(e, Pcm)] == list(
        range(sum(isinstance(e, Pcm) for e in heard.events))
    )


def test_a_live_turn_waits_for_no_more_than_the_steps_that_had_begun() -> None:
    with live(TINY, slots=4) as engine:
        text = "A long sentence that nobody waits for, which goes on and on. " * 40
        for number in range(4):
            sampling = Sampling(seed=number, max_frames_per_segment=200)
            backfill(engine, number, text, sampling)
        plans, asked = engine.runner.plans, SimpleQueue[tuple[int, StreamId]]()

        def until_three_speak() -> None:
            until = time.monotonic() + ENOUGH_S
            while (stats := engine.engine.stats()).batch_slots != 3:
                assert time.monotonic() < until, stats
                time.sleep(0.001)

        for seed in range(100, 108):
            until_three_speak()
            brief = Sampling(seed=seed, max_frames_per_segment=8)

            def speak(brief: Sampling = brief) -> None:
                engine.runner.launching = lambda: None
                asked.put((len(plans), engine.speak("Yes.", brief)))

            engine.runner.launching = speak
            before, stream = asked.get(timeout=ENOUGH_S)
            engine.wait(stream)
            mine = [any(join.sampling.seed == seed for join in plan.joins) for plan in plans]
            joined = mine.index(True)
            # One ran and one was launched.
            assert joined - before <= 2
            # The first chunk takes two frames: nobody else is in their steps.
            assert [len(plan.slots) for plan in plans[joined : joined + 2]] == [1, 1]
        until_three_speak()
        assert engine.engine.stats().parked == 0, "the reserve was enough"

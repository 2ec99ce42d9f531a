"""Batch priority with real models on their threads: the same speech parked, live turns first."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from shoal.engine.api import EndText, Open, Pcm, Priority, PushText, Sampling, StreamId, Voice
from shoal.engine.config import BUILTIN_VOICE
from tests.live import Live, Take, live

TINY = Path(__file__).parents[1] / "data" / "s2_tiny"


def backfill(engine: Live, number: int, text: str, sampling: Sampling) -> StreamId:
    stream = StreamId(1000 + number)
    engine.takes[stream] = Take()
    engine.engine.submit(Open(stream, Voice(), sampling, priority=Priority.BATCH))
    engine.engine.submit(PushText(stream, text))
    engine.engine.submit(EndText(stream))
    return stream


def until_frames(engine: Live, stream: StreamId, samples: int) -> None:
    until = time.monotonic() + 30.0
    while len(engine.takes[stream].pcm) < 2 * samples:
        assert time.monotonic() < until and engine.takes[stream].end is None
        time.sleep(0.001)
        engine.drain()


@pytest.mark.parametrize(("model", "frame_samples"), [(TINY, 2048), (BUILTIN_VOICE, 1200)])
def test_a_parked_stream_sounds_as_if_it_never_was(model: Path, frame_samples: int) -> None:
    text = "The old mill stood by the river. Nobody had lived there for years, they said."
    sampling = Sampling(seed=11, max_frames_per_segment=60)
    with live(model, slots=1) as engine:
        alone = backfill(engine, 1, text, sampling)
        engine.wait(alone)
        engine.quiet()
        assert engine.engine.stats().parked == 0
        parked = backfill(engine, 2, text, sampling)
        for frames in (4, 18, 30):
            until_frames(engine, parked, frames * frame_samples)
            engine.wait(engine.speak("Yes.", Sampling(seed=frames, max_frames_per_segment=6)))
        engine.wait(parked)
        assert engine.engine.stats().parked >= 2
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
        while engine.engine.stats().batch_slots < 3:
            time.sleep(0.001)
        for seed in range(100, 108):
            plans = engine.runner.plans
            before = len(plans)
            stream = engine.speak("Yes.", Sampling(seed=seed, max_frames_per_segment=8))
            until_frames(engine, stream, 1)
            mine = [any(join.sampling.seed == seed for join in plan.joins) for plan in plans]
            joined = mine.index(True)
            # One ran and one was launched; one more where the text came in between two messages.
            assert joined - before <= 3
            # The first chunk takes two frames: nobody else is in their steps.
            assert [len(plan.slots) for plan in plans[joined : joined + 2]] == [1, 1]
            engine.wait(stream)
        stats = engine.engine.stats()
        assert stats.batch_slots == 3 and stats.parked == 0, "the reserve was enough"

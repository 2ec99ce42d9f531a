"""Batch priority with real models on their threads: the same speech parked, live turns as quick."""

from __future__ import annotations

import time
from pathlib import Path
from statistics import median

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


def ttfa_s(engine: Live, count: int) -> list[float]:
    found: list[float] = []
    for number in range(count):
        asked = time.monotonic()
        stream = engine.speak("Yes.", Sampling(seed=number, max_frames_per_segment=8))
        until_frames(engine, stream, 1)
        found.append(time.monotonic() - asked)
        engine.wait(stream)
    return found


def test_live_turns_begin_as_soon_beside_a_full_house_of_backfill() -> None:
    with live(TINY, slots=4) as engine:
        ttfa_s(engine, 3)
        alone = ttfa_s(engine, 8)
        text = "A long sentence that nobody waits for, which goes on and on. " * 40
        sampling = [Sampling(seed=n, max_frames_per_segment=200) for n in range(4)]
        streams = [backfill(engine, n, text, sampling[n]) for n in range(4)]
        while engine.engine.stats().batch_slots < 3:
            time.sleep(0.001)
        beside = ttfa_s(engine, 8)
        assert engine.engine.stats().batch_slots == 3, "it went on all the time"
        engine.drain()
        assert all(engine.takes[stream].end is None for stream in streams)
    # The two steps that had begun, on cores that the codec of the others works on as well.
    assert median(beside) <= 2.5 * median(alone) + 0.03, (alone, beside)

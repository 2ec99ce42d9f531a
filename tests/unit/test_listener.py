"""One stream's outgoing side: marks, silences, stretches that are parked, and the end."""

from __future__ import annotations

import numpy as np

from shoal.engine.api import (
    Failed,
    Fault,
    Finished,
    Flushed,
    Pcm,
    SegmentStarted,
    StreamId,
    Timing,
)
from shoal.engine.jobs import (
    CodecBegin,
    CodecFinish,
    CodecMark,
    CodecSilence,
    FirstTimes,
    Sounded,
)
from shoal.engine.listener import Listener, Stretch
from tests.codec_desk import FRAME, codes_of
from tests.fakes import spec

A = StreamId(1)


def listening() -> tuple[Listener, list[Sounded]]:
    sounded: list[Sounded] = []
    return Listener(A, spec(), sounded.append), sounded


def add(listener: Listener, count: int) -> None:
    for frame in codes_of(count):
        listener.frame(frame)


def decode(
    listener: Listener, stretch: Stretch, count: int, at_s: float = 100.0
) -> list[tuple[int, bytes, Timing | None]]:
    """Frame i of the stretch sounds as i + 1: its numbered chunks."""
    first = stretch.decoded
    assert len(stretch.take(count)) == count
    samples = np.repeat(np.arange(first + 1, first + 1 + count, dtype=np.int16), FRAME)
    events = listener.sound(stretch, samples, at_s, at_s + 0.5)
    return [(e.seq, e.samples[:: 2 * FRAME], e.timing) for e in events if isinstance(e, Pcm)]


def test_marks_silences_and_empty_segments_keep_their_place() -> None:
    listener, _ = listening()
    listener.add(CodecMark(A, 1))
    stretch = listener.begin(CodecBegin(A, 0, "one"))
    add(listener, 3)
    for item in (CodecMark(A, 2), CodecSilence(A, "...", 2)):
        listener.add(item)
    listener.begin(CodecBegin(A, 0, "none"))
    for item in (CodecSilence(A, None, 2), CodecMark(A, 3), CodecFinish(A)):
        listener.add(item)
    assert listener.ready(100.0) == [Flushed(A, 1, 0)]
    assert listener.head is stretch and stretch.complete
    samples = np.ones(3 * FRAME, np.int16)
    stretch.take(3)
    heard = listener.sound(stretch, samples, 100.0, 100.0)
    assert heard == [SegmentStarted(A, 0, "one", 0), Pcm(A, 0, samples.tobytes(), None)]
    assert not listener.finished
    quiet = bytes(2 * 2 * FRAME)
    assert listener.ready(100.0) == [
        Flushed(A, 2, 3 * FRAME),
        SegmentStarted(A, 1, "...", 3 * FRAME),
        Pcm(A, 1, quiet, None),
        SegmentStarted(A, 2, "none", 5 * FRAME),
        Pcm(A, 2, quiet, None),
        Flushed(A, 3, 7 * FRAME),
        Finished(A, 7, 7 * FRAME, 3),
    ]
    assert listener.finished
    assert listener.ready(100.0) == []


def test_a_piece_of_a_segment_begins_no_segment() -> None:
    listener, _ = listening()
    for text in ("one", None):
        stretch = listener.begin(CodecBegin(A, 0, text))
        add(listener, 2)
        listener.end()
        decode(listener, stretch, 2)
        assert listener.ready(100.0) == []
    listener.add(CodecFinish(A))
    assert listener.ready(100.0) == [Finished(A, 4, 4 * FRAME, 1)]


def test_what_was_delivered_before_a_stretch_was_parked_is_not_heard_again() -> None:
    listener, _ = listening()
    times = FirstTimes(text_s=90.0, asked_s=91.0, slot_s=93.0, joined_s=97.0)
    stretch = listener.begin(CodecBegin(A, 0, "one", times))
    add(listener, 5)
    timing = Timing(wait_s=2.0, prefill_s=5.0, first_frames_s=3.0, codec_s=0.5)
    assert decode(listener, stretch, 3) == [(0, b"\1\2\3", timing)]
    listener.park()
    assert listener.head is None and stretch.over

    again = listener.begin(CodecBegin(A, 4, None, again=True))
    assert (again.slot, again.text, again.times) == (4, None, None)
    add(listener, 6)
    assert decode(listener, again, 2) == []
    assert decode(listener, again, 2) == [(1, b"\4", None)]
    # Parked once more before all that it had said was made again: it skips as much as before.
    listener.park()
    third = listener.begin(CodecBegin(A, 1, None, again=True))
    add(listener, 6)
    assert decode(listener, third, 6) == [(2, b"\5\6", None)]


def test_a_stretch_that_was_parked_before_it_sounded_begins_its_segment_later() -> None:
    listener, _ = listening()
    listener.begin(CodecBegin(A, 0, "one"))
    add(listener, 1)
    listener.park()
    again = listener.begin(CodecBegin(A, 2, None, again=True))
    add(listener, 1)
    again.take(1)
    heard = listener.sound(again, np.zeros(FRAME, np.int16), 100.0, 100.0)
    assert heard[0] == SegmentStarted(A, 0, "one", 0)


def test_it_tells_when_playing_begins_and_begins_again() -> None:
    listener, sounded = listening()
    stretch = listener.begin(CodecBegin(A, 0, "one"))
    add(listener, 5)
    decode(listener, stretch, 2, at_s=100.0)
    decode(listener, stretch, 2, at_s=100.05)
    decode(listener, stretch, 1, at_s=105.0)
    assert sounded == [Sounded(A, 100.5, 0), Sounded(A, 105.5, 4)]


def test_frames_make_it_due_at_once_and_are_dropped_with_it() -> None:
    listener, _ = listening()
    listener.due_s = 200.0
    add(listener, 1)
    assert listener.due_s == 200.0 and listener.head is None, "no stretch: they lead to nothing"
    stretch = listener.begin(CodecBegin(A, 0, "one"))
    add(listener, 1)
    assert listener.due_s == 0.0 and listener.head is stretch
    listener.drop()
    assert stretch.over and listener.head is None


def test_a_failure_is_the_last_that_is_heard() -> None:
    listener, _ = listening()
    failure = Failed(A, Fault.CLIENT, "too much text")
    stretch = listener.begin(CodecBegin(A, 0, "one"))
    assert not listener.ends
    listener.add(CodecFinish(A, failure))
    assert listener.ends and stretch.complete
    assert listener.ready(100.0) == [SegmentStarted(A, 0, "one", 0), failure]

"""The codec's thread, message by message: order, pacing, grouping, drops and failures."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.engine.api import (
    Failed,
    Fault,
    Finished,
    Flushed,
    Pcm,
    SegmentStarted,
    StreamId,
)
from shoal.engine.jobs import (
    CodecBegin,
    CodecDrop,
    CodecEnd,
    CodecFinish,
    CodecFrames,
    CodecMark,
    CodecSilence,
    FirstTimes,
    Sounded,
)
from shoal.engine.runner import Int16Array, VocodeBatch
from tests.codec_desk import FRAME, Desk, codes_of, feed
from tests.fakes import ScriptedRunner, heard, spec

A, B, C = StreamId(1), StreamId(2), StreamId(3)


def test_a_segment_begins_with_its_text_and_sounds_as_decoded_in_one_go() -> None:
    desk, codes = Desk(), codes_of(23)
    desk.take(CodecBegin(A, 0, "hello"))
    feed(desk, A, codes)
    desk.take(CodecEnd(A), CodecFinish(A))
    desk.work()
    assert desk.events[0] == SegmentStarted(A, 0, "hello", 0)
    assert desk.pcm(A).tolist() == heard(codes).tolist()
    assert desk.events[-1] == Finished(A, 23, 23 * FRAME, 1)
    assert [e.seq for e in desk.events if isinstance(e, Pcm)] == list(range(len(desk.chunks(A))))


@given(st.lists(st.integers(1, 9), min_size=1, max_size=8), st.integers(0, 5))
def test_any_chunking_gives_the_same_sound(parts: list[int], gap: int) -> None:
    desk, codes = Desk(), codes_of(sum(parts))
    desk.take(CodecBegin(A, 0, "x"))
    at = 0
    for part in parts:
        feed(desk, A, codes[at : at + part], work=False)
        desk.work()
        desk.clock.tick(0.1 * gap)
        at += part
    desk.take(CodecEnd(A))
    desk.work()
    assert desk.pcm(A).tolist() == heard(codes).tolist()


def test_every_segment_is_decoded_from_silence() -> None:
    desk, first, second = Desk(), codes_of(7, 1), codes_of(5, 2)
    desk.take(CodecBegin(A, 0, "one"))
    feed(desk, A, first)
    desk.take(CodecEnd(A), CodecBegin(A, 0, "two"))
    feed(desk, A, second)
    desk.take(CodecEnd(A), CodecFinish(A))
    desk.work()
    assert desk.pcm(A).tolist() == [*heard(first).tolist(), *heard(second).tolist()]
    starts = [e for e in desk.events if isinstance(e, SegmentStarted)]
    assert starts == [SegmentStarted(A, 0, "one", 0), SegmentStarted(A, 1, "two", 7 * FRAME)]


def test_the_first_chunk_is_80_ms_and_its_timing_adds_up() -> None:
    desk, codes = Desk(), codes_of(4)
    times = FirstTimes(text_s=90.0, asked_s=91.0, slot_s=93.0, joined_s=97.0)
    desk.take(CodecBegin(A, 0, "x", times))
    desk.frames(codes[:1], A)
    desk.work()
    assert not desk.events
    desk.frames(codes[1:2], A)
    desk.work()
    assert desk.chunks(A) == [2]
    (pcm,) = (e for e in desk.events if isinstance(e, Pcm))
    assert pcm.timing is not None
    timing = pcm.timing
    assert (timing.wait_s, timing.prefill_s, timing.first_frames_s) == (2.0, 5.0, 3.0)
    assert timing.codec_s == 0.0
    feed(desk, A, codes[2:])
    assert [e.timing is None for e in desk.events if isinstance(e, Pcm)].count(False) == 1


def test_chunks_grow_up_to_four_tenths_of_a_second() -> None:
    desk, codes = Desk(), codes_of(80)
    desk.take(CodecBegin(A, 0, "x"))
    for frame in codes:
        desk.frames(frame[None], A)
        desk.work()
        desk.clock.tick(0.01)
    sizes = desk.chunks(A)
    assert sizes[0] == 2 and max(sizes) == 8 and sizes[-1] == 8
    assert sizes[1:] == sorted(sizes[1:])


def test_frames_that_wait_leave_in_time_though_nothing_more_comes() -> None:
    desk, codes = Desk(), codes_of(40)
    desk.take(CodecBegin(A, 0, "x"))
    feed(desk, A, codes)
    assert sum(desk.chunks(A)) == 37
    wait_s = desk.vocoder._patience_s  # pyright: ignore[reportPrivateUsage]
    assert wait_s is not None and wait_s > 0.0
    desk.clock.tick(wait_s)
    desk.work()
    assert sum(desk.chunks(A)) == 39, "two of the three, which is a size of the device's"
    assert desk.vocoder._listeners[A].playout.lead_s(desk.clock()) >= 0.2  # pyright: ignore[reportPrivateUsage]


def test_the_scheduler_hears_when_playing_begins_and_begins_again() -> None:
    desk, codes = Desk(), codes_of(10)
    desk.take(CodecBegin(A, 0, "x"))
    feed(desk, A, codes[:4])
    assert desk.sounded == [Sounded(A, 100.0, 0)]
    sent = sum(desk.chunks(A))
    desk.clock.tick(5.0)
    feed(desk, A, codes[4:])
    assert desk.sounded[1:] == [Sounded(A, 105.0, sent)]


def test_rows_that_need_as_many_frames_are_decoded_together() -> None:
    desk = Desk()
    for slot, stream in enumerate((A, B, C)):
        desk.take(CodecBegin(stream, slot, "x"))
    codes = codes_of(3)
    desk.frames(codes, A, B, C)
    desk.frames(codes, A, B, C)
    desk.work()
    assert [batch.codes.shape for batch in desk.runner.log.vocoded] == [(3, 2, 3)]
    assert desk.batches == [6], "one delivery for all"


def test_the_listener_who_is_worst_off_comes_first() -> None:
    desk, codes = Desk(), codes_of(60)
    desk.take(CodecBegin(A, 0, "x"), CodecBegin(B, 1, "x"))
    feed(desk, A, codes[:30])
    desk.take(CodecFrames((A,), codes[:1]))
    for frame in codes[:16]:
        desk.frames(frame[None], A)
    desk.frames(codes[:1], B)
    desk.frames(codes[:1], B)
    had = len(desk.runner.log.vocoded)
    desk.work()
    assert [batch.slots for batch in desk.runner.log.vocoded[had:]] == [(1,), (0,)]


def test_only_sizes_that_the_device_is_fast_at_are_asked_for_and_one_end_is_one_chunk() -> None:
    desk, codes = Desk(), codes_of(29)
    desk.take(CodecBegin(A, 0, "x"))
    feed(desk, A, codes[:16], work=False)
    desk.work()
    feed(desk, A, codes[16:], work=False)
    desk.take(CodecEnd(A))
    desk.work()
    assert desk.chunks(A) == [16, 13]
    assert [batch.codes.shape[1] for batch in desk.runner.log.vocoded] == [16, 8, 4, 1]
    assert desk.pcm(A).tolist() == heard(codes).tolist()


def test_a_slots_next_stream_waits_for_the_last_frames_of_the_one_before() -> None:
    desk, first, second = Desk(), codes_of(20, 1), codes_of(6, 2)
    desk.take(CodecBegin(A, 0, "a"))
    feed(desk, A, first, work=False)
    desk.take(CodecEnd(A), CodecFinish(A), CodecBegin(B, 0, "b"))
    feed(desk, B, second, work=False)
    desk.take(CodecEnd(B))
    desk.work()
    assert desk.pcm(A).tolist() == heard(first).tolist()
    assert desk.pcm(B).tolist() == heard(second).tolist()


def test_marks_silences_and_empty_segments_keep_their_place() -> None:
    desk, codes = Desk(), codes_of(3)
    desk.take(CodecMark(A, 1), CodecBegin(A, 0, "one"))
    feed(desk, A, codes, work=False)
    desk.take(CodecEnd(A), CodecMark(A, 2), CodecSilence(A, "...", 2))
    desk.take(CodecBegin(A, 0, "none"), CodecEnd(A), CodecSilence(A, None, 2), CodecMark(A, 3))
    desk.take(CodecFinish(A))
    desk.work()
    rest = [e for e in desk.events if not isinstance(e, Pcm)]
    assert rest == [
        Flushed(A, 1, 0),
        SegmentStarted(A, 0, "one", 0),
        Flushed(A, 2, 3 * FRAME),
        SegmentStarted(A, 1, "...", 3 * FRAME),
        SegmentStarted(A, 2, "none", 5 * FRAME),
        Flushed(A, 3, 7 * FRAME),
        Finished(A, 7, 7 * FRAME, 3),
    ]
    assert desk.pcm(A)[3:].tolist() == [0] * 4


def test_a_dropped_stream_is_silent_at_once_and_its_slot_is_free() -> None:
    desk, codes = Desk(), codes_of(6)
    desk.take(CodecBegin(A, 0, "x"))
    feed(desk, A, codes[:2])
    had = len(desk.events)
    feed(desk, A, codes[2:], work=False)
    desk.take(CodecDrop(A), CodecBegin(B, 0, "y"))
    feed(desk, B, codes, work=False)
    desk.take(CodecEnd(B))
    desk.work()
    assert {event.stream for event in desk.events[had:]} == {B}
    assert desk.pcm(B).tolist() == heard(codes).tolist()
    desk.frames(codes[:1], A)  # a row that was under way
    desk.work()
    assert {event.stream for event in desk.events[had:]} == {B}


class DropsMeanwhile(ScriptedRunner):
    """A cancel arrives while the codec works."""

    desk: Desk

    def vocode(self, batch: VocodeBatch) -> Int16Array:
        self.desk.inbox.put(CodecDrop(A))
        return super().vocode(batch)


def test_a_stream_dropped_while_it_is_decoded_hears_nothing_of_it() -> None:
    runner = DropsMeanwhile(spec())
    desk = runner.desk = Desk(runner)
    desk.take(CodecBegin(A, 0, "x"), CodecBegin(B, 1, "y"))
    for _ in range(2):
        desk.frames(codes_of(2), A, B)
    desk.work()
    assert {event.stream for event in desk.events} == {B}


def test_a_failure_of_the_codec_ends_the_streams_of_that_call_and_no_other() -> None:
    desk, codes = Desk(), codes_of(8)
    desk.take(CodecBegin(A, 0, "x"), CodecBegin(B, 1, "y"))
    feed(desk, B, codes[:4])
    desk.runner.fail_vocode = True
    feed(desk, A, codes[:2])
    desk.runner.fail_vocode = False
    assert desk.cancelled == [A]
    assert [e for e in desk.events if e.stream == A] == [
        Failed(A, Fault.ENGINE, "the codec failed")
    ]
    # What the decode thread sent before it knew leads to nothing.
    desk.take(CodecFrames((A,), codes[:1]), CodecEnd(A), CodecMark(A, 1))
    desk.work()
    desk.take(CodecDrop(A))
    feed(desk, B, codes[4:])
    desk.take(CodecEnd(B), CodecFinish(B))
    desk.work()
    assert [e for e in desk.events if e.stream == A][1:] == []
    assert desk.pcm(B).tolist() == heard(codes).tolist()
    assert not desk.vocoder._failed  # pyright: ignore[reportPrivateUsage]


def test_a_codec_that_fails_on_the_last_frames_of_a_stream_leaves_nothing_behind() -> None:
    desk, codes = Desk(), codes_of(3)
    desk.take(CodecBegin(A, 0, "x"))
    desk.runner.fail_vocode = True
    feed(desk, A, codes, work=False)
    desk.take(CodecEnd(A), CodecFinish(A))
    desk.work()
    assert desk.events == [Failed(A, Fault.ENGINE, "the codec failed")]
    assert not desk.vocoder._failed  # pyright: ignore[reportPrivateUsage]


def test_a_stream_that_fails_while_it_speaks_still_ends() -> None:
    desk, codes = Desk(), codes_of(3)
    failure = Failed(A, Fault.CLIENT, "too much text")
    desk.take(CodecBegin(A, 0, "x"))
    feed(desk, A, codes)
    desk.take(CodecFinish(A, failure), CodecBegin(B, 0, "y"))
    feed(desk, B, codes, work=False)
    desk.take(CodecEnd(B))
    desk.work()
    assert [e for e in desk.events if e.stream == A][-1] == failure
    assert desk.pcm(B).tolist() == heard(codes).tolist()
    assert A not in desk.vocoder._listeners  # pyright: ignore[reportPrivateUsage]


def test_the_loop_runs_until_it_is_told_to_stop() -> None:
    desk, codes = Desk(), codes_of(3)
    desk.inbox.put(CodecBegin(A, 0, "x"))
    desk.inbox.put(CodecFrames((A,), codes[:1]))
    desk.inbox.put(CodecEnd(A))
    desk.inbox.put(CodecFinish(A))
    desk.inbox.put(None)
    desk.vocoder.run()
    # It was told to stop before it came to work: no call is begun any more.
    assert desk.events == []


@pytest.mark.parametrize("sizes", [(1,), (1, 2, 4), (4, 8)])
def test_any_set_of_sizes_serves(sizes: tuple[int, ...]) -> None:
    runner = ScriptedRunner(replace(spec(), pcm_batch_frames=sizes))
    desk, codes = Desk(runner), codes_of(21)
    desk.take(CodecBegin(A, 0, "x"))
    feed(desk, A, codes)
    desk.take(CodecEnd(A))
    desk.work()
    assert desk.pcm(A).tolist() == heard(codes).tolist()

"""Whose sound the codec's thread decodes first, and how much at a time when many are ahead."""

from __future__ import annotations

from shoal.engine.api import Pcm, StreamId
from shoal.engine.jobs import CodecBegin, CodecEnd, CodecFinish
from shoal.engine.vocode import MOST_AT_ONCE_FRAMES
from tests.codec_desk import Desk, codes_of, feed
from tests.fakes import ScriptedRunner, spec

A, B, C = StreamId(1), StreamId(2), StreamId(3)


def test_many_who_are_ahead_are_decoded_in_calls_that_end_soon() -> None:
    count = 40
    desk, codes = Desk(ScriptedRunner(spec(slots=count + 1))), codes_of(count)
    streams = tuple(StreamId(10 + number) for number in range(count))
    for slot, stream in enumerate(streams):
        desk.take(CodecBegin(stream, slot, "x"))
    for _ in range(2):
        desk.frames(codes, *streams)
    desk.work()
    for _ in range(16):
        desk.frames(codes, *streams)
    had = len(desk.runner.log.vocoded)
    assert desk.vocoder.work()
    desk.take(CodecBegin(A, count, "first"))
    desk.frames(codes[:1], A)
    desk.frames(codes[:1], A)
    desk.work()
    batches = desk.runner.log.vocoded[had:]
    assert all(len(b.slots) * b.codes.shape[1] <= MOST_AT_ONCE_FRAMES for b in batches)
    assert sum(len(b.slots) * b.codes.shape[1] for b in batches) == 16 * count + 2
    assert batches[1].slots == (count,), "the first sound goes next"


def test_who_has_a_slot_next_lends_its_hurry_to_who_has_it_now() -> None:
    desk, codes = Desk(), codes_of(30)
    desk.take(CodecBegin(A, 0, "ahead"), CodecBegin(B, 1, "not as far ahead"))
    for frame in codes[:20]:
        desk.frames(frame[None], A)
        desk.work()
    for frame in codes[:12]:
        desk.frames(frame[None], B)
        desk.work()
    # Both end; C has A's slot next and has heard nothing yet.
    feed(desk, A, codes[20:25], work=False)
    feed(desk, B, codes[12:20], work=False)
    desk.take(CodecEnd(A), CodecFinish(A), CodecEnd(B), CodecBegin(C, 0, "first"))
    feed(desk, C, codes[:2], work=False)
    had = len(desk.events)
    desk.work()
    order = [e.stream for e in desk.events[had:] if isinstance(e, Pcm)]
    assert order == [A, C, B]

"""Voices under way: who keeps one, what is dropped with its last listener, and what is refused."""

from __future__ import annotations

import gc
import weakref

from shoal.engine.api import (
    Cancel,
    Event,
    Failed,
    Fault,
    Open,
    Opened,
    Prepare,
    Priority,
    Reference,
    StreamId,
    Voice,
)
from shoal.engine.config import Limits
from shoal.engine.jobs import VoiceDrop, VoiceFailed, VoiceJob, VoiceReady
from shoal.engine.scheduler import VOICE_LATE, VOICES_BUSY
from tests.rig import Heard, Rig, columns_of

SIZE = 1000


def recorded(number: int, size: int = SIZE) -> Voice:
    return Voice(references=(Reference(bytes([number]) * size, f"no {number}"),))


def rig_of(limits: Limits | None = None) -> Rig:
    """Its voice thread does nothing by itself."""
    rig = Rig(limits=limits or Limits())
    rig.hold_voices = True
    return rig


def begin(rig: Rig, stream: int, voice: Voice, priority: Priority = Priority.LIVE) -> None:
    rig.heard[StreamId(stream)] = Heard()
    rig.send(Open(StreamId(stream), voice, priority=priority))


def answer(rig: Rig, message: VoiceReady | VoiceFailed) -> None:
    rig.scheduler.message(message, rig.clock())
    rig.turn()


def made(rig: Rig, job: int, text: str = "made") -> None:
    answer(rig, VoiceReady(job, columns_of(text)))


def refused(rig: Rig) -> list[Event | None]:
    """How the streams ended that did, in the order of their opening."""
    return [end for heard in rig.heard.values() for end in heard.ends]


def busy(stream: int, why: str = VOICES_BUSY) -> Failed:
    return Failed(StreamId(stream), Fault.BUSY, why)


def asked(rig: Rig) -> list[int]:
    return [message.job for message in rig.voices if isinstance(message, VoiceJob)]


def dropped(rig: Rig) -> list[int]:
    return [message.job for message in rig.voices if isinstance(message, VoiceDrop)]


def test_a_voice_that_only_cancelled_streams_waited_for_is_dropped() -> None:
    rig = rig_of()
    for number in range(50):
        begin(rig, number, recorded(number))
        rig.send(Cancel(StreamId(number)))
    assert len(asked(rig)) == 50 and dropped(rig) == asked(rig)


def test_a_voice_that_somebody_still_waits_for_is_kept() -> None:
    rig = rig_of()
    for number in range(3):
        begin(rig, number, recorded(0))
    rig.send(Cancel(StreamId(0)))
    rig.send(Cancel(StreamId(2)))
    (job,) = asked(rig)
    assert not dropped(rig)
    made(rig, job)
    rig.turns(3)
    assert [event.stream for event in rig.events if isinstance(event, Opened)] == [1]


def test_a_voice_that_was_to_be_prepared_anyway_is_kept() -> None:
    rig = rig_of()
    begin(rig, 0, recorded(0))
    rig.send(Prepare(recorded(0)))
    rig.send(Cancel(StreamId(0)))
    assert len(asked(rig)) == 1 and not dropped(rig)


def test_who_comes_after_the_last_one_left_asks_anew() -> None:
    rig = rig_of()
    begin(rig, 0, recorded(0))
    rig.send(Cancel(StreamId(0)))
    begin(rig, 1, recorded(0))
    first, second = asked(rig)
    assert dropped(rig) == [first]
    rig.turns(2)
    prefilled = len(rig.runner.log.prefilled)
    made(rig, first)
    rig.turns(2)
    assert len(rig.runner.log.prefilled) == prefilled, "nobody wants what was dropped"
    made(rig, second)
    rig.turns(2)
    assert len(rig.runner.log.prefilled) == prefilled + 1


def test_recordings_over_the_limit_are_refused_and_other_voices_are_not() -> None:
    rig = rig_of(Limits(voice_bytes=2 * SIZE))
    for number in range(3):
        begin(rig, number, recorded(number))
    begin(rig, 3, recorded(1))
    begin(rig, 4, Voice("stored"))
    begin(rig, 5, Voice())
    assert len(asked(rig)) == 3
    rig.turns(3)
    assert refused(rig) == [busy(2)]
    assert [event.stream for event in rig.events if isinstance(event, Opened)] == [5]
    assert rig.scheduler.stats(rig.clock(), 0.0).voices_refused == 1
    made(rig, asked(rig)[0])
    begin(rig, 6, recorded(2))
    assert len(asked(rig)) == 4 and refused(rig) == [busy(2)]


def test_dropped_recordings_count_until_the_voice_thread_has_let_them_go() -> None:
    rig = rig_of(Limits(voice_bytes=2 * SIZE))
    for number in range(4):
        begin(rig, number, recorded(number))
        rig.send(Cancel(StreamId(number)))
    assert len(asked(rig)) == 2
    answer(rig, VoiceFailed(asked(rig)[0], Fault.CLIENT, "nobody waits"))
    begin(rig, 4, recorded(4))
    assert len(asked(rig)) == 3


def test_a_voice_larger_than_the_limit_is_prepared_when_there_is_no_other() -> None:
    rig = rig_of(Limits(voice_bytes=SIZE))
    begin(rig, 0, recorded(0, 3 * SIZE))
    begin(rig, 1, recorded(1, 1))
    assert len(asked(rig)) == 1 and refused(rig) == [busy(1)]


def test_batch_work_leaves_half_of_the_room_to_those_who_listen() -> None:
    rig = rig_of(Limits(voice_bytes=4 * SIZE))
    for number in range(3):
        begin(rig, number, recorded(number), Priority.BATCH)
    assert refused(rig) == [busy(2)]
    begin(rig, 3, recorded(3))
    begin(rig, 4, recorded(0))
    begin(rig, 5, recorded(3), Priority.BATCH)
    live = [message.live for message in rig.voices if isinstance(message, VoiceJob)]
    assert live == [False, False, True, True], "who listens joins no work that comes last"
    assert refused(rig) == [busy(2)]


def test_who_waits_too_long_for_a_voice_is_told() -> None:
    rig = rig_of(Limits(voice_wait_s=5.0))
    begin(rig, 0, recorded(0))
    begin(rig, 1, recorded(0), Priority.BATCH)
    rig.turns(3)
    began_s = rig.clock()
    begin(rig, 2, recorded(2))
    rig.scheduler.advance(began_s)
    wake = rig.scheduler.next_wake_s(began_s)
    assert wake is not None and began_s + 4.9 < wake < began_s + 5.0
    rig.clock.now = wake
    rig.scheduler.advance(wake)
    rig.turn()
    assert refused(rig) == [busy(0, VOICE_LATE)] and not dropped(rig), "the other one stays"
    rig.clock.tick(5.0)
    rig.turn()
    assert refused(rig) == [busy(0, VOICE_LATE), busy(2, VOICE_LATE)]
    assert dropped(rig) == asked(rig)[1:]
    made(rig, asked(rig)[0])
    rig.turns(3)
    assert [event.stream for event in rig.events if isinstance(event, Opened)] == [1]


def test_a_stream_does_not_keep_its_recordings() -> None:
    rig = rig_of()
    heavy = Recording(bytes(SIZE), "words")
    gone = weakref.ref(heavy)
    begin(rig, 0, Voice(references=(heavy,)))
    made(rig, asked(rig)[0])
    rig.voices.clear()
    del heavy
    gc.collect()
    assert gone() is None and rig.scheduler.stats(0.0, 0.0).streams_open == 1


class Recording(Reference):
    """One that can be watched."""

    __slots__ = ("__weakref__",)

"""The scheduler: who gets a slot and pages, who runs when, and how streams end."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from shoal.engine.api import (
    Cancel,
    EndText,
    Fault,
    Flush,
    Pause,
    PushText,
    Resume,
    StreamId,
)
from shoal.engine.config import Limits
from shoal.engine.text import LIMIT_CHARS
from tests.fakes import ScriptedRunner, spec
from tests.rig import FREE, ROOMY, WIDE, Rig, alone, columns_of, failure

LONG = "a fairly long sentence without a number"


# Slots, admission, memory -------------------------------------------------------------------------


def test_a_stream_between_sentences_gives_its_slot_back_and_keeps_its_context() -> None:
    rig = Rig(spec(slots=1))
    first = rig.open()
    rig.say(first, "say 5", end=False)
    rig.send(Flush(first, 1))
    rig.until(lambda: "mark 1" in rig.heard[first].order)
    rig.turns(2)
    assert rig.scheduler.stats(rig.clock(), 0.0).slots_busy == 0
    other = rig.speak("say 5")
    rig.until(lambda: rig.heard[other].done)
    rig.say(first, "say 4")
    rig.finish()
    assert rig.runner.log.prefilled[-1].position > len("system") + 1
    assert [len(rig.heard[stream].codes) for stream in (first, other)] == [9, 5]


def test_a_new_stream_is_refused_after_its_wait_and_the_speakers_hear_nothing_of_it() -> None:
    rig = Rig(spec(slots=2, max_positions=4096, pages=400), limits=replace(FREE, wait_s=1.0))
    speakers = [rig.speak("say 600") for _ in range(2)]
    rig.turns(20)
    began = rig.clock()
    late = rig.speak("hello 5")
    rig.until(lambda: rig.heard[late].done)
    assert failure(rig, late).fault is Fault.BUSY
    assert 1.0 <= rig.clock() - began <= 1.05
    assert not any(rig.heard[speaker].done for speaker in speakers)
    assert all(rig.heard[speaker].playout.lead_s(rig.clock()) > 1.0 for speaker in speakers)


def test_more_waiters_than_allowed_are_refused_at_once_newest_first() -> None:
    rig = Rig(spec(slots=1), limits=replace(WIDE, waiting=2))
    rig.speak("endless " + "x" * 100)
    rig.turns(10)
    began = rig.clock()
    late = [rig.speak("hello 5") for _ in range(4)]
    rig.turns(4)
    assert [rig.heard[stream].done for stream in late] == [False, False, True, True]
    assert failure(rig, late[3]).fault is Fault.BUSY
    assert rig.clock() - began < 0.05


def test_more_open_streams_than_allowed_are_refused_at_once() -> None:
    rig = Rig(limits=replace(WIDE, streams=2))
    streams = [rig.open() for _ in range(3)]
    assert failure(rig, streams[2]).fault is Fault.BUSY
    rig.send(Cancel(streams[0]))
    rig.say(rig.open(), "say 2")
    rig.send(Cancel(streams[1]))
    rig.finish()


def test_waiters_are_served_in_the_order_they_came() -> None:
    rig = Rig(spec(slots=1))
    streams = [rig.speak("say 8") for _ in range(4)]
    rig.finish()
    assert [rig.heard[stream].ends for stream in streams] == [[None]] * 4
    seeds = [plan for plan in rig.plans if plan.joins]
    assert len(seeds) == 4


def test_without_pages_the_newest_waits_and_nobody_is_corrupted() -> None:
    # Each utterance may take 5 pages of 8: two at a time at most.
    limits = replace(WIDE, frames_base=20, frames_per_byte=0.0, wait_s=60.0)
    rig = Rig(spec(slots=4, pages=12), limits=limits)
    streams = [rig.speak("say 18", seed=number) for number in range(4)]
    seated: list[int] = []
    while not all(rig.heard[stream].done for stream in streams):
        rig.turn()
        seated.append(rig.scheduler.stats(rig.clock(), 0.0).slots_busy)
    assert max(seated) < 4
    for number, stream in enumerate(streams):
        expected = alone("say 18", seed=number, limits=limits)
        assert rig.heard[stream].codes == expected.codes


def test_an_idle_voice_is_evicted_under_pressure_and_prefilled_again_on_demand() -> None:
    # Streams whose voice was evicted speak all the same, and sound as they did.
    rig = Rig(spec(slots=2, pages=16), limits=replace(WIDE, frames_base=30, frames_per_byte=0.0))
    idle = [rig.open(f"voice number {number}") for number in range(6)]
    rig.turns(20)
    assert all(list(rig.events_of(stream)) for stream in idle)
    assert rig.scheduler.stats(rig.clock(), 0.0).hot.entries < 7
    for number, stream in enumerate(idle):
        rig.say(stream, "say 10")
        rig.until(lambda stream=stream: rig.heard[stream].done)
        expected = alone("say 10", f"voice number {number}")
        assert rig.heard[stream].codes == expected.codes


def test_an_evicted_context_restarts_from_the_voice() -> None:
    rig = Rig(spec(slots=2, pages=14), limits=replace(WIDE, frames_base=30, frames_per_byte=0.0))
    first = rig.open()
    rig.say(first, "say 20", end=False)
    rig.send(Flush(first, 1))
    rig.until(lambda: "mark 1" in rig.heard[first].order)
    others = [rig.speak("say 25") for _ in range(2)]
    rig.until(lambda: all(rig.heard[other].done for other in others))
    rig.say(first, "say 5")
    rig.finish()
    assert len(rig.heard[first].codes) == 25
    retold = [chunk for chunk in rig.runner.log.prefilled if len(chunk.columns) > 20]
    assert retold and retold[-1].position == len("system")


# Playout ------------------------------------------------------------------------------------------


def test_an_idle_device_runs_ahead_up_to_its_limit_and_then_with_the_listener() -> None:
    rig = Rig(ROOMY, limits=replace(FREE, furthest_lead_s=5.0))
    stream = rig.speak("say 400")
    highest = 0.0
    while not rig.heard[stream].done:
        rig.turn()
        if not rig.heard[stream].open_stretch:
            continue
        highest = max(highest, rig.heard[stream].playout.lead_s(rig.clock()))
        wake = rig.scheduler.next_wake_s(rig.clock())
        if not rig.runner.in_flight and wake is not None:
            rig.clock.now = max(rig.clock(), wake)
    assert 4.9 < highest < 5.3
    assert len(rig.heard[stream].codes) == 400


def test_who_is_far_ahead_waits_for_a_new_stream_and_resumes_exactly() -> None:
    rig = Rig(ROOMY, limits=FREE)
    ahead = rig.speak("say 150", seed=3)
    rig.until(lambda: rig.heard[ahead].playout.lead_s(rig.clock()) > 3.0)
    steps = len(rig.runner.log.steps)
    new = rig.speak("say 30", seed=4)
    rig.until(lambda: len(rig.heard[new].codes) >= 8)
    (slot,) = {join.slot for join in rig.runner.log.joins[1:]}
    started = next(i for i, slots in enumerate(rig.runner.log.steps) if slot in slots)
    assert all(slots == (slot,) for slots in rig.runner.log.steps[started : started + 8])
    assert started - steps < 6
    rig.finish()
    assert rig.heard[ahead].codes == alone("say 150", seed=3, sizes=ROOMY, limits=FREE).codes


@pytest.mark.parametrize("after", [1, 4, 9])
def test_a_paused_stream_stops_within_a_step_and_resumes_exactly(after: int) -> None:
    rig = Rig(spec(max_positions=1024, pages=300))
    paused, other = rig.speak("say 40", seed=1), rig.speak("say 60", seed=2)
    rig.until(lambda: len(rig.heard[paused].codes) >= after)
    rig.send(Pause(paused))
    had = len(rig.heard[paused].codes)
    rig.until(lambda: rig.heard[other].done)
    assert len(rig.heard[paused].codes) - had <= 2
    assert rig.heard[other].codes == alone("say 60", seed=2).codes
    rig.turns(50)
    assert not rig.heard[paused].done
    rig.send(Resume(paused))
    rig.finish()
    assert rig.heard[paused].codes == alone("say 40", seed=1).codes


def test_silence_is_paced_like_speech_and_stops_at_a_pause() -> None:
    rig = Rig(limits=replace(WIDE, park_lead_s=2.0))
    stream = rig.open()
    for _ in range(200):
        rig.say(stream, "a blank", end=False)
        rig.send(Flush(stream))
    rig.send(EndText(stream))
    rig.turns(60)
    assert rig.heard[stream].playout.lead_s(rig.clock()) < 2.2
    rig.send(Pause(stream))
    had = rig.heard[stream].frames
    rig.turns(100)
    assert rig.heard[stream].frames == had
    rig.send(Resume(stream))
    rig.finish(20_000)
    assert rig.heard[stream].frames == 200 * 2


def test_a_stall_begins_a_listeners_account_anew() -> None:
    rig = Rig(ROOMY, limits=replace(FREE, furthest_lead_s=2.0))
    stream = rig.speak("say 300")
    rig.until(lambda: len(rig.heard[stream].codes) > 20)
    rig.clock.tick(20.0)
    highest = 0.0
    while not rig.heard[stream].done and len(rig.heard[stream].codes) < 290:
        rig.turn()
        highest = max(highest, rig.heard[stream].playout.lead_s(rig.clock()))
    assert 1.8 < highest < 2.1, "not twenty seconds more because of twenty that were lost"


# Ends ---------------------------------------------------------------------------------------------


def test_a_cancelled_streams_slot_serves_another_within_two_steps() -> None:
    rig = Rig(spec(slots=1))
    first = rig.speak("say 40")
    rig.until(lambda: len(rig.heard[first].codes) >= 5)
    second = rig.speak("say 4")
    rig.turns(5)
    steps = len(rig.plans)
    had = len(rig.heard[first].codes)
    rig.send(Cancel(first))
    rig.until(lambda: len(rig.runner.log.joins) == 2)
    assert len(rig.plans) - steps <= 2
    assert len(rig.heard[first].codes) == had
    rig.finish()
    assert rig.heard[second].codes == alone("say 4").codes


def test_a_stream_cancelled_while_its_text_is_prefilled_frees_its_slot_at_once() -> None:
    rig = Rig(spec(slots=1), work_per_turn=0)
    first = rig.open()
    rig.work(10)
    rig.turns(1)
    rig.say(first, LONG)
    rig.turns(1)
    rig.work(1)  # composed, not prefilled
    rig.turns(2)
    assert rig.scheduler.stats(rig.clock(), 0.0).slots_busy == 1
    rig.send(Cancel(first))
    assert rig.scheduler.stats(rig.clock(), 0.0).slots_busy == 0
    assert rig.idle_pages() > 1, "its pages are still being written"
    rig.work(10)
    assert rig.idle_pages() == 1


def test_failures_end_the_streams_they_concern_and_no_other() -> None:
    rig = Rig(spec(pages=100))
    speaking = rig.speak("say 60")
    rig.until(lambda: len(rig.heard[speaking].codes) > 3)
    rig.runner.fail_prefill = True
    text, voice = rig.speak("say 5"), rig.speak("say 5", "ann")
    rig.until(lambda: rig.heard[text].done and rig.heard[voice].done)
    rig.runner.fail_prefill = False
    rig.fail_compose = True
    composed = rig.speak("say 5")
    rig.until(lambda: rig.heard[composed].done)
    rig.fail_compose = False
    again = rig.speak("say 5", "ann")
    rig.finish()
    for stream in (text, voice, composed):
        assert failure(rig, stream).fault is Fault.ENGINE
    assert len(rig.heard[speaking].codes) == 60 and len(rig.heard[again].codes) == 5


def test_more_text_than_may_wait_fails_the_stream() -> None:
    rig = Rig()
    stream = rig.speak("endless", None)
    other = rig.open()
    rig.send(PushText(other, "x" * (LIMIT_CHARS + 1)))
    assert failure(rig, other).fault is Fault.CLIENT
    rig.send(Cancel(stream))
    rig.finish()


def test_ids_that_are_not_known_are_ignored() -> None:
    rig = Rig()
    nobody = StreamId(7)
    for command in (
        PushText(nobody, "x"),
        Flush(nobody),
        EndText(nobody),
        Pause(nobody),
        Resume(nobody),
        Cancel(nobody),
    ):
        rig.send(command)
    rig.turns(2)
    assert rig.events == []


def test_the_loop_may_sleep_when_nothing_is_to_be_done() -> None:
    rig = Rig()
    rig.open()
    rig.turns(5)
    assert rig.scheduler.next_wake_s(rig.clock()) is None
    waiting = rig.open()
    rig.turns(2)
    rig.send(PushText(waiting, "no end of a sentence yet"))
    rig.turns(1)
    wake = rig.scheduler.next_wake_s(rig.clock())
    assert wake is not None and wake > rig.clock()


def test_text_that_stops_arriving_is_spoken_by_the_timer_alone() -> None:
    rig = Rig()
    stream = rig.open()
    rig.turns(3)
    rig.send(PushText(stream, "half a sentence"))
    rig.turns(1)
    while not rig.heard[stream].codes:
        wake = rig.scheduler.next_wake_s(rig.clock())
        if wake is not None and not rig.runner.in_flight:
            rig.clock.now = max(rig.clock(), wake)
        rig.turn()
    assert rig.heard[stream].order[0].startswith("half a")


def test_a_pool_that_cannot_hold_a_whole_context_still_speaks() -> None:
    rig = Rig(spec(slots=2, pages=10, max_positions=1000))
    stream = rig.speak("endless")
    rig.finish()
    room = (10 - 1 - 1) * 8 - len("system") - len("endless") - 1
    assert len(rig.heard[stream].codes) == min(room, WIDE.frames_base + 4 * len("endless"))


def test_the_runner_that_the_rules_are_tested_with_notices_breaches() -> None:
    runner = ScriptedRunner(spec())
    with pytest.raises(AssertionError):
        runner.pages.digest((0,), 1)
    assert Limits().wait_s == 1.0
    assert np.array_equal(columns_of("a"), [[20 + ord("a"), 0, 0, 0]])

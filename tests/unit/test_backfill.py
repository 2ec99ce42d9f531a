"""Batch priority in the engine: it parks for live streams at any frame, and loses nothing by it."""

from __future__ import annotations

from dataclasses import replace
from queue import SimpleQueue

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.engine.api import Cancel, Event, Fault, Finished, Pcm, Priority, SegmentStarted, StreamId
from shoal.engine.backfill import reserved, spare
from shoal.engine.config import Limits
from shoal.engine.jobs import (
    CodecBegin,
    CodecEnd,
    CodecFinish,
    CodecFrames,
    CodecMessage,
    CodecPark,
)
from shoal.engine.vocode import Vocoder
from tests.fakes import ManualClock, ScriptedRunner, spec
from tests.rig import FREE, WIDE, Heard, Rig, failure

ALONE = replace(WIDE, batch_reserve=0.0)


def backfill(rig: Rig, text: str, seed: int = 0) -> StreamId:
    stream = rig.open(seed=seed, priority=Priority.BATCH)
    rig.say(stream, text)
    return stream


def undisturbed(text: str, seed: int = 0, **kwargs: object) -> Heard:
    rig = Rig(**kwargs)  # pyright: ignore[reportArgumentType]
    stream = backfill(rig, text, seed)
    rig.finish()
    return rig.heard[stream]


def test_a_live_stream_takes_the_slot_and_the_parked_one_goes_on_with_the_same_frames() -> None:
    expected = undisturbed("say 60", 5, sizes=spec(slots=1), limits=ALONE)
    rig = Rig(spec(slots=1), ALONE)
    parked = backfill(rig, "say 60", 5)
    rig.until(lambda: len(rig.heard[parked].codes) == 20)
    live = rig.speak("say 8")
    asked = rig.clock()
    rig.until(lambda: rig.heard[live].first_s is not None)
    assert rig.heard[live].first_s is not None
    assert rig.heard[live].first_s - asked <= 6 * rig.step_s
    rig.until(lambda: rig.heard[live].done)
    assert 20 <= len(rig.heard[parked].codes) <= 22
    assert rig.scheduler.stats(rig.clock(), 0.0).parked == 1
    rig.finish()
    assert rig.heard[parked].codes == expected.codes and len(expected.codes) == 60
    assert rig.heard[parked].order == expected.order
    assert rig.heard[parked].ends == [None]
    assert len(rig.heard[live].codes) == 8


def test_what_was_said_before_in_the_context_is_said_again_unheard() -> None:
    text = "First part 9. Second bit 8. And the last one 30"
    expected = undisturbed(text, 3, sizes=spec(slots=1), limits=ALONE)
    rig = Rig(spec(slots=1), ALONE)
    stream = backfill(rig, text, 3)
    rig.until(lambda: len(rig.heard[stream].codes) == 25)
    rig.speak("say 5")
    rig.finish()
    assert rig.scheduler.stats(rig.clock(), 0.0).parked == 1
    assert (rig.heard[stream].codes, rig.heard[stream].order) == (expected.codes, expected.order)
    assert rig.heard[stream].ends == [None]


@settings(max_examples=40, deadline=None)
@given(
    bursts=st.lists(st.tuples(st.integers(1, 60), st.integers(1, 12)), max_size=6),
    pieces=st.lists(st.integers(0, 25), min_size=1, max_size=5),
    work=st.integers(1, 3),
    pages=st.integers(40, 120),
)
def test_whenever_it_is_parked_nothing_is_lost_doubled_or_changed(
    bursts: list[tuple[int, int]], pieces: list[int], work: int, pages: int
) -> None:
    text = "|".join(f"say {count}" for count in pieces)
    sizes = spec(slots=2, pages=pages)
    expected = [undisturbed(text, seed, sizes=sizes, limits=ALONE) for seed in (1, 2)]
    rig = Rig(sizes, ALONE, work_per_turn=work)
    streams = [backfill(rig, text, seed) for seed in (1, 2)]
    live: list[tuple[StreamId, int]] = []
    for wait, frames in bursts:
        rig.turns(wait)
        live.append((rig.speak(f"say {frames}"), frames))
    rig.finish(20_000)
    for stream, alone in zip(streams, expected, strict=True):
        assert rig.heard[stream].codes == alone.codes
        assert rig.heard[stream].order == alone.order
        assert rig.heard[stream].ends == [None]
    assert all(rig.heard[stream].ends == [None] for stream, _ in live)
    assert [len(rig.heard[stream].codes) for stream, _ in live] == [frames for _, frames in live]
    assert rig.idle_pages() <= 1 + 2, "only prefixes are left"


def test_live_streams_begin_as_soon_and_keep_the_same_lead_beside_backfill() -> None:
    def run(batch: int) -> tuple[list[float], list[float], int]:
        rig = Rig(spec(slots=8, max_positions=4096, pages=6000), replace(FREE, batch_reserve=0.0))
        for seed in range(batch):
            backfill(rig, "endless " + "x" * 400, seed)
        rig.turns(50)
        first: list[float] = []
        leads: list[float] = []
        for _ in range(12):
            live, asked = rig.speak("say 40"), rig.clock()
            for _ in range(30):
                rig.turn()
                heard = rig.heard[live]
                if heard.first_s is not None and not heard.done:
                    leads.append(heard.playout.lead_s(rig.clock()))
            begun = rig.heard[live].first_s
            assert begun is not None
            first.append(begun - asked)
        return first, leads, rig.scheduler.stats(rig.clock(), 0.0).frames

    without, leads_without, quiet = run(0)
    beside, leads_beside, busy = run(8)
    turns = [round((b - w) / 0.01) for b, w in zip(beside, without, strict=True)]
    assert max(turns) <= 2, "the two steps that had begun with the parked stream in them"
    assert min(leads_beside) >= min(leads_without) - 1e-9 and min(leads_beside) > 0
    assert busy > 3 * quiet, "and backfill did get on"


def test_steps_on_the_way_to_a_live_streams_first_sound_have_no_other_rows() -> None:
    rig = Rig(spec(slots=4, max_positions=4096, pages=2000), FREE, work_per_turn=1)
    batch = [backfill(rig, "endless " + "x" * 300, seed) for seed in range(3)]
    rig.turns(30)
    assert len(rig.plans[-1].slots) == 3
    before = len(rig.plans)
    live = rig.speak("one hundred words to prefill, and 30")
    rig.until(lambda: rig.heard[live].first_s is not None)
    assert all(len(plan.slots) == 1 for plan in rig.plans[before:])
    made = [len(rig.heard[stream].codes) for stream in batch]
    rig.until(lambda: rig.heard[live].playout.lead_s(rig.clock()) > 0.6)
    rig.turns(10)
    assert len(rig.plans[-1].slots) == 4
    assert all(len(rig.heard[s].codes) > m for s, m in zip(batch, made, strict=True))


def test_backfill_waits_without_a_limit_and_in_no_ones_way() -> None:
    rig = Rig(spec(slots=1), replace(ALONE, wait_s=0.2, waiting=1))
    live = rig.speak("say 50")
    rig.turns(5)
    waiting = [backfill(rig, "say 4", seed) for seed in range(3)]
    rig.turns(100)
    assert not any(rig.heard[stream].ends for stream in waiting if rig.heard[live].ends == [])
    rig.finish()
    assert all(rig.heard[stream].ends == [None] for stream in (live, *waiting))


def test_as_many_as_the_quota_allows_and_live_streams_do_not_count() -> None:
    rig = Rig(limits=replace(WIDE, batch_streams=2))
    rig.open()
    streams = [rig.open(priority=Priority.BATCH) for _ in range(3)]
    end = failure(rig, streams[2])
    assert end.fault is Fault.BUSY and "batch" in end.message
    rig.send(Cancel(streams[0]))
    assert not rig.heard[rig.open(priority=Priority.BATCH)].ends


def test_some_slots_are_left_free_for_live_turns() -> None:
    rig = Rig(spec(slots=4), replace(WIDE, batch_reserve=0.25))
    for seed in range(6):
        backfill(rig, "endless " + "x" * 300, seed)
    rig.turns(20)
    stats = rig.scheduler.stats(rig.clock(), 0.0)
    assert (stats.slots_busy, stats.batch_slots, stats.batch_waiting) == (3, 3, 3)
    assert (stats.streams_waiting, stats.oldest_wait_s) == (0, 0.0)
    for _ in range(5):
        live = rig.speak("say 3")
        rig.until(lambda live=live: rig.heard[live].done)
    # The slot that such a turn leaves is not free at once: nobody is parked for that either.
    rig.turns(5)
    assert rig.scheduler.stats(rig.clock(), 0.0).parked == 0
    assert [reserved(slots, Limits()) for slots in (1, 2, 4, 64, 256)] == [0, 1, 1, 4, 16]


def test_a_parked_stream_can_be_cancelled_and_leaves_nothing() -> None:
    rig = Rig(spec(slots=1), ALONE)
    parked = backfill(rig, "say 60")
    rig.until(lambda: len(rig.heard[parked].codes) > 5)
    rig.speak("say 30")
    rig.turns(10)
    rig.send(Cancel(parked))
    rig.finish()
    assert rig.heard[parked].dropped and rig.idle_pages() <= 1


@pytest.mark.parametrize(
    ("leads", "starting", "may"),
    [
        ([], False, True),
        ([], True, False),
        ([None], False, False),
        ([0.5, 3.0], False, False),
        ([0.51, 3.0], False, True),
    ],
)
def test_a_step_has_time_to_spare_when_no_listener_is_short(
    leads: list[float | None], starting: bool, may: bool
) -> None:
    assert spare(leads, starting, Limits(batch_lead_s=0.5)) is may


# Sound --------------------------------------------------------------------------------------------


def sound(parks: list[int], frames: int = 30) -> tuple[bytes, list[Event]]:
    """What is delivered of a stretch that is parked after so many frames, each time."""
    runner, clock = ScriptedRunner(spec(slots=4)), ManualClock()
    events: list[Event] = []
    vocoder = Vocoder(
        runner, SimpleQueue[CodecMessage | None](), events.extend, lambda _: None, print, clock
    )
    one = StreamId(1)
    codes = np.arange(frames * 3, dtype=np.int32).reshape(frames, 1, 3)
    for attempt, count in enumerate([*parks, frames]):
        vocoder.take(CodecBegin(one, attempt, None if attempt else "text", None, attempt > 0))
        for step, row in enumerate(codes[:count]):
            vocoder.take(CodecFrames((one,), row))
            if step % 3 == 0:
                vocoder.work()
        vocoder.take(CodecPark(one) if count < frames else CodecEnd(one))
        while vocoder.work():
            pass
    vocoder.take(CodecFinish(one))
    vocoder.work()
    return b"".join(e.samples for e in events if isinstance(e, Pcm)), events


@pytest.mark.parametrize("parks", [[0], [1], [17], [17, 5], [3, 29, 29], [12, 20]])
def test_the_sound_of_a_parked_stretch_goes_on_where_it_was(parks: list[int]) -> None:
    expected, _ = sound([])
    heard, events = sound(parks)
    assert heard == expected and len(expected) == 2 * 30 * 40
    pcm = [event for event in events if isinstance(event, Pcm)]
    assert [event.seq for event in pcm] == list(range(len(pcm)))
    assert [event.text for event in events if isinstance(event, SegmentStarted)] == ["text"]
    assert isinstance(events[0], SegmentStarted)
    assert events[-1] == Finished(StreamId(1), 30, 30 * 40, 1)

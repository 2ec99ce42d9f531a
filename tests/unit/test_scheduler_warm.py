"""Voices that come back from the host's memory: the same sound as when they are prefilled, whatever
is cancelled, fails or is short meanwhile."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from shoal.engine.api import Cancel, Failed, Fault, Opened, Prepare, StreamId, TierStats, Voice
from shoal.engine.runner import Int32Array, RunnerSpec
from tests.fakes import spec
from tests.rig import WIDE, Rig, alone, columns_of, starts_with

PATIENT = replace(WIDE, wait_s=1e6)
SMALL = replace(spec(pages=60, host_pages=40), page_bytes=10)
"""Room on the device for three voices of 37 columns, five pages; in the host's memory for eight."""
LIMITS = replace(PATIENT, prefix_bytes=160)


def columns(voice: Voice) -> Int32Array:
    """The same words for everybody, and the same first codebook; the last one is their own."""
    made = columns_of("what all of them say in one same text")
    made[:, 1] = 5
    made[30, 3] = 1 + int(voice.voice_id or 0)
    return made


def rig_of(sizes: RunnerSpec = SMALL, work: int = 1000) -> Rig:
    return Rig(sizes, LIMITS, voice=columns, work_per_turn=work)


def said(rig: Rig, voice: int, seed: int = 3) -> list[tuple[int, ...]]:
    stream = rig.speak("say 9", str(voice), seed)
    rig.finish()
    rig.turns(3)
    assert rig.heard[stream].ends == [None]
    return rig.heard[stream].codes


def by_itself(voice: int, seed: int = 3) -> list[tuple[int, ...]]:
    return alone("say 9", str(voice), seed, voice=columns).codes


def tiers(rig: Rig) -> tuple[TierStats, TierStats]:
    stats = rig.scheduler.stats(rig.clock(), 0.0)
    return stats.hot, stats.warm


def prefills(rig: Rig) -> int:
    """How often a voice was computed."""
    begin = "what all of them say"
    return sum(starts_with(chunk.columns, begin) for chunk in rig.runner.log.prefilled)


def loads(rig: Rig) -> int:
    return sum(kind == "loaded" for kind, _ in rig.runner.log.copied)


def test_a_voice_that_the_device_let_go_comes_back_without_a_prefill() -> None:
    rig = rig_of()
    first = [said(rig, voice) for voice in range(5)]
    assert prefills(rig) == 5 and loads(rig) == 0
    again = [said(rig, voice) for voice in range(5)]
    assert again == first == [by_itself(voice) for voice in range(5)]
    assert prefills(rig) == 5 and loads(rig) == 5
    hot, warm = tiers(rig)
    assert (warm.hits, warm.misses, warm.entries) == (5, 5, 5)
    assert (hot.bytes <= hot.limit_bytes == 160, warm.bytes, warm.limit_bytes) == (True, 250, 400)


def test_two_voices_that_agree_in_text_and_codebook_0_never_meet() -> None:
    rig = rig_of()
    for voice in (0, 1, 2, 3, 4, 1, 0):
        assert said(rig, voice) == by_itself(voice)
    assert by_itself(0) != by_itself(1) and loads(rig) == 2


def test_of_more_voices_than_the_host_holds_the_oldest_are_prefilled_again() -> None:
    rig = rig_of()
    for voice in range(14):
        said(rig, voice)
    assert said(rig, 0) == by_itself(0)
    assert prefills(rig) == 15 and loads(rig) == 0
    _, warm = tiers(rig)
    assert warm.evictions > 0 and warm.bytes <= warm.limit_bytes


def test_the_default_voice_is_never_copied() -> None:
    rig = rig_of()
    stream = rig.speak("say 5")
    rig.finish()
    rig.turns(3)
    assert rig.heard[stream].ends == [None] and rig.runner.log.copied == []


@pytest.mark.parametrize("turns", range(4))
def test_a_turn_cancelled_while_its_voice_is_copied_leaves_nothing_behind(turns: int) -> None:
    rig = rig_of()
    for voice in range(5):
        said(rig, voice)
    rig.work_per_turn = 0
    stream = rig.speak("say 9", "0")
    rig.work(0)  # the voice thread answers, the prefill thread does not
    rig.turns(turns)
    rig.send(Cancel(stream))
    rig.work_per_turn = 1000
    rig.turns(5)
    before = loads(rig)
    assert said(rig, 0) == by_itself(0)
    assert loads(rig) == before == 1 and prefills(rig) == 5
    rig.turns(5)
    hot, warm = tiers(rig)
    # Nothing but the voices' entries, whose bytes are tens of pages.
    assert 10 * rig.idle_pages() == hot.bytes and warm.bytes == 50 * warm.entries


def test_a_copy_back_that_fails_is_a_prefill_and_the_copy_is_not_tried_again() -> None:
    rig = rig_of()
    for voice in range(5):
        said(rig, voice)
    rig.runner.fail_copies = True
    assert said(rig, 0) == by_itself(0)
    assert prefills(rig) == 6 and loads(rig) == 0
    rig.runner.fail_copies = False
    for voice in (1, 2, 3, 4):
        assert said(rig, voice) == by_itself(voice)
    # It was copied to the host anew before it was let go.
    assert said(rig, 0) == by_itself(0)
    assert prefills(rig) == 6 and loads(rig) == 5


def test_a_copy_to_the_host_that_fails_costs_a_prefill_later_and_no_page() -> None:
    rig = rig_of()
    rig.runner.fail_copies = True
    for voice in range(5):
        said(rig, voice)
    hot, warm = tiers(rig)
    assert (warm.entries, warm.bytes) == (0, 0) and 10 * rig.idle_pages() == hot.bytes
    rig.runner.fail_copies = False
    for voice in range(5):
        assert said(rig, voice) == by_itself(voice)
    # Two of the five were on the device still, and went by way of the host.
    assert prefills(rig) == 8 and loads(rig) == 2


def test_a_voice_that_is_being_copied_stays_and_others_go() -> None:
    rig = rig_of()
    rig.hold_saves = True
    for voice in range(8):
        said(rig, voice)
    # One copy at a time: the first voice's, which is still there; the others came and went.
    assert len(rig.saves) == 1
    count = prefills(rig)
    assert said(rig, 0) == by_itself(0) and prefills(rig) == count
    rig.hold_saves = False
    rig.turns(10)
    assert not rig.saves and tiers(rig)[1].entries > 1


@pytest.mark.parametrize(("pages", "copies"), [(10, 0), (11, 1)])
def test_no_voice_is_copied_while_less_is_free_than_it_takes(pages: int, copies: int) -> None:
    """Its pages are held meanwhile, and somebody could have to wait for them. One page is the
    default voice's, five are the voice's."""
    rig = rig_of(replace(SMALL, pages=pages))
    rig.send(Prepare(Voice("0")))
    rig.turns(5)
    assert [kind for kind, _ in rig.runner.log.copied] == ["saved"] * copies


@pytest.mark.parametrize("seed", range(12))
def test_every_stream_sounds_as_if_alone_whatever_comes_goes_and_fails(seed: int) -> None:
    draw = random.Random(seed)
    sizes = replace(
        SMALL, pages=draw.choice((40, 60, 90)), host_pages=draw.choice((7, 23, 40, 200))
    )
    rig = rig_of(sizes, draw.choice((1, 2, 1000)))
    asked: dict[StreamId, tuple[int, int]] = {}
    cut: set[StreamId] = set()
    for _ in range(60):
        voice = draw.randrange(12)
        stream = rig.open(str(voice), seed)
        asked[stream] = (voice, seed)
        rig.say(stream, "say 9")
        rig.runner.fail_copies = draw.random() < 0.2
        rig.turns(draw.randrange(25))
        if draw.random() < 0.3:
            gone = draw.choice(list(asked))
            rig.send(Cancel(gone))
            cut.add(gone)
        _, warm = tiers(rig)
        assert warm.bytes <= warm.limit_bytes == 10 * sizes.host_pages
    rig.runner.fail_copies = False
    rig.finish()
    rig.work_per_turn = 1000
    rig.turns(30)
    expected = {voice: by_itself(voice, seed) for voice in range(12)}
    for stream, (voice, _) in asked.items():
        if stream not in cut:
            assert rig.heard[stream].codes == expected[voice]
    hot, warm = tiers(rig)
    assert 10 * rig.idle_pages() == hot.bytes and warm.bytes == 50 * warm.entries
    assert sizes.host_pages < 20 or loads(rig) > 0


@pytest.mark.parametrize("host_pages", (0, 40))
def test_more_voices_wait_than_the_device_holds_and_each_is_written_a_few_times(
    host_pages: int,
) -> None:
    """One that is written is spoken with; it makes no room for the next in line before that."""
    rig = Rig(replace(SMALL, pages=40, host_pages=host_pages, max_slots=2), LIMITS, voice=columns)
    rig.work_per_turn = 2
    streams = [rig.speak("say 9", str(voice), 3) for voice in range(24)]
    rig.finish()
    for voice, stream in enumerate(streams):
        assert rig.heard[stream].ends == [None] and rig.heard[stream].codes == by_itself(voice)
    rig.turns(3)
    assert prefills(rig) + loads(rig) <= 2 * len(streams)
    hot, _ = tiers(rig)
    assert 10 * rig.idle_pages() == hot.bytes


def test_who_cannot_even_have_a_voice_is_refused_like_who_finds_no_slot() -> None:
    limits = replace(LIMITS, wait_s=2.0)
    rig = Rig(replace(SMALL, pages=22, max_slots=1), limits, voice=columns, step_s=0.1)
    rig.speak("endless", "0", 3)
    rig.turns(10)
    patient = rig.open("1")  # has nothing to say
    late = rig.speak("say 9", "2", 3)
    asked_s = rig.clock()
    while not rig.heard[late].ends:
        rig.turns(1)
    failure = rig.heard[late].ends[0]
    assert isinstance(failure, Failed) and failure.fault is Fault.BUSY
    assert rig.clock() - asked_s == pytest.approx(2.0, abs=0.5)
    assert not rig.heard[patient].ends


def test_many_more_who_connect_than_voices_fit_are_all_told_that_theirs_is_ready() -> None:
    rig = Rig(replace(SMALL, pages=40, host_pages=0), LIMITS, voice=columns, work_per_turn=2)
    streams = [rig.open(str(voice)) for voice in range(24)]
    rig.turns(200)
    told = {event.stream for event in rig.events if isinstance(event, Opened)}
    assert told == set(streams) and prefills(rig) == 24


@pytest.mark.parametrize("host_pages", (0, 40))
def test_a_voice_that_is_there_before_the_text_is_prepared_stays_for_it(host_pages: int) -> None:
    """Though the device keeps no voice that nobody waits for."""
    limits = replace(LIMITS, prefix_bytes=0)
    rig = Rig(replace(SMALL, host_pages=host_pages), limits, voice=columns)
    first = said(rig, 0)
    stream = rig.speak("say 9", "0", 3)
    rig.work_per_turn = 0  # the voice thread answers, the prefill thread does not
    rig.turns(5)
    (opened,) = rig.events_of(stream)
    assert isinstance(opened, Opened) and opened.cached
    rig.work_per_turn = 1000
    rig.finish()
    assert rig.heard[stream].codes == first == by_itself(0)
    assert (prefills(rig), loads(rig)) == (1, 0)


def test_a_voice_whose_listener_has_nothing_to_say_yet_makes_room() -> None:
    """What only more text can release is nothing yet."""
    rig = Rig(SMALL, replace(LIMITS, prefix_bytes=0), voice=columns)
    silent, halting = rig.open("0", 3), rig.open("1", 3)
    rig.say(halting, "(lau", end=False)
    rig.turns(5)
    assert {event.stream for event in rig.events if isinstance(event, Opened)} == {silent, halting}
    third = rig.speak("say 9", "2", 3)
    rig.until(lambda: rig.heard[third].done)
    assert tiers(rig)[0].entries == 2, "the default voice's, and the last one"

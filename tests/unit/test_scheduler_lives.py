"""The scheduler under any order of things: what a stream hears depends on nobody else, everything
is given back, everybody comes to an end."""

from __future__ import annotations

import logging
import random
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.engine.api import Cancel, Fault, Flush, Pause, Resume, StreamId
from shoal.engine.runner import StepResult
from tests.fakes import spec
from tests.pages import ContractError
from tests.rig import WIDE, Rig, alone, columns_of, failure

PATIENT = replace(WIDE, wait_s=1e9, waiting=10_000)
SMALL = spec(slots=3, pages=40)
VOICES = (None, "ann", "bob")


@cache
def expected(text: str, voice: str | None, seed: int) -> tuple[tuple[int, ...], ...]:
    return tuple(alone(text, voice, seed, limits=PATIENT).codes)


@settings(max_examples=60)
@given(
    at=st.integers(0, 45),
    what=st.sampled_from(("join", "cancel", "leave", "pause")),
    size=st.integers(1, 4),
    work=st.integers(1, 3),
)
def test_whatever_happens_at_any_step_changes_no_other_stream(
    at: int, what: str, size: int, work: int
) -> None:
    rig = Rig(spec(slots=4, pages=60), PATIENT, work_per_turn=work)
    witness = rig.speak("witness 30", "ann", seed=11)
    others = [rig.speak(f"say {5 + number * at % 40}", "ann", number) for number in range(size)]
    rig.turns(at)
    match what:
        case "join":
            rig.speak("newcomer 12", "bob", 5)
        case "cancel":
            rig.send(Cancel(others[0]))
        case "pause":
            rig.send(Pause(others[0]))
            rig.turns(3)
            rig.send(Resume(others[0]))
        case _:
            rig.send(Flush(others[0]))
    rig.finish()
    assert tuple(rig.heard[witness].codes) == expected("witness 30", "ann", 11)


@pytest.mark.parametrize("at", range(0, 40))
def test_cancelling_at_every_step_leaves_the_neighbour_as_it_was(at: int) -> None:
    rig = Rig(spec(slots=2, pages=60), PATIENT)
    witness, leaver = rig.speak("witness 20", "ann", 1), rig.speak("leaver 25", "ann", 2)
    rig.turns(at)
    rig.send(Cancel(leaver))
    newcomer = rig.speak("newcomer 15", "ann", 3)
    rig.finish()
    assert tuple(rig.heard[witness].codes) == expected("witness 20", "ann", 1)
    assert tuple(rig.heard[newcomer].codes) == expected("newcomer 15", "ann", 3)
    had = len(rig.heard[leaver].codes)
    assert tuple(rig.heard[leaver].codes) == expected("leaver 25", "ann", 2)[:had]


LIFE = st.fixed_dictionaries(
    {
        "voice": st.sampled_from(VOICES),
        "frames": st.integers(0, 25),
        "begin": st.integers(0, 60),
        "cancel": st.one_of(st.none(), st.integers(0, 80)),
        "pause": st.one_of(st.none(), st.tuples(st.integers(0, 60), st.integers(1, 30))),
    }
)


@settings(max_examples=80)
@given(lives=st.lists(LIFE, min_size=1, max_size=9), work=st.integers(1, 4))
def test_lives_in_any_order_hear_their_own_and_give_everything_back(
    lives: list[dict[str, object]], work: int
) -> None:
    rig = Rig(SMALL, PATIENT, work_per_turn=work)
    streams: dict[int, StreamId] = {}
    for step in range(140):
        for number, life in enumerate(lives):
            if life["begin"] == step:
                voice = life["voice"]
                assert voice is None or isinstance(voice, str)
                streams[number] = rig.speak(f"life {life['frames']}", voice, number)
            if number not in streams:
                continue
            if life["cancel"] == step:
                rig.send(Cancel(streams[number]))
            pause = life["pause"]
            if isinstance(pause, tuple) and step in (pause[0], pause[0] + pause[1]):
                stop = step == pause[0]
                rig.send((Pause if stop else Resume)(streams[number]))
        rig.turn()
    for stream in streams.values():
        rig.send(Resume(stream))
    rig.finish()
    for number, stream in streams.items():
        heard, life = rig.heard[stream], lives[number]
        voice = life["voice"]
        assert voice is None or isinstance(voice, str)
        whole = expected(f"life {life['frames']}", voice, number)
        assert tuple(heard.codes) == whole[: len(heard.codes)]
        if not heard.dropped:
            assert heard.ends == [None] and len(heard.codes) == len(whole)
    assert_at_rest(rig)


def assert_at_rest(rig: Rig) -> None:
    """Every slot free, no page held but by cached prefixes, none promised."""
    stats = rig.scheduler.stats(rig.clock(), 0.0)
    assert (stats.slots_busy, stats.streams_open, stats.streams_waiting) == (0, 0, 0)
    memory = rig.scheduler._memory  # pyright: ignore[reportPrivateUsage]
    held = list(memory.prefixes.evictable_pages({}))
    assert memory.promised == 0
    assert len(set(held)) == len(held)
    default = memory.pages_for(len("system"))
    assert stats.pages_used == len(held) + default
    assert all(memory.pool.holders(page) == 1 for page in held)


def test_a_hundred_thousand_lives_leave_nothing_behind(caplog: pytest.LogCaptureFixture) -> None:
    """Short lives in a small engine: spoken, paused, cut off, cancelled at every stage, refused."""
    caplog.set_level(logging.ERROR)
    rig = Rig(
        spec(slots=16, pages=90, page_tokens=4, max_positions=64),
        replace(WIDE, frames_base=3, frames_per_byte=0.0, wait_s=0.3, waiting=24, streams=100),
        voice=lambda asked: columns_of(str(asked.voice_id)),
    )
    chance = random.Random(7)
    open_now: list[StreamId] = []
    begun = ended = 0
    spoken = 0
    while begun < 100_000 or open_now:
        for _ in range(chance.randrange(20) if begun < 100_000 else 0):
            voice = chance.choice((None, "a", "bcdef", "ghi"))
            stream = rig.open(voice, seed=begun)
            rig.say(stream, chance.choice(("ab", "c 0", "d 1", "e 9")))
            open_now.append(stream)
            begun += 1
        for _ in range(4):
            stream = chance.choice(open_now) if open_now else None
            if stream is not None and chance.random() < 0.7:
                rig.send(Cancel(stream))
            elif stream is not None:
                rig.send(Pause(stream))
                rig.send(Resume(stream))
        rig.turn()
        for stream in [s for s in open_now if rig.heard[s].done]:
            heard = rig.heard.pop(stream)
            assert len(heard.ends) + heard.dropped == 1
            spoken += len(heard.codes)
            ended += 1
            open_now.remove(stream)
        rig.events.clear()
        rig.plans.clear()
        for line in (rig.runner.log.steps, rig.runner.log.joins, rig.runner.log.prefilled):
            line.clear()
    rig.finish()
    assert ended == begun >= 100_000
    assert spoken > 30_000
    assert_at_rest(rig)


def test_nobody_starves_among_more_streams_than_slots() -> None:
    rig = Rig(spec(slots=2, pages=200, max_positions=1024), PATIENT)
    streams = [rig.speak(f"say {10 + number}", seed=number) for number in range(30)]
    rig.finish()
    for number, stream in enumerate(streams):
        assert len(rig.heard[stream].codes) == 10 + number


@settings(max_examples=30)
@given(st.lists(st.integers(1, 60), min_size=2, max_size=12), st.integers(2, 5))
def test_every_listener_of_a_fast_enough_device_is_fed(frames: list[int], slots: int) -> None:
    """Steps of 10 ms for frames of 50 ms: whoever has begun never runs dry before their end."""
    rig = Rig(spec(slots=slots, pages=400, max_positions=1024), PATIENT)
    streams = [rig.speak(f"say {count}", seed=count) for count in frames]
    lowest = 9.0
    while not all(rig.heard[stream].done for stream in streams):
        rig.turn()
        for stream in streams:
            heard = rig.heard[stream]
            if heard.frames and heard.open_stretch:
                lowest = min(lowest, heard.playout.lead_s(rig.clock()))
    assert lowest > 0.0


def test_results_of_an_earlier_generation_reach_nobody() -> None:
    """A slot changes hands with a step in flight: the newcomer hears nothing of that step."""
    rig = Rig(spec(slots=1), PATIENT)
    first = rig.speak("say 30", seed=1)
    rig.until(lambda: len(rig.heard[first].codes) >= 3)
    assert rig.runner.in_flight == 1
    second = rig.speak("say 10", seed=2)
    rig.turns(2)
    had = len(rig.heard[first].codes)
    rig.send(Cancel(first))
    rig.finish()
    assert len(rig.heard[first].codes) == had
    assert tuple(rig.heard[second].codes) == expected("say 10", None, 2)


def test_a_result_of_a_stale_generation_is_dropped() -> None:
    rig = Rig(spec(slots=1), PATIENT)
    stream = rig.speak("say 30", seed=1)
    rig.until(lambda: len(rig.heard[stream].codes) >= 3)
    had = len(rig.heard[stream].codes)
    join = rig.runner.log.joins[0]
    for generation, ended in ((join.generation - 1, False), (join.generation + 1, True)):
        columns = np.full((1, 4), 9, np.int32)
        collected = len(rig.plans) - 1 - rig.runner.in_flight
        forged = StepResult(collected, (0,), (generation,), columns, np.array([ended]))
        rig.scheduler.result(forged)
    assert len(rig.heard[stream].codes) == had
    rig.finish()
    assert tuple(rig.heard[stream].codes) == expected("say 30", None, 1)


def test_overload_is_refused_while_everybody_who_speaks_goes_on() -> None:
    rig = Rig(spec(slots=4, pages=400, max_positions=1024), replace(WIDE, waiting=4))
    speakers = [rig.speak("say 60", seed=number) for number in range(4)]
    rig.until(lambda: all(rig.heard[stream].codes for stream in speakers))
    late = [rig.speak("say 60") for _ in range(20)]
    lowest = 9.0
    while not all(rig.heard[stream].done for stream in speakers):
        rig.turn()
        lowest = min(
            [lowest]
            + [
                rig.heard[stream].playout.lead_s(rig.clock())
                for stream in speakers
                if rig.heard[stream].open_stretch
            ]
        )
    assert lowest > 0.0
    rig.finish()
    refused = [stream for stream in late if rig.heard[stream].ends != [None]]
    assert len(refused) >= 16
    assert {failure(rig, stream).fault for stream in refused} == {Fault.BUSY}
    for number, stream in enumerate(speakers):
        assert tuple(rig.heard[stream].codes) == expected("say 60", None, number)


def test_a_page_given_away_too_early_would_be_noticed() -> None:
    """The property tests above rest on this: the runner works as late as it may."""
    rig = Rig(SMALL, PATIENT)
    stream = rig.speak("say 20", seed=1)
    rig.until(lambda: len(rig.heard[stream].codes) > 3)
    memory = rig.scheduler._memory  # pyright: ignore[reportPrivateUsage]
    pages = rig.runner.log.joins[0].table
    memory.pool.release(pages[:1])
    with pytest.raises((ContractError, AssertionError)):
        rig.speak("say 20", seed=2)
        rig.finish()

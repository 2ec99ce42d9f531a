from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.engine.config import Limits
from shoal.engine.pacing import FIRST_CHUNK_S, Playout, choose, due_frames, due_in_s

LIMITS = Limits(urgent_lead_s=0.15, park_lead_s=2.0, furthest_lead_s=30.0)
S2_FRAME_S = 2048 / 44100
FRAME_LENGTHS = (0.05, S2_FRAME_S, 0.08, 0.0125)


def test_who_runs_dry_comes_before_first_sounds_before_the_rest() -> None:
    leads = [0.9, None, 0.1, -3.0, 0.16]
    assert choose(leads, False, LIMITS) == ([3, 2, 1, 4, 0], None)


def test_who_has_plenty_sits_out_while_somebody_is_short() -> None:
    chosen, wait_s = choose([1.5, 0.1, 2.5], False, LIMITS)
    assert chosen == [1]
    assert wait_s == pytest.approx(0.5)
    chosen, wait_s = choose([1.5, 2.5, 0.8], True, LIMITS)
    assert chosen == [2]
    assert wait_s == pytest.approx(0.5)


def test_two_seconds_ahead_is_parked_while_others_need_steps() -> None:
    chosen, wait_s = choose([2.5, 1.5], False, LIMITS)
    assert chosen == [1]
    assert wait_s == pytest.approx(0.5)


def test_an_idle_device_runs_ahead_but_not_for_ever() -> None:
    assert choose([2.5, 29.0], False, LIMITS) == ([0, 1], None)
    chosen, wait_s = choose([31.0, 40.0], False, LIMITS)
    assert chosen == []
    assert wait_s == pytest.approx(1.0)
    assert choose([2.5, 29.0], True, LIMITS)[0] == []
    assert choose([], False, LIMITS) == ([], None)


@given(st.lists(st.one_of(st.none(), st.floats(-10, 60)), max_size=8), st.booleans())
def test_nobody_who_is_short_is_left_out(leads: list[float | None], starting: bool) -> None:
    chosen, wait_s = choose(leads, starting, LIMITS)
    assert len(set(chosen)) == len(chosen)
    for index, lead in enumerate(leads):
        if lead is None or lead <= LIMITS.park_lead_s / 2:
            assert index in chosen
        if lead is not None and lead > LIMITS.furthest_lead_s:
            assert index not in chosen
    assert (wait_s is None) == (len(chosen) == len(leads))
    if wait_s is not None and not chosen:
        # When nobody runs, somebody does after that time: the loop never sleeps for ever.
        later = [None if lead is None else lead - wait_s - 1e-6 for lead in leads]
        assert choose(later, starting, LIMITS)[0]


def test_two_minutes_of_speech_are_not_paced_on_an_idle_device() -> None:
    """Clients give up on a file after 30 s: it has to come faster than it plays."""
    assert choose([120.0], False, Limits()) == ([0], None)


def test_a_listeners_lead_begins_anew_when_they_ran_dry() -> None:
    playout = Playout()
    assert playout.lead_s(5.0) == 0.0
    assert playout.sent(0.1, 5.0)
    assert not playout.sent(0.4, 5.05)
    assert playout.lead_s(5.1) == pytest.approx(0.4)
    assert playout.lead_s(9.0) == 0.0
    assert playout.sent(0.2, 9.0)
    assert playout.lead_s(9.0) == pytest.approx(0.2)


@pytest.mark.parametrize("frame_s", FRAME_LENGTHS)
def test_the_first_chunk_leaves_with_80_ms_and_not_before(frame_s: float) -> None:
    counts = [ready for ready in range(1, 20) if due_frames(ready, False, 0.0, frame_s)]
    assert counts[0] * frame_s >= FIRST_CHUNK_S - 1e-9
    assert (counts[0] - 1) * frame_s < FIRST_CHUNK_S - 1e-9


def test_chunks_grow_with_the_lead() -> None:
    least = [
        next(ready for ready in range(1, 99) if due_frames(ready, False, lead_s, 0.05))
        for lead_s in (0.05, 0.3, 0.8, 5.0)
    ]
    assert least == [1, 2, 4, 8]


def test_the_end_of_a_segment_waits_for_nothing() -> None:
    assert due_frames(1, True, 9.0, 0.05) == 1
    assert due_frames(0, True, 0.0, 0.05) == 0
    assert due_frames(0, False, 0.0, 0.05) == 0


@given(st.integers(0, 12), st.floats(0, 4), st.sampled_from(FRAME_LENGTHS))
def test_frames_that_wait_become_due_when_it_was_said(
    ready: int, lead_s: float, frame_s: float
) -> None:
    if due_frames(ready, False, lead_s, frame_s):
        return
    wait_s = due_in_s(ready, lead_s, frame_s)
    if wait_s is None:
        # Only frames that would be too few for a listener who is nearly dry wait without a term.
        assert not due_frames(ready, False, 0.05, frame_s) or lead_s < 0.1
    else:
        assert due_frames(ready, False, lead_s - wait_s, frame_s)


@pytest.mark.parametrize("frame_s", FRAME_LENGTHS)
@pytest.mark.parametrize("speed", [1.5, 2.5, 4.0, 12.0])
def test_from_the_first_second_on_the_listener_holds_200_ms(frame_s: float, speed: float) -> None:
    """A model that makes frames ``speed`` times as fast as they play, for twenty seconds."""
    playout, made, ready, sizes = Playout(), 0, 0, list[int]()
    lowest = 9.0
    for step in range(1, int(20 * speed / frame_s)):
        now = step * frame_s / speed
        if made * frame_s - now < LIMITS.park_lead_s:
            made, ready = made + 1, ready + 1
        lead_s = playout.lead_s(now)
        if playout.since_s is not None and now > playout.since_s + 1.0:
            lowest = min(lowest, lead_s)
        if count := due_frames(ready, False, lead_s, frame_s):
            playout.sent(count * frame_s, now)
            ready -= count
            sizes.append(count)
    assert lowest >= 0.2
    assert max(sizes) * frame_s <= 0.5

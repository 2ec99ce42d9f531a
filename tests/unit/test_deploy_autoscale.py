"""How many replicas there should be."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.deploy.autoscale import FleetSignal, Memory, Rules, decide, pressed
from shoal.deploy.scaling import fleet_signal, percentile
from shoal.loadtest.plan.recorded import live_by_second, read_recording

RECORDING = Path(__file__).parents[1] / "data" / "turns.jsonl"
RULES = Rules(most=10, start_s=10.0, hold_s=60.0, down_every_s=10.0)
QUIET = FleetSignal(at_s=0.0, replicas=1, live_turns=0, capacity=8)


def drive(turns: list[float], rules: Rules, step_s: float = 1.0, capacity: float = 8) -> list[int]:
    """Replicas after each moment, when they are there as soon as they are asked for."""
    memory, replicas, history = Memory(), rules.least, list[int]()
    for moment, live in enumerate(turns):
        signal = FleetSignal(moment * step_s, replicas, live, capacity)
        replicas, memory = decide(signal, memory, rules)
        history.append(replicas)
    return history


def test_nothing_to_do_needs_the_spare_alone() -> None:
    assert decide(QUIET, Memory(), RULES)[0] == 1


@pytest.mark.parametrize(("live", "wanted"), [(1, 2), (5, 2), (6, 3), (20, 5), (56, 10)])
def test_turns_get_replicas_at_the_target_load_and_one_to_spare(live: float, wanted: int) -> None:
    assert decide(replace(QUIET, live_turns=live), Memory(), RULES)[0] == wanted


def test_a_burst_is_answered_at_once() -> None:
    assert drive([0, 0, 0, 30], RULES)[-1] >= 7


def test_a_slope_is_followed_to_when_a_replica_is_warm() -> None:
    climbing = drive([float(turns) for turns in range(12)], RULES)
    level = drive([11.0] * 12, RULES)
    assert climbing[-1] == 5 and level[-1] == 3  # 11 turns, and 10 more in 10 s


@pytest.mark.parametrize(
    "trouble",
    [
        {"step_share": 0.7},
        {"gap_share": 0.05},
        {"refusals_per_s": 0.5},
        {"queue_age_s": 0.3},
    ],
)
def test_trouble_adds_a_quarter_whatever_the_turns_say(trouble: dict[str, float]) -> None:
    signal = replace(QUIET, replicas=6, live_turns=4, **trouble)
    assert pressed(signal, RULES)
    wanted, memory = decide(signal, Memory(), RULES)
    assert wanted == 8
    again, memory = decide(replace(signal, at_s=5.0, replicas=8), memory, RULES)
    assert again == 8, "those that were added are not warm yet"
    assert decide(replace(signal, at_s=11.0, replicas=8), memory, RULES)[0] == 10


def test_it_goes_down_late_and_a_step_at_a_time() -> None:
    history = drive([40.0] * 20 + [0.0] * 200, RULES)
    peak = max(history)
    assert history[20 + 58] == peak, "the need is held for a minute"
    falls = [at for at in range(1, len(history)) if history[at] < history[at - 1]]
    assert all(history[at - 1] - history[at] == 1 for at in falls)
    assert min(b - a for a, b in pairwise(falls)) >= 10
    assert history[-1] == 1


def test_a_need_that_comes_back_stops_the_fall() -> None:
    history = drive([40.0] * 20 + [0.0] * 85 + [20.0] * 5, RULES)
    assert history[-1] >= 5


@given(
    st.lists(st.floats(0, 90), min_size=1, max_size=80),
    st.integers(1, 3),
    st.integers(3, 12),
)
def test_it_never_goes_below_live_turns_nor_over_the_most(
    turns: list[float], least: int, most: int
) -> None:
    rules = replace(RULES, least=least, most=most)
    for live, replicas in zip(turns, drive(turns, rules), strict=True):
        assert replicas * 8 >= min(live, most * 8), "no turn would have to end"
        assert least <= replicas <= most


def test_more_than_the_most_leave_no_faster_than_their_turns_end() -> None:
    signal = replace(QUIET, replicas=20, live_turns=152)
    assert decide(signal, Memory(), RULES)[0] == 19
    assert decide(replace(signal, live_turns=80), Memory(), RULES)[0] == 18


def test_recorded_turns_take_it_from_one_to_three_and_back() -> None:
    live = live_by_second(read_recording(RECORDING))
    rules = replace(RULES, most=3, spare=0, start_s=2.0)
    history = drive([*map(float, live), *[0.0] * 90], rules, capacity=3)
    assert max(live) > 3 * rules.target_load, "one replica would not do"
    assert history[0] == 1 and max(history) == 3 and history[-1] == 1
    assert history.index(3) <= live.index(max(live))


def test_what_replicas_say_becomes_one_signal() -> None:
    metrics = {
        "live_turns": {"a": 3.0, "b": 5.0},
        "capacity": {"a": 8.0, "b": 8.0},
        "step_share": {"a": 0.2, "b": 0.4},
        "refusals_per_s": {"a": 0.5, "b": 0.25},
        "queue_age_s": {"a": 0.0, "b": 0.1},
    }
    assert fleet_signal(metrics, 3, 7.0) == FleetSignal(
        7.0, 3, live_turns=8.0, capacity=8.0, step_share=0.4, refusals_per_s=0.75, queue_age_s=0.1
    )
    assert fleet_signal({}, 3, 7.0) is None


def test_a_percentile_is_a_value_that_was_there() -> None:
    assert percentile([float(n) for n in range(1, 101)], 0.95) == 95
    assert percentile([3.0], 0.95) == 3.0
    assert percentile([], 0.95) == 0.0

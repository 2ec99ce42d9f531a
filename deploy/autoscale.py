"""How many replicas there should be: a pure function of what they report and what it decided.

Up at once, by what live turns need at the target load plus where they will be when a replica that
starts now is warm, plus a spare; and by a quarter more when listeners are about to suffer whatever
the turns say. Down slowly: never below the highest need of the last minutes, a step at a time, and
never below the live turns. Knows no Ray, no clock and no network.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

SLOPE_POINTS: Final = 3


@dataclass(frozen=True, slots=True)
class FleetSignal:
    """All replicas at one moment. ``capacity``: the turns one replica was measured to speak
    without a gap. ``step_share``: the 95th percentile over the replicas of a decode step's time
    over its frame's. ``gap_share``: of the chunks sent, those whose listener had nothing left to
    play. ``queue_age_s``: the longest wait for a slot."""

    at_s: float
    replicas: int
    live_turns: float
    capacity: float
    step_share: float = 0.0
    gap_share: float = 0.0
    refusals_per_s: float = 0.0
    queue_age_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Rules:
    """``least`` and ``most`` replicas; ``target_load`` of the capacity that is used on purpose."""

    least: int = 1
    most: int = 1000
    target_load: float = 0.7
    spare: int = 1
    start_s: float = 60.0
    """From the decision to a warm replica; the slope of the live turns is followed so far ahead."""
    slope_window_s: float = 30.0
    hold_s: float = 300.0
    """A need is kept for so long after it was last there."""
    down_every_s: float = 30.0
    down_share: float = 0.1
    """Of the replicas, how many at most leave in one step; one always may."""
    step_limit: float = 0.6
    gap_limit: float = 0.01
    refusals_limit_per_s: float = 0.0
    queue_limit_s: float = 0.25
    pressure_share: float = 0.25
    """How many replicas more, of those there are, when a limit is passed."""


@dataclass(frozen=True, slots=True)
class Memory:
    """What a decision needs of the ones before it."""

    turns: tuple[tuple[float, float], ...] = ()
    """(at_s, live turns) of the slope's window."""
    needs: tuple[tuple[float, int], ...] = ()
    """(at_s, replicas needed), falling: the highest need of the time that is held."""
    down_s: float = -math.inf
    up_s: float = -math.inf


def decide(signal: FleetSignal, memory: Memory, rules: Rules) -> tuple[int, Memory]:
    """Replicas to have, and what to pass in next time."""
    now_s = signal.at_s
    turns = _recent((*memory.turns, (now_s, signal.live_turns)), now_s - rules.slope_window_s)
    need = _need(signal, turns, memory, rules)
    needs = _held(memory.needs, now_s, need, rules.hold_s)
    held = needs[0][1]  # of falling ones, the highest
    memory = replace(memory, turns=turns, needs=needs)
    if need > signal.replicas:
        return need, replace(memory, up_s=now_s)
    if held < signal.replicas and now_s - memory.down_s >= rules.down_every_s:
        step = max(1, int(signal.replicas * rules.down_share))
        carrying = math.ceil(signal.live_turns / max(signal.capacity, 1.0))
        return max(held, carrying, signal.replicas - step), replace(memory, down_s=now_s)
    return signal.replicas, memory


def pressed(signal: FleetSignal, rules: Rules) -> bool:
    """Listeners hear it, or are about to, or are sent away."""
    return (
        signal.step_share > rules.step_limit
        or signal.gap_share > rules.gap_limit
        or signal.refusals_per_s > rules.refusals_limit_per_s
        or signal.queue_age_s > rules.queue_limit_s
    )


def _need(
    signal: FleetSignal, turns: Sequence[tuple[float, float]], memory: Memory, rules: Rules
) -> int:
    capacity = max(signal.capacity, 1.0)
    ahead = signal.live_turns + max(0.0, _slope(turns)) * rules.start_s
    need = math.ceil(ahead / (capacity * rules.target_load)) + rules.spare
    settled = signal.at_s - memory.up_s >= rules.start_s  # what was added is not warm before
    if settled and pressed(signal, rules):
        extra = max(1, math.ceil(signal.replicas * rules.pressure_share))
        need = max(need, signal.replicas + extra)
    return min(max(need, rules.least), rules.most)


def _slope(turns: Sequence[tuple[float, float]]) -> float:
    """Turns per second, by least squares; 0 with too little to tell."""
    if len(turns) < SLOPE_POINTS:
        return 0.0
    mean_s = sum(at for at, _ in turns) / len(turns)
    mean = sum(live for _, live in turns) / len(turns)
    spread = sum((at - mean_s) ** 2 for at, _ in turns)
    if spread == 0.0:
        return 0.0
    return sum((at - mean_s) * (live - mean) for at, live in turns) / spread


def _recent(
    points: tuple[tuple[float, float], ...], since_s: float
) -> tuple[tuple[float, float], ...]:
    return tuple(point for point in points if point[0] >= since_s)


def _held(
    needs: tuple[tuple[float, int], ...], now_s: float, need: int, hold_s: float
) -> tuple[tuple[float, int], ...]:
    """The needs that can still be the highest of the last ``hold_s``, the highest first."""
    kept = tuple((at, n) for at, n in needs if at > now_s - hold_s and n > need)
    return (*kept, (now_s, need))

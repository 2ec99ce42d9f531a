"""How many GPUs there should be: the policies, as pure functions of what can be measured.

A policy is called with the signals of the last interval and what it remembers, and gives the number
of replicas to run and what it will remember. Nothing here knows where the signals come from.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Memory = tuple[tuple[float, float, int], ...]
"""(seconds, live turns, replicas that were found to be needed), oldest first."""


@dataclass(frozen=True, slots=True)
class Signals:
    """Of the whole fleet, at ``now_s``. ``capacity``: live turns that one GPU speaks safely."""

    now_s: float
    replicas: int
    """Ready or on their way to it; not those that drain."""
    ready: int
    live_turns: float
    capacity: float
    refusals_per_s: float
    busy_share: float
    """CPU time used, as a share of what there is, averaged over the ready replicas."""


Policy = Callable[[Signals, Memory], tuple[int, Memory]]


@dataclass(frozen=True, slots=True)
class Traffic:
    """Ours: live turns against safe capacity, and where they will be when a GPU that is asked for
    now can speak. Up at once, down slowly, never below live turns, some always spare."""

    target: float = 0.9
    """Of the capacity, what live turns may take."""
    ahead_s: float = 100.0
    """About as long as a GPU takes to be ready."""
    slope_s: float = 60.0
    """What the slope is fitted over."""
    turn_s: float = 7.0
    """A refused turn would have been live for so long."""
    spare: int = 1
    spare_share: float = 0.05
    """Kept ready beyond that; with batch priority to fill them, spare ones cost nothing."""
    down_after_s: float = 600.0
    """Less is run only when less was enough for so long."""
    down_share: float = 0.01
    """Of the replicas, what is let go at most in one call."""

    def __call__(self, seen: Signals, memory: Memory) -> tuple[int, Memory]:
        recent = [(when, turns) for when, turns, _ in memory if seen.now_s - when <= self.slope_s]
        slope = _slope([*recent, (seen.now_s, seen.live_turns)])
        now = seen.live_turns + seen.refusals_per_s * self.turn_s
        need = self._replicas(now + max(0.0, slope) * self.ahead_s, seen.capacity)
        kept = tuple(entry for entry in memory if seen.now_s - entry[0] <= self.down_after_s)
        memory = (*kept, (seen.now_s, seen.live_turns, need))
        if need >= seen.replicas:
            return need, memory
        enough = max(count for _, _, count in memory)
        step = max(1, int(self.down_share * seen.replicas))
        return max(min(enough, seen.replicas), seen.replicas - step), memory

    def _replicas(self, turns: float, capacity: float) -> int:
        count = math.ceil(turns / (capacity * self.target))
        return count + max(self.spare, math.ceil(self.spare_share * count))


def _slope(points: Sequence[tuple[float, float]]) -> float:
    """Of the straight line that fits best; 0 for fewer than three points."""
    if len(points) < 3:
        return 0.0
    x = sum(when for when, _ in points) / len(points)
    y = sum(turns for _, turns in points) / len(points)
    across = sum((when - x) ** 2 for when, _ in points)
    return sum((when - x) * (turns - y) for when, turns in points) / across if across else 0.0


@dataclass(frozen=True, slots=True)
class Fixed:
    """So many, whatever happens."""

    replicas: int

    def __call__(self, _: Signals, memory: Memory) -> tuple[int, Memory]:
        return self.replicas, memory


@dataclass(frozen=True, slots=True)
class CpuPercent:
    """What a Kubernetes HorizontalPodAutoscaler does by its documented rule: replicas times
    (average over target), nothing within the tolerance, the most of the last five minutes."""

    target: float = 0.6
    tolerance: float = 0.1
    down_after_s: float = 300.0

    def __call__(self, seen: Signals, memory: Memory) -> tuple[int, Memory]:
        ratio = seen.busy_share / self.target
        asked = seen.replicas
        if abs(ratio - 1) > self.tolerance:
            asked = math.ceil(max(1, seen.ready) * ratio)
        kept = tuple(entry for entry in memory if seen.now_s - entry[0] <= self.down_after_s)
        memory = (*kept, (seen.now_s, seen.live_turns, asked))
        return max(count for _, _, count in memory), memory


def limited(policy: Policy, least: int, most: int) -> Policy:
    """The same within what there may be."""

    def within(seen: Signals, memory: Memory) -> tuple[int, Memory]:
        wanted, kept = policy(seen, memory)
        return min(most, max(least, wanted)), kept

    return within

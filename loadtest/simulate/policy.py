"""How many GPUs there should be: the policies, as pure functions of what can be measured.

Ours is the very function that a cluster runs; it knows no cluster, and neither does this file.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final, Protocol

from shoal.deploy.autoscale import FleetSignal, Memory, Rules, decide

STEP_AT_CAPACITY: Final = 0.6


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


class Policy(Protocol):
    """Stateless: what it has to remember it gives back, and is given next time; first ``None``."""

    def __call__(self, seen: Signals, memory: Any, /) -> tuple[int, Any]: ...


@dataclass(frozen=True, slots=True)
class Traffic:
    """Ours, as it is deployed. A fleet at its safe capacity steps in ``STEP_AT_CAPACITY`` of the
    time that a frame plays: so that capacity was measured."""

    rules: Rules

    def __call__(self, seen: Signals, memory: Any, /) -> tuple[int, Any]:
        room = max(1.0, seen.ready * seen.capacity)
        signal = FleetSignal(
            at_s=seen.now_s,
            replicas=seen.replicas,
            live_turns=seen.live_turns,
            capacity=seen.capacity,
            step_share=STEP_AT_CAPACITY * min(1.0, seen.live_turns / room),
            refusals_per_s=seen.refusals_per_s,
        )
        return decide(signal, memory or Memory(), self.rules)


@dataclass(frozen=True, slots=True)
class Fixed:
    """So many, whatever happens."""

    replicas: int

    def __call__(self, seen: Signals, memory: Any, /) -> tuple[int, Any]:
        return self.replicas, memory


@dataclass(frozen=True, slots=True)
class CpuPercent:
    """What a Kubernetes HorizontalPodAutoscaler does by its documented rule: replicas times
    (average over target), nothing within the tolerance, the most of the last five minutes."""

    target: float = 0.6
    tolerance: float = 0.1
    down_after_s: float = 300.0

    def __call__(self, seen: Signals, memory: Any, /) -> tuple[int, Any]:
        """Remembers (second, replicas asked for)."""
        earlier: tuple[tuple[float, int], ...] = memory or ()
        ratio = seen.busy_share / self.target
        asked = seen.replicas
        if abs(ratio - 1) > self.tolerance:
            asked = math.ceil(max(1, seen.ready) * ratio)
        kept = tuple(entry for entry in earlier if seen.now_s - entry[0] <= self.down_after_s)
        now = (*kept, (seen.now_s, asked))
        return max(count for _, count in now), now


def limited(policy: Policy, least: int, most: int) -> Policy:
    """The same within what there may be."""

    def within(seen: Signals, memory: Any, /) -> tuple[int, Any]:
        wanted, kept = policy(seen, memory)
        return min(most, max(least, wanted)), kept

    return within

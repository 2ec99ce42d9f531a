"""``TrafficPolicy``: the autoscaling policy that a Serve config names. Runs in Serve's controller.

``shoal.deploy.scaling:TrafficPolicy``; its ``policy_kwargs`` are the fields of ``Rules`` that
differ. What replicas say comes from ``Replica.record_autoscaling_stats``.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from typing import Any

from .autoscale import FleetSignal, Memory, Rules, decide


class TrafficPolicy:
    """Ray calls it about once a second with all that the replicas reported."""

    def __init__(self, **rules: Any) -> None:
        """:raises TypeError: there is no such rule."""
        self._rules = Rules(**rules)
        self._memory = Memory()

    def __call__(self, context: Any) -> tuple[int, dict[str, Any]]:
        signal = fleet_signal(
            context.aggregated_metrics or {}, context.target_num_replicas, time.monotonic()
        )
        if signal is None:
            return max(context.target_num_replicas, self._rules.least), {}
        wanted, self._memory = decide(signal, self._memory, self._rules)
        return wanted, {}


def fleet_signal(
    metrics: Mapping[str, Mapping[Any, float]], replicas: int, at_s: float
) -> FleetSignal | None:
    """One signal of what each replica said, by metric and replica; ``None``: nobody said a thing.

    ``replicas`` counts those that are on their way too: what they will carry is not asked for
    twice.
    """

    def of(name: str) -> list[float]:
        return list(metrics.get(name, {}).values())

    capacities = of("capacity")
    if not capacities:
        return None
    return FleetSignal(
        at_s=at_s,
        replicas=replicas,
        live_turns=sum(of("live_turns")),
        capacity=sum(capacities) / len(capacities),
        step_share=percentile(of("step_share"), 0.95),
        gap_share=percentile(of("gap_share"), 0.95),
        refusals_per_s=sum(of("refusals_per_s")),
        queue_age_s=max(of("queue_age_s"), default=0.0),
    )


def percentile(values: Iterable[float], share: float) -> float:
    """The smallest value that at least ``share`` of them do not exceed; 0 without any."""
    ordered = sorted(values)
    if not ordered:
        return 0.0
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]

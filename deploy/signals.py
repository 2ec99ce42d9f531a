"""``Signals``: how busy one replica is and how well its listeners are served, for the autoscaler.

Taken once a second or so; shares and rates are of the time since the last taking. On the loop.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Final

from shoal.engine.api import Engine
from shoal.realtime.gateway import Gateway

from .door import Door

GAP_LEAD_S: Final = 0.0
"""A listener with this much left to play, or less, hears a gap."""


@dataclass(frozen=True, slots=True)
class ReplicaSignal:
    """One replica at one moment."""

    live_turns: float
    capacity: float
    step_share: float
    """The last decode step's share of the time that its frame takes to play."""
    gap_share: float
    """Of the chunks sent, those whose listener had nothing left."""
    refusals_per_s: float
    queue_age_s: float


class Signals:
    def __init__(
        self,
        engine: Engine,
        gateway: Gateway,
        door: Door,
        capacity: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._gateway = gateway
        self._door = door
        self._capacity = capacity
        self._clock = clock
        self._taken_s = clock()
        self._refusals = 0.0
        self._chunks = (0.0, 0.0)

    def take(self) -> dict[str, float]:
        return asdict(self.signal())

    def signal(self) -> ReplicaSignal:
        info, stats, now_s = self._engine.info, self._engine.stats(), self._clock()
        elapsed_s = max(now_s - self._taken_s, 1e-3)
        refusals, (gaps, chunks) = self._count_refusals(), self._count_chunks()
        new_gaps, new_chunks = gaps - self._chunks[0], chunks - self._chunks[1]
        signal = ReplicaSignal(
            live_turns=self._door.live_turns,
            capacity=self._capacity,
            step_share=(
                stats.last_step_s * info.sample_rate / info.frame_samples
                if stats.slots_busy
                else 0.0
            ),
            gap_share=new_gaps / new_chunks if new_chunks else 0.0,
            refusals_per_s=max(0.0, refusals - self._refusals) / elapsed_s,
            queue_age_s=stats.oldest_wait_s,
        )
        self._taken_s, self._refusals, self._chunks = now_s, refusals, (gaps, chunks)
        return signal

    def _count_refusals(self) -> float:
        """Those for want of room."""
        return sum(
            sample.value
            for family in self._gateway.metrics.refusals.collect()
            for sample in family.samples
            if sample.name.endswith("_total")
            and sample.labels.get("reason") in ("capacity", "busy", "sockets")
        )

    def _count_chunks(self) -> tuple[float, float]:
        """Chunks sent to listeners with nothing left, and all of them."""
        gaps = every = 0.0
        for family in self._gateway.metrics.playout_lead_s.collect():
            for sample in family.samples:
                if sample.name.endswith("_bucket") and float(sample.labels["le"]) == GAP_LEAD_S:
                    gaps = sample.value
                elif sample.name.endswith("_count"):
                    every = sample.value
        return gaps, every

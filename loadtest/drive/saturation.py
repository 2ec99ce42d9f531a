"""Is it the server that is slow, or this tool? Measures its own event loop and CPU."""

from __future__ import annotations

import asyncio
import os
import resource
import time
from dataclasses import dataclass

from shoal.loadtest.measure.histogram import Histogram

_EVERY_S = 0.005


@dataclass(frozen=True, slots=True)
class ClientHealth:
    """One process: how late its loop woke up, and its share of one core. ``lag`` is encoded."""

    lag: bytes
    cpu_share: float


class LoopWatch:
    """Sleeps 5 ms over and over and records by how much it overslept."""

    def __init__(self) -> None:
        self._lag = Histogram()
        self._recent_worst_s = 0.0
        self._began_s = time.monotonic()
        self._cpu_s = _cpu_s()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            due_s = time.monotonic() + _EVERY_S
            await asyncio.sleep(_EVERY_S)
            late_s = max(0.0, time.monotonic() - due_s)
            self._lag.record(late_s)
            self._recent_worst_s = max(self._recent_worst_s, late_s)

    def restart(self) -> None:
        """Forget what was measured: the window begins now."""
        self._lag = Histogram()
        self._began_s = time.monotonic()
        self._cpu_s = _cpu_s()

    def take_worst_s(self) -> float:
        """The worst lag since the last call."""
        worst_s, self._recent_worst_s = self._recent_worst_s, 0.0
        return worst_s

    def health(self) -> ClientHealth:
        wall_s = max(1e-6, time.monotonic() - self._began_s)
        return ClientHealth(self._lag.encode(), (_cpu_s() - self._cpu_s) / wall_s)


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


@dataclass(frozen=True, slots=True)
class Saturation:
    """Over all processes. ``reasons`` is empty when the client had room to spare."""

    lag_p50_s: float
    lag_p99_s: float
    lag_max_s: float
    busiest_cpu_share: float
    machine_cpu_share: float | None
    reasons: tuple[str, ...]


_CPU_LIMIT = 0.75
_MACHINE_LIMIT = 0.95


def judge_client(
    lag: Histogram,
    cpu_shares: list[float],
    machine_cpu_share: float | None,
    ttfa_limit_s: float,
    ttfa_p50_s: float | None,
) -> Saturation:
    """A lag that is a tenth of what is measured, or a core nearly full, spoils the figures."""
    limit_s = max(0.005, min(ttfa_limit_s, ttfa_p50_s or ttfa_limit_s) / 10)
    p99_s = lag.percentile(99) or 0.0
    busiest = max(cpu_shares, default=0.0)
    reasons: list[str] = []
    if p99_s > limit_s:
        reasons.append(
            f"event loop up to {p99_s * 1e3:.1f} ms late at p99 (limit {limit_s * 1e3:.1f} ms)"
        )
    if busiest > _CPU_LIMIT:
        reasons.append(f"a load process used {busiest:.0%} of a core (limit {_CPU_LIMIT:.0%})")
    if machine_cpu_share is not None and machine_cpu_share > _MACHINE_LIMIT:
        reasons.append(f"all CPUs of this machine were {machine_cpu_share:.0%} busy")
    return Saturation(
        lag.percentile(50) or 0.0,
        p99_s,
        lag.percentile(100) or 0.0,
        busiest,
        machine_cpu_share,
        tuple(reasons),
    )


def machine_cpu_times() -> tuple[float, float] | None:
    """(busy, all) CPU seconds of this machine since boot; ``None`` where /proc has none."""
    try:
        with open("/proc/stat", encoding="ascii") as stat:
            fields = [float(x) for x in stat.readline().split()[1:9]]
    except (OSError, ValueError):
        return None
    ticks = os.sysconf("SC_CLK_TCK")
    idle = fields[3] + fields[4]
    return (sum(fields) - idle) / ticks, sum(fields) / ticks

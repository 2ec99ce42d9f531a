"""A whole load test: levels one after another, repeated with other seeds, or a search for the knee.

Main thread of the command; blocking.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from shoal.loadtest.measure.knee import KneeSearch
from shoal.loadtest.measure.prometheus import Stage
from shoal.loadtest.measure.totals import Totals
from shoal.loadtest.plan.recorded import mean_live

from .collector import Kept, Row, Window, pick_worst
from .fleet import FleetResult, Watcher, processes_for, run_fleet
from .line import LineCounts, now_s
from .load import Mode, WorkerPlan
from .saturation import Saturation
from .scrape import Scrape

_EXPECTED_TURN_S = 6.0
"""How long a turn may occupy a socket, to guess the processes that an open loop needs."""


@dataclass(frozen=True, slots=True)
class Repeat:
    """One seed's run of a level, in short: what shows how far figures scatter."""

    seed: str
    ttfa_p50_s: float | None
    ttfa_p95_s: float | None
    frames_per_s: float | None
    stalled: int
    failed: int
    turns: int


@dataclass(frozen=True, slots=True)
class LevelResult:
    """All repeats of one level together."""

    mode: Mode
    level: float
    totals: Totals
    repeats: list[Repeat]
    rows: list[Row] = field(repr=False)
    worst: list[Kept] = field(repr=False)
    counts: LineCounts
    saturations: list[Saturation]
    stages: list[Stage]
    growth: dict[str, float]
    scrape_problem: str
    processes: int
    complete: bool


class ScrapingWatcher(Watcher):
    """Passes everything on to ``inner`` and reads the server's metrics at the window's edges."""

    def __init__(self, inner: Watcher, metrics_url: str) -> None:
        self._inner = inner
        self._url = metrics_url
        self.scrape: Scrape | None = None

    def began(self, window: Window) -> None:
        if self._url:
            self.scrape = Scrape(self._url, window)
        self._inner.began(window)

    def progress(self, news: Any) -> None:
        self._inner.progress(news)

    def tick(self) -> None:
        self._inner.tick()


NewWatcher = Callable[[WorkerPlan, int, int], Watcher]
"""(plan, repeat number, repeats) -> who follows that run."""


def run_level(
    plan: WorkerPlan, repeats: int, processes: int, metrics_url: str, new_watcher: NewWatcher
) -> LevelResult:
    """Run one level ``repeats`` times with seeds derived from the plan's; 0 processes: choose."""
    if processes <= 0:
        streams = plan.load.level
        if plan.load.mode is Mode.OPEN:
            streams *= _EXPECTED_TURN_S
        elif plan.load.mode is Mode.REPLAY:
            streams *= mean_live(plan.load.recorded)
        processes = processes_for(plan, streams, os.cpu_count() or 1)
    results: list[FleetResult] = []
    short: list[Repeat] = []
    watcher = ScrapingWatcher(Watcher(), "")
    for number in range(repeats):
        seeded = replace(plan, seed=f"{plan.seed}.{number}" if repeats > 1 else plan.seed)
        watcher = ScrapingWatcher(new_watcher(seeded, number, repeats), metrics_url)
        result = run_fleet(seeded, processes, watcher)
        if watcher.scrape is not None:
            watcher.scrape.finish()
        results.append(result)
        short.append(_short(seeded.seed, result.totals))
        if not result.complete:
            break
    return _combined(plan, results, short, watcher.scrape)


def _short(seed: str, totals: Totals) -> Repeat:
    ttfa = totals.histograms["ttfa"]
    return Repeat(
        seed,
        ttfa.percentile(50),
        ttfa.percentile(95),
        totals.frames_per_s,
        sum(count for key, count in totals.stalled.items() if key == "0ms"),
        totals.failed,
        totals.turns,
    )


def _combined(
    plan: WorkerPlan, results: Sequence[FleetResult], short: list[Repeat], scrape: Scrape | None
) -> LevelResult:
    totals = Totals(plan.slo, plan.frame_s)
    counts = LineCounts()
    rows: list[Row] = []
    worst: list[Kept] = []
    shift_s = 0.0
    for result in results:
        totals.append(result.totals)
        rows += [replace(row, at_s=row.at_s + shift_s) for row in result.rows]
        worst += result.worst
        shift_s += result.totals.window_s
        counts.connects += result.counts.connects
        counts.reconnects += result.counts.reconnects
        counts.stray_messages += result.counts.stray_messages
    return LevelResult(
        plan.load.mode,
        plan.load.level,
        totals,
        short,
        rows[: plan.keep_rows],
        pick_worst(worst, plan.slo, plan.keep_worst),
        counts,
        [result.saturation for result in results],
        scrape.stages if scrape else [],
        scrape.growth if scrape else {},
        scrape.problem if scrape else "",
        results[-1].processes,
        all(result.complete for result in results),
    )


_START_S = 3.0
"""What starting and ending a level's processes may take."""


def longest_level_s(plan: WorkerPlan, repeats: int) -> float:
    """The most time that one level takes: its phases, and its last turn's patience."""
    timing = plan.timing
    phases_s = timing.warmup_s + timing.window_s + timing.cooldown_s
    return repeats * (phases_s + plan.line_rules.turn_timeout_s + _START_S)


def find_knee(
    search: KneeSearch,
    run: Callable[[float], LevelResult],
    level_s: float = 0.0,
    budget_s: float = math.inf,
    clock: Callable[[], float] = now_s,
) -> list[LevelResult]:
    """Run what ``search`` asks for until it knows; an interrupted level ends it.

    No level is begun that may not end within ``budget_s``: one takes ``level_s`` at most. The
    first is run in any case.
    """
    results: list[LevelResult] = []
    end_s = clock() + budget_s
    while (level := search.next_level()) is not None:
        if results and clock() + level_s > end_s:
            break
        result = run(level)
        results.append(result)
        if not result.complete:
            break
        search.record(level, result.totals.verdict().kept)
    return results

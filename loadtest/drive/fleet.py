"""Starts the load processes of one run, follows them, merges what they measured.

Runs on the main thread of the command; blocking. The processes are spawned, so nothing of the
parent leaks into what they measure.
"""

from __future__ import annotations

import math
import multiprocessing
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection as Pipe
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess

from shoal.loadtest.measure.histogram import Histogram
from shoal.loadtest.measure.totals import Totals

from .collector import Kept, Progress, Row, Window, pick_worst
from .line import LineCounts, now_s
from .load import Mode, WorkerPlan
from .saturation import Saturation, judge_client, machine_cpu_times
from .worker import Begin, Ready, Stop, WorkerResult, window_of, worker_main

_STREAMS_PER_PROCESS = 50
_START_TIMEOUT_S = 60.0
_AFTER_START_S = 0.3
_GRACE_S = 30.0


class FleetFailed(Exception):
    """A load process died or never came up; there is no result."""


@dataclass(frozen=True, slots=True)
class FleetResult:
    """One run, all processes together. ``complete`` is false when it was interrupted."""

    totals: Totals
    rows: list[Row] = field(repr=False)
    worst: list[Kept] = field(repr=False)
    counts: LineCounts
    saturation: Saturation
    window: Window
    processes: int
    complete: bool


class Watcher:
    """What the command wants to know while a run goes on; every method may be left as it is."""

    def began(self, window: Window) -> None:
        """All processes are up, load begins at ``window.start_s``."""

    def progress(self, news: Progress) -> None:
        """News of one process, about twice a second."""

    def tick(self) -> None:
        """Called several times a second."""


def processes_for(plan: WorkerPlan, streams: float, cpus: int) -> int:
    """About one process for 50 streams, at most one a CPU, never more than there are users."""
    wanted = max(1, math.ceil(streams / _STREAMS_PER_PROCESS))
    if plan.load.mode not in (Mode.OPEN, Mode.REPLAY):
        wanted = min(wanted, max(1, round(plan.load.level)))
    return min(wanted, cpus)


def run_fleet(plan: WorkerPlan, processes: int, watcher: Watcher) -> FleetResult:
    """Run ``plan`` on so many processes. KeyboardInterrupt ends it early, with what there is.

    :raises FleetFailed: a process died.
    """
    context = multiprocessing.get_context("spawn")
    pipes: list[Pipe] = []
    children: list[BaseProcess] = []
    try:
        for worker in range(processes):
            ours, theirs = context.Pipe()
            child = context.Process(
                target=worker_main,
                args=(theirs, replace(plan, worker=worker, workers=processes)),
                daemon=True,
            )
            child.start()
            theirs.close()
            pipes.append(ours)
            children.append(child)
        _await_ready(pipes)
        begin = Begin(now_s() + _AFTER_START_S)
        for pipe in pipes:
            pipe.send(begin)
        window = window_of(plan.timing, begin.at_s)
        watcher.began(window)
        results, cpu_share = _follow(pipes, window, plan, watcher)
    finally:
        for pipe in pipes:
            pipe.close()
        for child in children:
            child.join(5.0)
            if child.is_alive():
                child.kill()
                child.join()
    return _merged(results, cpu_share, window, plan)


def _await_ready(pipes: list[Pipe]) -> None:
    deadline_s = now_s() + _START_TIMEOUT_S
    for pipe in pipes:
        if not pipe.poll(max(0.0, deadline_s - now_s())):
            raise FleetFailed("a load process did not come up")
        try:
            answer = pipe.recv()
        except EOFError as gone:
            raise FleetFailed("a load process died at start; its error is above") from gone
        if not isinstance(answer, Ready):
            raise FleetFailed("a load process did not come up as it should")


def _follow(
    pipes: list[Pipe], window: Window, plan: WorkerPlan, watcher: Watcher
) -> tuple[list[WorkerResult], float | None]:
    """Results of all, and the machine's CPU share in the window where it can be known."""
    results: list[WorkerResult] = []
    open_pipes = list(pipes)
    last_s = window.stop_s + 2 * plan.line_rules.turn_timeout_s + _GRACE_S
    at_from: tuple[float, float] | None = None
    at_to: tuple[float, float] | None = None
    stopping = False
    while open_pipes:
        if now_s() > last_s:
            raise FleetFailed("a load process did not end in time")
        try:
            for pipe in wait(open_pipes, timeout=0.1):
                assert isinstance(pipe, Pipe)
                try:
                    message = pipe.recv()
                except EOFError as gone:
                    raise FleetFailed("a load process died; its error is above") from gone
                if isinstance(message, WorkerResult):
                    results.append(message)
                    open_pipes.remove(pipe)
                elif isinstance(message, Progress):
                    watcher.progress(message)
            if at_from is None and now_s() >= window.from_s:
                at_from = machine_cpu_times()
            if at_to is None and now_s() >= window.to_s:
                at_to = machine_cpu_times()
            watcher.tick()
        except KeyboardInterrupt:
            if stopping:
                raise
            stopping = True
            for pipe in open_pipes:
                pipe.send(Stop())
    if at_from is None or at_to is None or at_to[1] <= at_from[1]:
        return results, None
    return results, (at_to[0] - at_from[0]) / (at_to[1] - at_from[1])


def _merged(
    results: list[WorkerResult], cpu_share: float | None, window: Window, plan: WorkerPlan
) -> FleetResult:
    totals = Totals(plan.slo, plan.frame_s)
    lag = Histogram()
    counts = LineCounts()
    rows: list[Row] = []
    worst: list[Kept] = []
    for result in sorted(results, key=lambda result: result.worker):
        totals.merge(result.totals)
        lag.add(Histogram.decode(result.health.lag))
        rows += result.rows
        worst += result.worst
        counts.connects += result.counts.connects
        counts.reconnects += result.counts.reconnects
        counts.stray_messages += result.counts.stray_messages
    rows.sort(key=lambda row: row.at_s)
    saturation = judge_client(
        lag,
        [result.health.cpu_share for result in results],
        cpu_share,
        plan.slo.ttfa_s,
        totals.histograms["ttfa"].percentile(50),
    )
    return FleetResult(
        totals,
        rows[: plan.keep_rows],
        pick_worst(worst, plan.slo, plan.keep_worst),
        counts,
        saturation,
        window,
        len(results),
        all(result.complete for result in results),
    )

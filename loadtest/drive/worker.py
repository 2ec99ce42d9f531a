"""One load process: an event loop with its share of the users, reporting to the parent.

The parent sends the moment at which load begins, later perhaps a word to stop. Both sides speak
through one pipe; only frozen data travels.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection as Pipe

from shoal.loadtest.measure.totals import Totals
from shoal.loadtest.targets import new_target

from .callers import call
from .collector import Collector, Kept, Progress, Row, Window
from .line import Line, LineCounts, now_s
from .load import Timing, WorkerPlan
from .saturation import ClientHealth, LoopWatch

PROGRESS_EVERY_S = 0.5


@dataclass(frozen=True, slots=True)
class Ready:
    """The process is up and waits for :class:`Begin`."""

    worker: int


@dataclass(frozen=True, slots=True)
class Begin:
    """Load begins at ``at_s`` of the shared monotonic clock."""

    at_s: float


@dataclass(frozen=True, slots=True)
class Stop:
    """End the run now; what was measured so far is still wanted."""


@dataclass(frozen=True, slots=True)
class WorkerResult:
    """All that one process measured."""

    worker: int
    totals: Totals
    rows: list[Row] = field(repr=False)
    worst: list[Kept] = field(repr=False)
    counts: LineCounts
    health: ClientHealth
    complete: bool


def window_of(timing: Timing, begin_s: float) -> Window:
    """The phases of a run that begins at ``begin_s``."""
    from_s = begin_s + timing.warmup_s
    to_s = from_s + timing.window_s
    return Window(begin_s, from_s, to_s, to_s + timing.cooldown_s)


async def run_worker(
    plan: WorkerPlan,
    window: Window,
    report: Callable[[Progress], None],
    stopped: asyncio.Event,
) -> WorkerResult:
    """Put on this process's share of the load; returns after the last turn, or when stopped.

    Not before the window is over either, though its users were done, or it had none: a share of
    a CPU over no time at all means nothing.
    """
    target = new_target(plan.target, plan.options)
    collector = Collector(
        window, plan.rules, plan.slo, plan.frame_s, plan.keep_rows, plan.keep_worst
    )
    counts = LineCounts()
    watch = LoopWatch()

    def new_line() -> Line:
        return Line(target, plan.options, plan.line_rules, counts, collector.on_audio)

    def look() -> None:
        progress = collector.take_progress()
        progress.worker = plan.worker
        progress.worst_lag_s = watch.take_worst_s()
        report(progress)

    async def look_often() -> None:
        while True:
            await asyncio.sleep(PROGRESS_EVERY_S)
            look()

    async def watch_window() -> ClientHealth:
        await asyncio.sleep(max(0.0, window.from_s - now_s()))
        watch.restart()
        await asyncio.sleep(max(0.0, window.to_s - now_s()))
        return watch.health()

    calling = asyncio.create_task(call(plan, window, collector, new_line))
    health = asyncio.create_task(watch_window())
    others = [asyncio.create_task(x) for x in (watch.run(), look_often(), stopped.wait())]
    await asyncio.wait((calling, others[2]), return_when=asyncio.FIRST_COMPLETED)
    complete = calling.done()
    if complete and calling.exception() is None:
        await asyncio.wait((health, others[2]), return_when=asyncio.FIRST_COMPLETED)
    if not complete:
        shorter_s = min(now_s(), window.to_s) - window.from_s
        collector.totals.window_s = max(1e-3, shorter_s)
    for task in (calling, *others):
        task.cancel()
    await asyncio.gather(calling, *others, return_exceptions=True)
    if complete:
        calling.result()
    look()
    healthy = health.result() if health.done() else watch.health()
    health.cancel()
    await asyncio.gather(health, return_exceptions=True)
    return WorkerResult(
        plan.worker,
        collector.totals,
        list(collector.rows),
        collector.worst,
        counts,
        healthy,
        complete,
    )


def worker_main(pipe: Pipe, plan: WorkerPlan) -> None:
    """Entry of a load process. Interrupts are the parent's business."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    pipe.send(Ready(plan.worker))
    try:
        begin = pipe.recv()
    except EOFError:
        return
    if not isinstance(begin, Begin):
        return
    gc.collect()
    gc.freeze()
    result = asyncio.run(_with_pipe(pipe, plan, window_of(plan.timing, begin.at_s)))
    with contextlib.suppress(BrokenPipeError):
        pipe.send(result)
    pipe.close()


async def _with_pipe(pipe: Pipe, plan: WorkerPlan, window: Window) -> WorkerResult:
    """Run; a message on the pipe, or its end, stops the run."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()

    def heard() -> None:
        stopped.set()
        loop.remove_reader(pipe.fileno())

    def report(progress: Progress) -> None:
        try:
            pipe.send(progress)
        except BrokenPipeError:
            stopped.set()

    loop.add_reader(pipe.fileno(), heard)
    try:
        return await run_worker(plan, window, report, stopped)
    finally:
        loop.remove_reader(pipe.fileno())

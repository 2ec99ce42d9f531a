"""The four ways in which turns arrive. Run on one event loop.

Each is a coroutine that returns when no further turn should begin; turns in progress are waited
for, up to their own timeout.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

from shoal.loadtest.measure.metrics import Figures
from shoal.loadtest.measure.playout import play
from shoal.loadtest.measure.timeline import Ending, Kind
from shoal.loadtest.plan.arrivals import burst_times, next_start_s, poisson, think_s
from shoal.loadtest.plan.recorded import again_and_again, turn_plan, turn_text
from shoal.loadtest.plan.turn_plan import Script, TurnPlan
from shoal.loadtest.targets.target import TurnOver

from .collector import Collector, Window
from .line import Line, Spoken, now_s, sleep_until
from .load import Load, Mode, WorkerPlan

_INSTANT_S = 1e-6
"""Less than this is rounding, of a clock that counts from long ago."""
_BACK_OFF_S = 0.5
"""Pause of a closed-loop user whose turn failed: hammering a full server shows nothing."""

NEVER_SENT = TurnOver(Ending.TIMEOUT, "never sent: no line became free in time")
"""A turn that was due but found its line, or every line, busy for longer than a turn may take."""

NewLine = Callable[[], Line]


class ColdTurns:
    """Makes a turn cold every so often: a part of the load, not an addition to it."""

    def __init__(self, start_s: float, every_s: float) -> None:
        self._every_s = every_s
        self._next_s = start_s

    def kind_at(self, due_s: float) -> Kind:
        """What a turn that is due then shall be; call it once a turn."""
        if self._every_s <= 0 or due_s < self._next_s:
            return Kind.WARM
        self._next_s = due_s + self._every_s
        return Kind.COLD


async def call(plan: WorkerPlan, window: Window, collector: Collector, new_line: NewLine) -> None:
    """This worker's share of the load, until the window's end and the last turn's."""
    callers: list[Coroutine[Any, Any, None]] = []
    colds = ColdTurns(window.from_s, plan.load.cold_every_s if plan.worker == 0 else 0.0)
    match plan.load.mode:
        case Mode.OPEN:
            due = _poisson_turns(plan, window, colds)
            callers.append(_on_time(plan, window, collector, due, new_line))
        case Mode.REPLAY:
            due = _recorded_turns(plan, window, colds)
            callers.append(_on_time(plan, window, collector, due, new_line))
        case Mode.CLOSED:
            callers += [_closed(plan, u, window, collector, colds, new_line()) for u in plan.users]
        case Mode.CONVERSATION:
            callers += [
                _converse(plan, u, window, collector, colds, new_line()) for u in plan.users
            ]
    async with asyncio.TaskGroup() as group:
        for caller in callers:
            group.create_task(caller)


async def _speak(collector: Collector, line: Line, turn: TurnPlan) -> tuple[Spoken, Figures]:
    collector.open_turns += 1
    try:
        spoken = await line.speak(turn)
    finally:
        collector.open_turns -= 1
    return spoken, collector.add(spoken)


def _first_s(plan: WorkerPlan, user: int, window: Window) -> float:
    """Users begin one after another over the ramp, so that they do not move in step."""
    return window.start_s + plan.timing.ramp_s * user / max(1.0, plan.load.level)


async def _closed(
    plan: WorkerPlan,
    user: int,
    window: Window,
    collector: Collector,
    colds: ColdTurns,
    line: Line,
) -> None:
    """Speak, be served, speak again."""
    script = Script(plan.speech, plan.seed, user)
    load = plan.load
    first_s = due_s = _first_s(plan, user, window)
    periods = 0
    await sleep_until(due_s)
    while due_s < window.stop_s - _INSTANT_S:
        voice = script.next_voice()
        kind = colds.kind_at(due_s)
        if kind is Kind.COLD:
            await line.close()
        if load.period_s > 0:
            turn = script.next(due_s, kind, voice)
            periods += 1
            due_s = first_s + periods * load.period_s
            if now_s() > turn.scheduled_s + plan.line_rules.turn_timeout_s:
                collector.add(line.refused(turn, NEVER_SENT))
            else:
                await _speak(collector, line, turn)
            continue
        try:
            if kind is Kind.WARM:
                await line.prepare(voice)
        except TurnOver as over:
            collector.add(line.refused(script.next(now_s(), voice=voice), over))
            await asyncio.sleep(_BACK_OFF_S)
        else:
            turn = script.next(now_s() + load.think_s, kind, voice)
            _, figures = await _speak(collector, line, turn)
            if not figures.complete:
                await asyncio.sleep(_BACK_OFF_S)
        due_s = now_s()
    await line.close()


async def _converse(
    plan: WorkerPlan,
    user: int,
    window: Window,
    collector: Collector,
    colds: ColdTurns,
    line: Line,
) -> None:
    """Think, speak, listen to the end of the answer or interrupt it, think again."""
    load = plan.load
    script = Script(plan.speech, plan.seed, user)
    rng = random.Random(f"{plan.seed}/pauses/{user}")
    crowds = _crowds(plan.seed, load, window)
    voice = script.next_voice()
    free_s = _first_s(plan, user, window)
    while True:
        pause_s = think_s(rng, load.think_s)
        due_s = next_start_s(rng, free_s, pause_s, crowds, load.crowd_share)
        if due_s >= window.stop_s:
            break
        kind = colds.kind_at(due_s)
        if kind is Kind.COLD:
            await line.close()
        spoken, _ = await _speak(collector, line, script.next(due_s, kind, voice))
        free_s = max(now_s(), heard_until_s(spoken))
    await line.close()


def _crowds(seed: str, load: Load, window: Window) -> list[float]:
    rng = random.Random(f"{seed}/crowds")
    return burst_times(rng, load.crowd_every_s, window.start_s, window.stop_s)


def heard_until_s(spoken: Spoken) -> float:
    """When the listener has heard the answer out, or cut it."""
    turn = spoken.turn
    if turn.cut_s is not None:
        return turn.cut_s
    playout = play(turn.arrivals, turn.rate, 0.0, turn.ended_s)
    return playout.end_s if playout else turn.ended_s


def _poisson_turns(plan: WorkerPlan, window: Window, colds: ColdTurns) -> Iterator[TurnPlan]:
    """Turns at random times, endlessly."""
    load = plan.load
    script = Script(plan.speech, plan.seed, plan.worker)
    rng = random.Random(f"{plan.seed}/arrivals/{plan.worker}")
    for due_s in poisson(rng, load.level / plan.workers, window.start_s, load.burst):
        yield script.next(due_s, colds.kind_at(due_s))


def _recorded_turns(plan: WorkerPlan, window: Window, colds: ColdTurns) -> Iterator[TurnPlan]:
    """This worker's share of a recording, endlessly."""
    load, speech = plan.load, plan.speech
    voices = speech.voices.voices
    rng = random.Random(f"{plan.seed}/replay")
    for number, turn in enumerate(again_and_again(load.recorded, load.level)):
        if number % plan.workers == plan.worker:
            due_s = window.start_s + turn.at_s
            voice = voices[turn.voice_rank % len(voices)]
            kind = colds.kind_at(due_s)
            yield turn_plan(turn, number, plan.worker, due_s, kind, voice, rng)
        else:
            turn_text(turn, rng)  # every worker draws alike, so that no two say the same


async def _on_time(
    plan: WorkerPlan,
    window: Window,
    collector: Collector,
    turns: Iterator[TurnPlan],
    new_line: NewLine,
) -> None:
    """Each turn when it is due, on an idle line that was prepared shortly before."""
    load = plan.load
    idle: list[Line] = []
    sockets = asyncio.Semaphore(max(1, load.max_sockets // plan.workers))

    async def one(turn: TurnPlan) -> None:
        patience_s = max(0.0, turn.scheduled_s - now_s()) + plan.line_rules.turn_timeout_s
        try:
            async with asyncio.timeout(patience_s):
                await sockets.acquire()
        except TimeoutError:
            collector.add(new_line().refused(turn, NEVER_SENT))
            return
        cold = turn.kind is Kind.COLD
        line = idle.pop() if idle and not cold else new_line()
        await _speak(collector, line, turn)
        if cold:
            await line.close()
        else:
            idle.append(line)
        sockets.release()

    async with asyncio.TaskGroup() as group:
        for turn in turns:
            if turn.scheduled_s >= window.stop_s:
                break
            await sleep_until(turn.scheduled_s - load.ahead_s)
            group.create_task(one(turn))
    await asyncio.gather(*(line.close() for line in idle))

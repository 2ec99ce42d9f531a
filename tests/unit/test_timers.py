"""What is put off happens once, and not at all when it was stopped."""

from __future__ import annotations

import asyncio

from shoal.realtime.timers import Timers


async def test_a_timer_runs_unless_it_is_stopped_or_started_again() -> None:
    timers, ran = Timers(), list[str]()
    timers.start("a", 0.001, lambda: ran.append("first"))
    timers.start("a", 0.001, lambda: ran.append("again"))
    timers.start("b", 0.001, lambda: ran.append("stopped"))
    timers.stop("b")
    timers.stop("never started")
    over = asyncio.Event()
    timers.start("c", 0.002, over.set)
    await over.wait()
    assert ran == ["again"]


async def test_all_can_be_stopped_at_once() -> None:
    timers, ran = Timers(), list[str]()
    for name in "abc":
        timers.start(name, 0.0, lambda: ran.append("ran"))
    timers.stop_all()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert ran == []

"""Decode steps for the benches: all slots of a runner at one context, two steps in flight.

Knows no device and prints nothing. Runs on the thread of its caller, which is the decode thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from shoal.engine.runner import Join, Runner, SlotSampling, StepPlan

CONTEXT = 512
"""Where every slot begins."""


def pages_each(most_steps: int, page_tokens: int) -> int:
    """Pages of a slot that makes so many steps behind ``CONTEXT``."""
    return -(-(CONTEXT + most_steps) // page_tokens)


class Steps:
    """Numbers a runner's steps and runs them: one per runner. No slot makes more than
    ``most_steps`` from one ``begin`` to the next."""

    def __init__(self, runner: Runner, most_steps: int) -> None:
        self.runner = runner
        self._pages_each = pages_each(most_steps, runner.spec.page_tokens)
        self._next = 0
        self._generation = 0

    def begin(self, slots: tuple[int, ...]) -> None:
        """A first step that every slot joins in, at ``CONTEXT`` and on pages of its own."""
        column = np.zeros(1 + self.runner.spec.codebooks, np.int32)
        column[0] = 1000
        sampling = SlotSampling(temperature=0.7, top_p=0.7, top_k=30, seed=1)
        each = self._pages_each
        tables = {slot: tuple(range(slot * each, (slot + 1) * each)) for slot in slots}
        self._generation += 1
        joins = tuple(
            Join(slot, self._generation, CONTEXT, 0, column, tables[slot], sampling)
            for slot in slots
        )
        self.runner.launch(StepPlan(self._take(), slots, joins))
        self.runner.collect(self._next - 1)

    def run(
        self,
        slots: tuple[int, ...],
        count: int,
        each: Callable[[int], None] = lambda _index: None,
    ) -> list[float]:
        """Makes ``count`` steps: ``count - 2`` times, in seconds, from one step's results to the
        next one's. ``each`` is told how many were collected, but for the last one."""
        times_s: list[float] = []
        last = time.perf_counter()
        pending: list[int] = []
        for _ in range(count):
            pending.append(self._take())
            self.runner.launch(StepPlan(pending[-1], slots))
            if len(pending) == 2:
                self.runner.collect(pending.pop(0))
                now = time.perf_counter()
                times_s.append(now - last)
                last = now
                each(len(times_s))
        for step in pending:
            self.runner.collect(step)
        return times_s[1:]

    def _take(self) -> int:
        self._next += 1
        return self._next - 1

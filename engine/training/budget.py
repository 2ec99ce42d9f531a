"""Wall-clock budgets: how long a command may run, and how far along its schedule that brings it.

Schedules (learning rates, loss weights) run over a fraction 0 .. 1 of a whole training, which may
be cut into any number of runs: each is given the fractions it begins and ends at. One thread.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(slots=True)
class Budget:
    """``minutes`` from now, over which the schedule moves from ``begin`` to ``end``."""

    minutes: float
    begin: float = 0.0
    end: float = 1.0
    clock: Callable[[], float] = time.monotonic
    started_s: float = -1.0
    schedule_s: float = 0.0
    """When the schedule began to move; before, things were made ready."""

    def __post_init__(self) -> None:
        if not 0.0 <= self.begin <= self.end <= 1.0:
            raise ValueError(f"a schedule runs from 0 to 1, not from {self.begin} to {self.end}")
        if self.started_s < 0:
            self.started_s = self.clock()

    def begin_schedule(self, begin: float, end: float) -> None:
        """From now on, over what is left of the minutes, from ``begin`` to ``end``."""
        self.begin, self.end = begin, max(begin, end)
        self.schedule_s = self.spent_s

    @property
    def spent_s(self) -> float:
        return self.clock() - self.started_s

    @property
    def over(self) -> bool:
        return self.spent_s >= 60.0 * self.minutes

    @property
    def fraction(self) -> float:
        """Where the schedule stands, from ``begin`` to ``end``."""
        whole_s = max(1e-9, 60.0 * self.minutes - self.schedule_s)
        share = min(1.0, (self.spent_s - self.schedule_s) / whole_s)
        return self.begin + (self.end - self.begin) * share


def cosine(fraction: float, floor: float = 0.0) -> float:
    """1 at the start of the schedule, ``floor`` at its end."""
    return floor + (1.0 - floor) * (0.5 + 0.5 * math.cos(math.pi * fraction))


def ramp(fraction: float, begin: float, end: float) -> float:
    """0 up to ``begin``, 1 from ``end`` on, linear between."""
    return min(1.0, max(0.0, (fraction - begin) / max(1e-9, end - begin)))

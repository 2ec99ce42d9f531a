"""What a training says while it runs: averages of its losses, to the terminal and to a file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

import torch
from torch import Tensor

from .budget import Budget

EVERY = 100
"""Steps between two lines."""


class Trace:
    """Lines of ``step, fraction, means since the last line, steps a second, seconds``."""

    def __init__(self, path: Path, budget: Budget) -> None:
        self._file = path.open("a")
        self._budget = budget
        self._sums: dict[str, list[Tensor]] = {}
        self._since_s, self._count = budget.spent_s, 0
        self._silent = True

    def __enter__(self) -> Trace:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()

    def add(self, step: int, values: Mapping[str, Tensor]) -> bool:
        """Keeps the values of a step; whether a line was written."""
        for name, value in values.items():
            self._sums.setdefault(name, []).append(value)
        self._count += 1
        if step % EVERY and not self._silent:
            return False
        self._silent = False
        means = {name: float(torch.stack(kept).mean()) for name, kept in self._sums.items()}
        spent_s = self._budget.spent_s
        rate = self._count / max(1e-9, spent_s - self._since_s)
        self.say(f"step {step} at {self._budget.fraction:.3f}, {rate:.1f} a second", means)
        self._sums, self._count, self._since_s = {}, 0, spent_s
        return True

    def say(self, heading: str, values: Mapping[str, float]) -> None:
        numbers = ", ".join(f"{name} {value:.4f}" for name, value in values.items())
        line = f"{heading}: {numbers} [{self._budget.spent_s:.0f} s]"
        print(line, flush=True)
        self._file.write(line + "\n")
        self._file.flush()

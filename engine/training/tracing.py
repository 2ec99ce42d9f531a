"""What a training says while it runs: averages of its losses, to the terminal and to a file.

A run that is silent looks like one that hangs, so what takes long says now and then that it still
works (:func:`pulse`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

import torch
from torch import Tensor

from .budget import Budget

EVERY = 100
"""Steps between two lines."""
PATIENCE_S = 15.0
"""Nor is it silent for longer than this."""


@contextmanager
def pulse(doing: str, every_s: float = PATIENCE_S) -> Iterator[None]:
    """Inside it a line every ``every_s`` says what is being done, from a thread of its own."""
    done, began_s = threading.Event(), time.monotonic()

    def beat() -> None:
        while not done.wait(every_s):
            print(f"{doing}, {time.monotonic() - began_s:.0f} s", flush=True)

    thread = threading.Thread(target=beat, name="pulse", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


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
        spent_s = self._budget.spent_s
        if step % EVERY and not self._silent and spent_s - self._since_s < PATIENCE_S:
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


class Laps:
    """What a step spends its time on, for steps that are asked for; others do not wait for the
    device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._since_s: float | None = None
        self._found: dict[str, float] = {}

    def begin(self) -> None:
        """The next step is timed."""
        self._since_s, self._found = self._now_s(), {}

    def __call__(self, name: str) -> None:
        """``name`` ends here."""
        if self._since_s is not None:
            now_s = self._now_s()
            self._found[name] = 1000 * (now_s - self._since_s)
            self._since_s = now_s

    def end(self) -> dict[str, float]:
        """Milliseconds by name."""
        found, self._found, self._since_s = self._found, {}, None
        return found

    def _now_s(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.monotonic()

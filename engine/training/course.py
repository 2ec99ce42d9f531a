"""The course of a training that is cut into runs: its flags, the state it goes on from, and when
what it has is kept. Knows neither the model nor its data.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import torch

from .budget import Budget
from .states import first_state, save_state

KEPT_S = 120.0
"""Between two saved states, so that a run that is stopped loses no more."""


class Training(Protocol):
    steps: int

    def state(self, fraction: float, *, compact: bool) -> dict[str, Any]: ...

    def resume(self, state: dict[str, Any]) -> float:
        """Returns the fraction of the schedule that was reached."""
        ...


def add_flags(parser: argparse.ArgumentParser, *, out: str, seed: int) -> None:
    """What every command that trains is told. ``out``: what it leaves in that folder."""
    parser.add_argument("--out", type=Path, required=True, help=out)
    parser.add_argument("--state", type=Path, required=True, help="the whole state, to go on from")
    parser.add_argument("--carry", type=Path, help="a compact state, in pieces, as well")
    parser.add_argument("--minutes", type=float, required=True)
    parser.add_argument("--steps", type=int, default=0, help="at least, whatever the minutes")
    parser.add_argument("--begin", type=float, default=0.0, help="schedule, when there is no state")
    parser.add_argument("--end", type=float, default=1.0)
    parser.add_argument("--plain", action="store_true", help="compile nothing")
    parser.add_argument("--seed", type=int, default=seed)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")


class Course:
    """One run of a training, whose states are called ``name``: whole ones, and compact ones."""

    def __init__(
        self, name: str, training: Training, flags: argparse.Namespace, budget: Budget
    ) -> None:
        """Takes in the state that is there, if one is: then ``resumed``."""
        self.begin: float = flags.begin
        self._name, self._training = name, training
        self._flags, self._budget = flags, budget
        found = first_state((flags.state, flags.carry), name, flags.device)
        self.resumed = found is not None
        if found is not None:
            self.begin = training.resume(found[1])
            print(f"went on from {found[0]} at step {training.steps}, {self.begin:.3f}", flush=True)

    def steps(self, export: Callable[[], None]) -> Iterator[None]:
        """The schedule begins; a step is due each time this yields, until the minutes are over.
        Every two minutes and at the end, ``export`` is called and the state is saved."""
        flags, budget, training = self._flags, self._budget, self._training
        budget.begin_schedule(self.begin, flags.end)
        least = training.steps + flags.steps
        kept_s = budget.spent_s

        def keep() -> None:
            export()
            save_state(flags.state, self._name, training.state(budget.fraction, compact=False))

        while not budget.over or training.steps < least:
            yield
            if budget.spent_s - kept_s > KEPT_S:
                kept_s = budget.spent_s
                keep()
        keep()
        if flags.carry is not None:
            save_state(flags.carry, self._name, training.state(budget.end, compact=True))

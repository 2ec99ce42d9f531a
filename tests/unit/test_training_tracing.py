"""What a training says while it runs, and that it never falls silent."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch

from shoal.engine.training.budget import Budget
from shoal.engine.training.tracing import PATIENCE_S, Trace, pulse


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_slow_steps_are_told_by_the_clock_and_fast_ones_by_their_number(tmp_path: Path) -> None:
    clock = Clock()
    told: list[int] = []
    with Trace(tmp_path / "log.txt", Budget(10.0, clock=clock)) as trace:
        for step in range(1, 261):
            clock.now_s += 0.01 if step < 250 else PATIENCE_S / 4
            if trace.add(step, {"loss": torch.tensor(float(step))}):
                told.append(step)
    assert told == [1, 100, 200, 253, 257]
    lines = (tmp_path / "log.txt").read_text().splitlines()
    assert lines[2].startswith("step 200 at") and "loss 150.5000" in lines[2]


def test_a_pulse_beats_while_something_lasts_and_not_behind_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pulse("compiling", every_s=0.001):
        text = ""
        while text.count("compiling, 0 s") < 2:
            text += capsys.readouterr().out
    assert not [thread for thread in threading.enumerate() if thread.name == "pulse"]

"""A training's course: where it goes on, how long it lasts, and what it keeps when."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest
import torch

from shoal.engine.training.budget import Budget
from shoal.engine.training.course import KEPT_S, Course, add_flags
from shoal.engine.training.states import load_state
from tests.fakes import ManualClock

STEP_S = 50.0


class Counting:
    """A training that has nothing but its steps."""

    def __init__(self) -> None:
        self.steps = 0

    def state(self, fraction: float, *, compact: bool) -> dict[str, Any]:
        return {"steps": self.steps, "fraction": fraction, "compact": compact}

    def resume(self, state: dict[str, Any]) -> float:
        self.steps = state["steps"]
        return state["fraction"]


def flags_of(folder: Path, *more: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_flags(parser, out="nothing", seed=7)
    known = ["--out", str(folder / "out"), "--state", str(folder / "whole"), "--device", "cpu"]
    return parser.parse_args([*known, *more])


def run(
    folder: Path, *more: str, training: Counting | None = None
) -> tuple[Course, Counting, list[int]]:
    """Steps of 50 s each; at which of them there were exports."""
    flags, clock, training = flags_of(folder, *more), ManualClock(), training or Counting()
    budget, exports = Budget(flags.minutes, clock=clock), list[int]()
    course = Course("some", training, flags, budget)
    for _ in course.steps(lambda: exports.append(training.steps)):
        training.steps += 1
        clock.tick(STEP_S)
    return course, training, exports


def test_it_keeps_what_it_has_every_two_minutes_and_at_the_end(tmp_path: Path) -> None:
    course, training, exports = run(tmp_path, "--minutes", "5")
    assert (course.begin, course.resumed) == (0.0, False)
    assert training.steps == 6
    assert KEPT_S == 120.0 and exports == [3, 6, 6]
    kept = load_state(tmp_path / "whole", "some")
    assert kept == {"steps": 6, "fraction": 1.0, "compact": False}


def test_it_goes_on_where_a_state_says_and_leaves_a_compact_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    carry = ("--carry", str(tmp_path / "carried"))
    run(tmp_path, "--minutes", "2", "--end", "0.25", *carry)
    carried = load_state(tmp_path / "carried", "some")
    assert carried == {"steps": 3, "fraction": 0.25, "compact": True}
    for path in (tmp_path / "whole").iterdir():
        path.unlink()
    course, training, _ = run(tmp_path, "--minutes", "1", "--begin", "0.1", *carry)
    assert (course.begin, course.resumed, training.steps) == (0.25, True, 5)
    assert f"went on from {tmp_path / 'carried'} at step 3, 0.250" in capsys.readouterr().out


def test_steps_that_were_asked_for_are_made_whatever_the_minutes(tmp_path: Path) -> None:
    begun = Counting()
    begun.steps = 10
    _, training, exports = run(tmp_path, "--minutes", "0", "--steps", "2", training=begun)
    assert training.steps == 12 and exports == [12]


def test_a_run_that_is_broken_off_keeps_nothing_more(tmp_path: Path) -> None:
    flags, training, exports = flags_of(tmp_path, "--minutes", "1"), Counting(), list[None]()
    course = Course("some", training, flags, Budget(1.0, clock=ManualClock()))
    steps = course.steps(lambda: exports.append(None))
    next(steps)
    steps.close()  # type: ignore[attr-defined]
    assert exports == [] and not (tmp_path / "whole").exists()


def test_flags_have_defaults_of_their_own_command(tmp_path: Path) -> None:
    flags = flags_of(tmp_path, "--minutes", "1.5")
    assert (flags.seed, flags.begin, flags.end, flags.steps, flags.plain) == (7, 0.0, 1.0, 0, False)
    assert (flags.minutes, flags.carry) == (1.5, None)
    assert torch.device(flags.device).type == "cpu"

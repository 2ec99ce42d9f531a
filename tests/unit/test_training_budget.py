"""Schedules that are cut into runs, and what is left between two runs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from shoal.engine.training.budget import Budget, cosine, ramp
from shoal.engine.training.states import (
    Averaged,
    StateError,
    halved,
    has_state,
    load_state,
    save_state,
)


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_a_budget_moves_along_its_part_of_the_schedule() -> None:
    clock = Clock()
    budget = Budget(2.0, 0.25, 0.75, clock)
    assert (budget.fraction, budget.over) == (0.25, False)
    clock.now_s += 60
    assert budget.fraction == pytest.approx(0.5)
    clock.now_s += 60
    assert (budget.fraction, budget.over) == (pytest.approx(0.75), True)
    clock.now_s += 60
    assert budget.fraction == pytest.approx(0.75)


def test_getting_ready_takes_minutes_but_moves_no_schedule() -> None:
    clock = Clock()
    budget = Budget(2.0, clock=clock)
    clock.now_s += 60
    budget.begin_schedule(0.4, 0.8)
    assert budget.fraction == pytest.approx(0.4)
    clock.now_s += 30
    assert budget.fraction == pytest.approx(0.6)
    clock.now_s += 30
    assert (budget.fraction, budget.over) == (pytest.approx(0.8), True)


@pytest.mark.parametrize(("begin", "end"), [(0.6, 0.5), (-0.1, 0.5), (0.0, 1.1)])
def test_a_schedule_that_runs_backwards_or_outside_is_refused(begin: float, end: float) -> None:
    with pytest.raises(ValueError, match="from 0 to 1"):
        Budget(1.0, begin, end)


def test_the_rate_ends_where_it_should() -> None:
    assert [cosine(0.0), cosine(0.5), cosine(1.0)] == pytest.approx([1.0, 0.5, 0.0])
    assert cosine(1.0, 0.02) == pytest.approx(0.02)
    assert [ramp(x, 0.2, 0.4) for x in (0.1, 0.3, 0.5)] == pytest.approx([0.0, 0.5, 1.0])


def test_a_state_comes_back_from_its_pieces(tmp_path: Path) -> None:
    state = {"steps": 7, "weights": {"a": torch.arange(1000.0)}}
    paths = save_state(tmp_path, "net", state, piece_bytes=1000)
    assert len(paths) > 4
    assert all(path.stat().st_size <= 1000 for path in paths)
    found = load_state(tmp_path, "net")
    assert found["steps"] == 7
    assert torch.equal(found["weights"]["a"], state["weights"]["a"])


def test_a_smaller_state_leaves_nothing_of_a_larger_one(tmp_path: Path) -> None:
    save_state(tmp_path, "net", torch.zeros(1000), piece_bytes=1000)
    paths = save_state(tmp_path, "net", torch.ones(10), piece_bytes=100_000)
    assert sorted(tmp_path.iterdir()) == sorted(paths)
    assert torch.equal(load_state(tmp_path, "net"), torch.ones(10))


def test_a_state_that_is_not_whole_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StateError, match="missing"):
        load_state(tmp_path, "net")
    assert not has_state(tmp_path, "net")
    _, first, second, *_ = save_state(tmp_path, "net", torch.arange(1000.0), piece_bytes=2000)
    first.write_bytes(first.read_bytes()[:-1] + b"x")
    with pytest.raises(StateError, match="not those"):
        load_state(tmp_path, "net")
    second.unlink()
    with pytest.raises(StateError, match="names"):
        load_state(tmp_path, "net")


def test_an_average_follows_slowly_and_keeps_whole_numbers() -> None:
    layer = torch.nn.BatchNorm1d(1)
    average = Averaged(layer, decay=0.9)
    with torch.no_grad():
        layer.weight.fill_(11.0)
    for step in range(1000, 1010):
        average.update(step)
    assert average.tensors["weight"].item() == pytest.approx(11 - 10 * 0.9**10, rel=1e-5)
    assert average.tensors["num_batches_tracked"].dtype == torch.int64


def test_halves_are_halves_of_what_is_not_counted() -> None:
    found = halved({"a": torch.ones(2), "n": torch.tensor(3)})
    assert (found["a"].dtype, found["n"].dtype) == (torch.float16, torch.int64)

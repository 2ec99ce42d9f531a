"""Greedy decoding for the precision gate: several prompts in the same steps, each to its end."""

from __future__ import annotations

import os

import numpy as np
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before the first kernel is imported

from shoal.engine.runner import Join, PrefillChunk, StepPlan, StepResult
from shoal.loadtest.bench_precision_draws import Room, equal_frames, runner_draws

END = 9


class CountingDecoder:
    """Draws the fed column's first code plus one, until it is ``END``, which it then repeats."""

    def __init__(self) -> None:
        self.prefilled: list[PrefillChunk] = []
        self.plans: list[StepPlan] = []
        self.joins: list[Join] = []
        self._last: dict[int, int] = {}

    def prefill(self, *chunks: PrefillChunk) -> None:
        self.prefilled += chunks

    def launch(self, plan: StepPlan) -> None:
        self.plans.append(plan)
        self.joins += plan.joins
        for join in plan.joins:
            self._last[join.slot] = int(join.column[0])

    def collect(self, step: int) -> StepResult:
        plan = self.plans[step]
        for slot in plan.slots:
            self._last[slot] = min(self._last[slot] + 1, END)
        drawn = np.array([[self._last[slot], 0] for slot in plan.slots], np.int32)
        return StepResult(step, plan.slots, (1,) * len(plan.slots), drawn, drawn[:, 0] == END)


def prompt(columns: int, last: int) -> np.ndarray[tuple[int, int], np.dtype[np.int32]]:
    return np.array([[100, 100]] * (columns - 1) + [[last, 0]], np.int32)


def test_prompts_are_drawn_together_and_each_to_its_end() -> None:
    decoder = CountingDecoder()
    prompts = [prompt(5, 7), prompt(3, 1), prompt(4, 2)]
    drawn = runner_draws(decoder, Room(2, 4, END), prompts, 3)
    assert [[frame[0] for frame in one] for one in drawn] == [[8, 9], [2, 3, 4], [3, 4, 5]]
    assert [plan.step for plan in decoder.plans] == list(range(6))
    assert [plan.slots for plan in decoder.plans] == [(0, 1)] * 3 + [(0,)] * 3
    # Room for the prompt, what is drawn and what that leads to; nobody's pages are another's.
    assert [join.table for join in decoder.joins] == [(0, 1, 2), (3, 4), (0, 1, 2)]
    assert [join.position for join in decoder.joins] == [4, 2, 3]
    assert [len(chunk.columns) for chunk in decoder.prefilled] == [4, 2, 3]
    assert {join.sampling.temperature for join in decoder.joins} == {0.0}


def test_steps_end_when_all_have() -> None:
    decoder = CountingDecoder()
    assert [len(one) for one in runner_draws(decoder, Room(2, 4, END), [prompt(2, 8)] * 2, 5)] == [
        1,
        1,
    ]
    assert len(decoder.plans) == 1


def test_frames_before_the_first_difference() -> None:
    assert equal_frames([[1, 2], [3, 4]], [[1, 2], [3, 5]]) == 1
    assert equal_frames([[1, 2]], [[1, 2], [3, 5]]) == 1

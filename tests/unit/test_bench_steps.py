"""The steps that benches time: what they ask of a runner, and what is timed."""

from __future__ import annotations

import numpy as np

from shoal.engine.runner import StepPlan, StepResult
from shoal.loadtest.bench_steps import CONTEXT, Steps, pages_each
from tests.fakes import ScriptedRunner, spec

MOST = 30
PAGE = 64


class Numbered(ScriptedRunner):
    """Takes steps in order, two at most in flight, whatever is in the pages."""

    def __init__(self) -> None:
        super().__init__(spec(pages=4 * pages_each(MOST, PAGE), page_tokens=PAGE))
        self.launched: list[StepPlan] = []
        self.collected = 0

    @property
    def in_flight(self) -> int:
        return len(self.launched) - self.collected

    def launch(self, plan: StepPlan) -> None:
        assert plan.step == len(self.launched) and self.in_flight < 2
        self.launched.append(plan)

    def collect(self, step: int) -> StepResult:
        assert step == self.collected < len(self.launched)
        self.collected += 1
        slots = self.launched[step].slots
        columns = np.zeros((len(slots), 1 + self.spec.codebooks), np.int32)
        return StepResult(step, slots, (1,) * len(slots), columns, np.zeros(len(slots), np.bool_))


def test_all_slots_begin_at_one_context_on_pages_of_their_own() -> None:
    runner = Numbered()
    steps = Steps(runner, MOST)
    steps.begin((0, 1, 2, 3))
    steps.begin((0, 1, 2, 3))
    for generation, plan in enumerate(runner.launched, 1):
        joins = plan.joins
        assert [(join.slot, join.position) for join in joins] == [(s, CONTEXT) for s in range(4)]
        assert {join.generation for join in joins} == {generation}
        assert sorted(page for join in joins for page in join.table) == list(
            range(runner.spec.pages)
        )
        assert all(len(join.table) * PAGE >= CONTEXT + MOST for join in joins)
    assert runner.in_flight == 0


def test_every_step_is_made_and_times_lie_between_two_results() -> None:
    runner = Numbered()
    steps = Steps(runner, MOST)
    told: list[tuple[int, int]] = []
    for slots in ((0, 1), (0, 1, 2, 3)):  # the same runner, and slots that begin anew
        steps.begin(slots)
        before = len(runner.launched)
        times_s = steps.run(slots, MOST, lambda count: told.append((count, runner.in_flight)))
        plans = runner.launched[before:]
        assert [(plan.slots, plan.joins) for plan in plans] == [(slots, ())] * MOST
        assert len(times_s) == MOST - 2 and all(took_s > 0 for took_s in times_s)
        assert told == [(count, 1) for count in range(1, MOST)]
        assert runner.in_flight == 0
        told.clear()

from __future__ import annotations

import torch

from shoal.engine.codec.state import StatePlan, StreamState

CPU = torch.device("cpu")


def test_tails_lie_side_by_side() -> None:
    plan = StatePlan()
    first, second = plan.tail(2, 3), plan.tail(1, 4)
    assert plan.floats == 10
    flat = torch.arange(20.0).view(2, 10)
    assert first.of(flat).tolist()[1] == [[10.0, 11.0, 12.0], [13.0, 14.0, 15.0]]
    assert second.of(flat).tolist()[0] == [[6.0, 7.0, 8.0, 9.0]]
    second.of(flat).fill_(-1.0)
    assert flat[1].tolist() == [10, 11, 12, 13, 14, 15, -1, -1, -1, -1]


def test_slots_keep_their_own_state_and_reset_forgets_it() -> None:
    plan = StatePlan()
    tail = plan.tail(1, 2)
    state = StreamState(plan, 3, CPU)
    keep = torch.tensor([False, False])
    step = state.begin(torch.tensor([2, 0]), keep)
    assert step.position.tolist() == [0, 0]
    tail.of(step.after).copy_(torch.tensor([[[2.0, 2.5]], [[1.0, 1.5]]]))
    state.commit(step, 5)

    step = state.begin(torch.tensor([0, 1]), keep)
    assert step.before.tolist() == [[1.0, 1.5], [0.0, 0.0]]
    assert step.position.tolist() == [5, 0]

    step = state.begin(torch.tensor([0, 2]), torch.tensor([False, True]))
    assert step.before.tolist() == [[1.0, 1.5], [0.0, 0.0]]
    assert step.position.tolist() == [5, 0]
    # Nothing is forgotten before the call that asked for it is through.
    assert state.begin(torch.tensor([2]), torch.tensor([False])).position.tolist() == [5]


def test_a_step_that_is_not_committed_changes_no_tail() -> None:
    plan = StatePlan()
    tail = plan.tail(1, 1)
    state = StreamState(plan, 1, CPU)
    slot, keep = torch.tensor([0]), torch.tensor([False])
    tail.of(state.begin(slot, keep).after).fill_(7.0)
    assert state.begin(slot, keep).before.tolist() == [[0.0]]


def test_bytes_per_slot() -> None:
    plan = StatePlan()
    plan.tail(6, 4)
    plan.ring(2, 16, 8)
    assert StreamState(plan, 5, CPU).bytes_per_slot == 4 * (24 + 2 * 2 * 16 * 8) + 8

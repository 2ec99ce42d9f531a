from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shoal.engine.pages import PagePool
from shoal.engine.slots import SlotTable


def test_a_slot_is_free_only_after_its_last_step_was_collected() -> None:
    pool = PagePool(4)
    table = SlotTable(1, pool)
    slot = table.take()
    assert slot == 0 and table.take() is None
    pages = pool.take(2)
    assert pages is not None
    table.release(slot, pages, after=7, collected=5)
    assert table.free == 0 and pool.free == 2
    table.settle(6)
    assert table.free == 0 and pool.free == 2 and table.leaving == 1
    table.settle(7)
    assert table.free == 1 and pool.free == 4 and table.leaving == 0


def test_what_no_step_has_seen_is_free_at_once() -> None:
    table = SlotTable(2, PagePool(1))
    slot = table.take()
    table.release(slot, (), after=-1, collected=-1)
    assert table.free == 2


def test_releasing_makes_earlier_results_stale() -> None:
    table = SlotTable(1, PagePool(1))
    slot = table.take()
    assert slot is not None
    generation = table.next_generation(slot)
    table.release(slot, (), after=3, collected=3)
    again = table.take()
    assert again == slot
    assert table.generation(slot) != generation
    assert table.next_generation(slot) > generation + 1


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5))), st.integers(1, 4))
def test_no_slot_has_two_owners_and_none_is_lost(
    actions: list[tuple[bool, int]], count: int
) -> None:
    table = SlotTable(count, PagePool(1))
    owned: list[int] = []
    leaving: dict[int, int] = {}
    step = 0
    for take, number in actions:
        if take:
            slot = table.take()
            free = count - len(owned) - len(leaving)
            assert (slot is None) == (free == 0)
            if slot is not None:
                assert slot not in owned and slot not in leaving
                owned.append(slot)
        elif owned:
            slot = owned.pop(number % len(owned))
            leaving[slot] = step + number % 3
            table.release(slot, (), after=leaving[slot], collected=step - 1)
        step += 1
        table.settle(step - 1)
        leaving = {slot: after for slot, after in leaving.items() if after > step - 1}
        assert table.free == count - len(owned) - len(leaving)

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.engine.pages import PagePool


def test_pages_are_taken_shared_and_freed_with_their_last_holder() -> None:
    pool = PagePool(4)
    taken = pool.take(3)
    assert taken is not None and len(set(taken)) == 3 and pool.free == 1
    pool.share(taken[:1])
    pool.release(taken)
    assert pool.free == 3 and pool.holders(taken[0]) == 1
    pool.release(taken[:1])
    assert pool.free == pool.total == 4


def test_too_many_pages_are_not_taken_in_part() -> None:
    pool = PagePool(2)
    assert pool.take(3) is None
    assert pool.free == 2


def test_a_free_page_can_neither_be_shared_nor_released() -> None:
    pool = PagePool(1)
    with pytest.raises(AssertionError):
        pool.share([0])
    with pytest.raises(AssertionError):
        pool.release([0])


@given(st.lists(st.tuples(st.sampled_from(("take", "share", "release")), st.integers(0, 9))))
def test_the_pool_counts_like_a_list_of_holders(actions: list[tuple[str, int]]) -> None:
    pool = PagePool(10)
    held: list[int] = []  # a page as often as it is held
    for action, number in actions:
        if action == "take":
            pages = pool.take(number)
            assert (pages is None) == (number > 10 - len(set(held)))
            if pages is not None:
                assert not set(pages) & set(held)
                held.extend(pages)
        elif held:
            page = held[number % len(held)]
            if action == "share":
                pool.share([page])
                held.append(page)
            else:
                pool.release([page])
                held.remove(page)
        assert pool.free == 10 - len(set(held))
        assert [pool.holders(page) for page in range(10)] == [held.count(p) for p in range(10)]

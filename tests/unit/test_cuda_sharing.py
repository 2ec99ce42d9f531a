"""Grouping rows by what their page tables have in common: who is in, how much, and when not."""

from __future__ import annotations

import random

import numpy as np

from shoal.engine.cuda.sharing import Group, Sharing, groups_for
from shoal.engine.runner import Int32Array, Join, SlotSampling
from shoal.kernels.cascade import GROUP_ROWS

PAGE = 64
SAMPLING = SlotSampling(temperature=0.7, top_p=0.7, top_k=30, seed=1)


def join(slot: int, position: int, table: tuple[int, ...]) -> Join:
    return Join(slot, 1, position, 0, np.zeros(9, np.int32), table, SAMPLING)


def array(*slots: int) -> Int32Array:
    return np.array(slots, np.int32)


def on_voice(slot: int, voice: tuple[int, ...], position: int = 0) -> Join:
    """A context on ``voice`` with pages of its own behind it."""
    own = tuple(1000 + slot * 8 + page for page in range(8))
    return join(slot, position or len(voice) * PAGE + 3, voice + own)


def made(groups: list[Group]) -> list[tuple[list[int], int, int]]:
    return [(group.rows.tolist(), group.tokens, group.cut) for group in groups]


def test_rows_of_one_voice_are_a_group_by_their_numbers_in_the_step() -> None:
    sharing = Sharing(8, PAGE, least_saved=1)
    for slot in (1, 3, 6):
        sharing.join(on_voice(slot, (5, 4)))
    sharing.join(on_voice(2, (7,)))
    assert made(sharing.groups(array(6, 2, 1, 3))) == [([0, 2, 3], 2 * PAGE, 1)]
    assert made(sharing.groups(array(2, 1))) == []
    assert made(sharing.groups(array(1, 3))) == []


def test_what_is_shared_ends_where_tables_part_and_before_the_newest_page() -> None:
    sharing = Sharing(4, PAGE, least_saved=1)
    three = array(0, 1, 2)
    sharing.join(join(0, 300, (9, 8, 7, 1, 2)))
    sharing.join(join(2, 300, (9, 8, 7, 1, 2)))
    sharing.join(join(1, 300, (9, 8, 3, 1, 2)))
    assert made(sharing.groups(three)) == [([0, 1, 2], 2 * PAGE, 1)]
    sharing.join(join(1, 70, (9, 8, 7, 1, 2)))
    assert made(sharing.groups(three)) == [([0, 1, 2], PAGE, 1)]
    for _ in range(2 * PAGE - 70):
        sharing.ran(array(1))
    assert made(sharing.groups(three)) == [([0, 1, 2], 2 * PAGE, 1)]
    sharing.join(join(1, 63, (9, 8, 7, 1, 2)))
    assert made(sharing.groups(three)) == []


def test_contexts_that_are_cut_otherwise_are_in_groups_of_their_own() -> None:
    sharing = Sharing(16, PAGE, least_saved=1)
    for slot, position in enumerate((2047, 2560, 2047, 2561, 2048, 2047, 3000)):
        sharing.join(on_voice(slot, tuple(range(20)), position))
    rows = np.arange(16, dtype=np.int32)
    groups = made(sharing.groups(rows))
    assert groups == [([1, 3, 4, 6], 20 * PAGE, 2), ([0, 2, 5], 20 * PAGE, 1)]
    sharing.ran(rows)
    assert made(sharing.groups(rows)) == [([0, 1, 2, 3, 4, 5, 6], 20 * PAGE, 2)]


def test_many_rows_are_spread_over_full_groups() -> None:
    sharing = Sharing(64, PAGE, least_saved=1)
    for slot in range(40):
        sharing.join(on_voice(slot, (5, 4)))
    groups = sharing.groups(np.arange(40, dtype=np.int32))
    assert sorted(len(group.rows) for group in groups) == [13, 13, 14]
    assert sorted(int(row) for group in groups for row in group.rows) == list(range(40))


def test_what_would_not_pay_is_left_alone_and_no_more_groups_than_fit() -> None:
    sharing = Sharing(16, PAGE, least_saved=3 * PAGE)
    for slot in (0, 1, 2):
        sharing.join(on_voice(slot, (5,)))
    assert sharing.groups(array(0, 1, 2)) == []
    for slot in (0, 1, 2):
        sharing.join(on_voice(slot, (5, 4)))
    assert made(sharing.groups(array(0, 1, 2))) == [([0, 1, 2], 2 * PAGE, 1)]
    for slot in range(3, 9):
        sharing.join(on_voice(slot, (slot // 3 * 100, 1, 2, 3)))
    assert groups_for(9) == 1
    assert len(sharing.groups(np.arange(9, dtype=np.int32))) == 1


def test_a_slot_that_starts_anew_leaves_its_family() -> None:
    sharing = Sharing(4, PAGE, least_saved=1)
    three = array(0, 1, 2)
    for slot in (0, 1, 2):
        sharing.join(on_voice(slot, (5, 4)))
    sharing.join(on_voice(1, (6, 4)))
    assert sharing.groups(three) == []
    sharing.join(on_voice(0, (6, 4)))
    sharing.join(on_voice(2, (6, 4)))
    assert made(sharing.groups(three)) == [([0, 1, 2], 2 * PAGE, 1)]


def test_any_run_of_joins_groups_only_what_is_the_same() -> None:
    draw = random.Random(3)
    sharing = Sharing(32, PAGE, least_saved=1)
    tables: dict[int, tuple[int, ...]] = {}
    positions: dict[int, int] = {}
    seen = 0
    for _ in range(300):
        slot = draw.randrange(32)
        voice = tuple(range(draw.randrange(3) * 10, 30))[: draw.randrange(1, 6)]
        table = voice + tuple(draw.randrange(100) for _ in range(4))
        tables[slot], positions[slot] = table, draw.randrange(len(table) * PAGE)
        sharing.join(join(slot, positions[slot], table))
        slots = draw.sample(sorted(tables), draw.randrange(1, len(tables) + 1))
        groups = sharing.groups(np.array(slots, np.int32))
        rows = [int(row) for group in groups for row in group.rows]
        assert len(rows) == len(set(rows)) <= len(slots)
        assert len(groups) <= groups_for(len(slots))
        for group in groups:
            pages, odd = divmod(group.tokens, PAGE)
            members = [slots[row] for row in group.rows]
            assert pages > 0
            assert odd == 0
            assert 3 <= len(members) <= GROUP_ROWS
            assert len({tables[slot][:pages] for slot in members}) == 1
            assert all(group.tokens <= positions[slot] for slot in members)
            seen += 1
        sharing.ran(np.array(slots, np.int32))
        for slot in slots:
            positions[slot] += 1
    assert seen > 100

"""Which rows of a step have their first pages in common, so that attention reads those once.

Owns what the host knows of slots' page tables and positions for that, nothing of what is in them.
Two rows share what their tables agree in from the first page on: a voice's prefix, as a rule. That
is only a matter of speed - any grouping gives the same bits - so a stale view costs no more than
time. Decode's thread alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shoal.kernels.cascade import GROUP_ROWS
from shoal.kernels.pages import cut_on_host

from ..runner import Int32Array, Join

LEAST_SAVED = 12_288
"""Tokens, over all rows, that need not be read again: with fewer, the second kernel of a layer
costs more than it saves."""
LEAST_MEMBERS = 3
"""Slots of a family that is looked at."""


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """Rows (their numbers in the step) whose first ``tokens`` tokens are the same, cut alike."""

    rows: Int32Array
    tokens: int
    cut: int

    @property
    def saved(self) -> int:
        """Tokens that are not read again."""
        return (len(self.rows) - 1) * self.tokens


def groups_for(rows: int) -> int:
    """Groups that a step of ``rows`` rows has room for."""
    return max(1, rows // 8)


class Sharing:
    """Families of slots that begin with the same page."""

    def __init__(self, slots: int, page_tokens: int, least_saved: int = LEAST_SAVED) -> None:
        self._page_tokens = page_tokens
        self._least_saved = least_saved
        self._first = np.full(slots, -1, np.int32)
        self._common = np.zeros(slots, np.int32)
        self._positions = np.zeros(slots, np.int64)
        self._tables: list[tuple[int, ...]] = [()] * slots
        # A family's members, its latest table, and the one that the others are held against: what
        # two tables have in common with a third, still in use or not, they have with each other.
        self._members: dict[int, int] = {}
        self._latest: dict[int, tuple[int, ...]] = {}
        self._measures: dict[int, tuple[int, ...]] = {}

    def join(self, join: Join) -> None:
        """A slot starts anew."""
        slot, table = join.slot, join.table
        left = int(self._first[slot])
        if left >= 0:
            self._members[left] -= 1
            if not self._members[left]:
                del self._members[left], self._latest[left], self._measures[left]
        self._positions[slot] = join.position
        self._tables[slot] = table
        if not table:
            self._first[slot] = -1
            return
        first = table[0]
        self._first[slot] = first
        self._members[first] = self._members.get(first, 0) + 1
        self._common[slot] = _agree(self._measures.setdefault(first, table), table)
        if _agree(self._latest.get(first, table), table) > self._common[slot]:
            # The page has come to begin another voice than the slots of old had.
            self._measures[first] = table
            for member in np.flatnonzero(self._first == first):
                self._common[member] = _agree(table, self._tables[member])
        self._latest[first] = table

    def ran(self, slots: Int32Array) -> None:
        """A step of these slots was launched."""
        self._positions[slots] += 1

    def groups(self, slots: Int32Array) -> list[Group]:
        """Groups of a step with these slots as rows, most sharing first and as many as the step has
        room for; none when it would not pay. Every row is in one group at most."""
        largest = [first for first, members in self._members.items() if members >= LEAST_MEMBERS]
        if not largest:
            return []
        # Bounds the time that this takes of a step: families beyond would find no room.
        largest.sort(key=lambda first: -self._members[first])
        firsts = self._first[slots]
        found: list[Group] = []
        for first in largest[: groups_for(len(slots))]:
            rows = np.flatnonzero(firsts == first).astype(np.int32)
            if len(rows) < LEAST_MEMBERS:
                continue
            lengths = self._positions[slots[rows]] + 1
            longest, shortest = cut_on_host(int(lengths.max())), cut_on_host(int(lengths.min()))
            if longest == shortest:
                found.extend(self._cut_up(slots, rows, longest))
                continue
            cuts = np.array([cut_on_host(int(length)) for length in lengths])
            for cut in range(shortest, longest + 1):
                found.extend(self._cut_up(slots, rows[cuts == cut], cut))
        found.sort(key=lambda group: -group.saved)
        found = found[: groups_for(len(slots))]
        return found if sum(group.saved for group in found) >= self._least_saved else []

    def _cut_up(self, slots: Int32Array, rows: Int32Array, cut: int) -> Sequence[Group]:
        """Groups out of rows of one family and one cut."""
        groups: list[Group] = []
        count = -(-len(rows) // GROUP_ROWS)
        for part in range(count):
            some = rows[len(rows) * part // count : len(rows) * (part + 1) // count]
            if len(some) < LEAST_MEMBERS:
                continue
            at = slots[some]
            pages = min(
                int(self._common[at].min()), int(self._positions[at].min()) // self._page_tokens
            )
            if pages:
                groups.append(Group(some, pages * self._page_tokens, cut))
        return groups


def _agree(left: tuple[int, ...], right: tuple[int, ...]) -> int:
    """How many pages two tables have in common from the first on."""
    for index, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return index
    return min(len(left), len(right))

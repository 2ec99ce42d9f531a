"""Who sits where: fixed decode slots, each with a generation.

Owns the free list and the delayed release: a slot (and its pages) may be used again only once the
last step that was launched with it has been collected. One thread: decode's.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from .pages import PagePool


@dataclass(slots=True)
class Leaving:
    """What becomes free after step ``after`` was collected."""

    after: int
    slot: int | None
    pages: tuple[int, ...]


class SlotTable:
    """Slots ``0 .. count - 1``. A generation is never used twice on one slot."""

    def __init__(self, count: int, pool: PagePool) -> None:
        self._free = list(range(count - 1, -1, -1))
        self._generations = [0] * count
        self._pool = pool
        self._leaving: deque[Leaving] = deque()

    @property
    def total(self) -> int:
        return len(self._generations)

    @property
    def free(self) -> int:
        return len(self._free)

    @property
    def leaving(self) -> int:
        """Releases that wait for a step."""
        return len(self._leaving)

    def take(self) -> int | None:
        """A free slot, or None."""
        return self._free.pop() if self._free else None

    def next_generation(self, slot: int) -> int:
        """A fresh generation for ``slot``: results of any earlier one are stale from here on."""
        self._generations[slot] += 1
        return self._generations[slot]

    def generation(self, slot: int) -> int:
        return self._generations[slot]

    def release(self, slot: int | None, pages: tuple[int, ...], after: int, collected: int) -> None:
        """Free ``slot`` and let go of ``pages`` once step ``after`` has been collected."""
        if slot is not None:
            self.next_generation(slot)
        self._leaving.append(Leaving(after, slot, pages))
        self.settle(collected)

    def settle(self, collected: int) -> None:
        """Carry out the releases that ``collected`` (the last collected step) allows."""
        waiting: deque[Leaving] = deque()
        for leaving in self._leaving:
            if leaving.after > collected:
                waiting.append(leaving)
                continue
            if leaving.slot is not None:
                assert leaving.slot not in self._free, f"slot {leaving.slot} freed twice"
                self._free.append(leaving.slot)
            self._pool.release(leaving.pages)
        self._leaving = waiting

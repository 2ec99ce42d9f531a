"""KV pages and who holds them: plain reference counts over page numbers.

Owns nothing but the numbers; what lies in a page is the runner's. One thread: decode's.
"""

from __future__ import annotations

from collections.abc import Iterable


class PagePool:
    """Pages ``0 .. count - 1``. Every page is free or has a positive count."""

    def __init__(self, count: int) -> None:
        self._free = list(range(count - 1, -1, -1))
        self._holders = [0] * count

    @property
    def total(self) -> int:
        return len(self._holders)

    @property
    def free(self) -> int:
        return len(self._free)

    def holders(self, page: int) -> int:
        """How many hold ``page``; 0 when it is free."""
        return self._holders[page]

    def take(self, count: int) -> tuple[int, ...] | None:
        """``count`` free pages, each now held once; None, and nothing taken, without."""
        if count > len(self._free):
            return None
        pages = tuple(self._free.pop() for _ in range(count))
        for page in pages:
            self._holders[page] = 1
        return pages

    def share(self, pages: Iterable[int]) -> None:
        """Hold pages that somebody holds already once more."""
        for page in pages:
            assert self._holders[page] > 0, f"page {page} is free"
            self._holders[page] += 1

    def release(self, pages: Iterable[int]) -> None:
        """Let go of pages; one that nobody holds any more is free."""
        for page in pages:
            assert self._holders[page] > 0, f"page {page} is free"
            self._holders[page] -= 1
            if not self._holders[page]:
                self._free.append(page)

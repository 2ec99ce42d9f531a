"""Where a segment's text stands in the text that was pushed to its stream.

A segment is not all that was pushed: white space around it, code, control characters and marks
that were never finished are left out. :class:`Trail` counts both, so that a place in a segment can
be told as a place in what the client sent. Counts only, in code points; knows no text, no rules and
no time. A trail belongs to one thread, the decode thread; a span is a constant.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import takewhile

MAX_GAPS = 4096
"""So many gaps of the text that waits are told apart; what more is left out counts to the last."""


@dataclass(frozen=True, slots=True)
class Span:
    """Where a segment's text stands among the characters that were pushed to its stream.

    ``begin``: so many were pushed before its first one. ``gaps``, rising: in front of the
    character at an index of the text, so many were left out.
    """

    begin: int = 0
    gaps: tuple[tuple[int, int], ...] = ()

    def place(self, end: int) -> int:
        """How many characters had been pushed where ``end`` characters of the text end."""
        return self.begin + end + sum(count for at, count in self.gaps if at < end)


class Trail:
    """One stream's. Every character that was pushed is kept or left out, in order; kept ones are
    taken from the front."""

    def __init__(self) -> None:
        self._kept = 0
        self._taken = 0
        self._lost = 0  # left out in front of the next to be taken
        self._gaps: deque[tuple[int, int]] = deque()  # behind how many kept, how many left out

    def keep(self, text: str) -> str:
        """``text`` follows."""
        self._kept += len(text)
        return text

    def leave_out(self, count: int) -> None:
        """``count`` characters follow that nobody will take."""
        if self._gaps and (self._gaps[-1][0] == self._kept or len(self._gaps) >= MAX_GAPS):
            at, before = self._gaps.pop()
            self._gaps.append((at, before + count))
        elif self._kept == self._taken:
            self._lost += count
        elif count:
            self._gaps.append((self._kept, count))

    def take(self, count: int) -> None:
        """The next ``count`` that were kept are gone."""
        self._taken += count
        while self._gaps and self._gaps[0][0] <= self._taken:
            self._lost += self._gaps.popleft()[1]

    def span(self, chars: int) -> Span:
        """Of the next ``chars`` that were kept."""
        inside = takewhile(lambda gap: gap[0] < self._taken + chars, self._gaps)
        gaps = tuple((at - self._taken, count) for at, count in inside)
        return Span(self._taken + self._lost, gaps)

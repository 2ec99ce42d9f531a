"""``SentText``: what a client sent of a turn's text, as far back as it may be asked for again.

Counts characters as code points from the turn's first. Knows nothing of segments or audio. Owned by
the event loop's thread.
"""

from __future__ import annotations

from collections import deque
from typing import Final

KEPT_CHARS: Final = 100_000
"""So much text before a place is kept when it is forgotten up to there."""
_PIECE_CHARS: Final = 1024


class SentText:
    """One turn's."""

    def __init__(self) -> None:
        self.chars = 0
        """Sent in all."""
        self._pieces: deque[str] = deque()
        self._begin = 0  # so many were sent before what is kept

    def push(self, text: str) -> None:
        self.chars += len(text)
        if self._pieces and len(self._pieces[-1]) < _PIECE_CHARS:
            self._pieces[-1] += text
        else:
            self._pieces.append(text)

    def upto(self, chars: int) -> str:
        """The first ``chars`` characters, or the last ``KEPT_CHARS`` of them."""
        kept = "".join(self._pieces)[: max(0, chars - self._begin)]
        return kept[-KEPT_CHARS:]

    def forget(self, chars: int) -> None:
        """Nobody asks for less than the first ``chars`` any more."""
        while self._pieces and self._begin + len(self._pieces[0]) <= chars - KEPT_CHARS:
            self._begin += len(self._pieces.popleft())

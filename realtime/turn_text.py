"""``TurnText``: a turn's text on its way through the engine, and the flushes asked for within it.

Tells how much of it waits. Knows neither effects nor audio. Pure; owned by the event loop's thread.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

from shoal.proto.messages import MAX_TEXT_CHARS, ClientId

from .sent_text import SentText

MAX_MARKS: Final = 512


@dataclass(frozen=True, slots=True)
class Mark:
    """A flush that the engine was told of. ``worded``: non-blank text since the mark before;
    ``chars``: sent before it in the whole turn."""

    worded: bool
    id: ClientId | None
    chars: int


class TurnText:
    """See the module. ``worded``: whether any non-blank text came at all."""

    def __init__(self, sent: SentText) -> None:
        """``sent`` is told what the engine is given."""
        self.sent = sent
        self.worded = False
        self._marks: deque[Mark] = deque()
        self._unflushed = False  # text since the last mark
        self._unspoken = False  # non-blank text since the last mark
        self._done_chars = 0  # the engine is through with, or at
        self._sounded = False  # anything to hear since the last mark that was reached
        self._silence = 0  # samples that were silent, before that

    # From the client ----------------------------------------------------------------------------

    def push(self, text: str) -> bool:
        """False where with ``text`` too much would wait to be spoken: it was not taken."""
        if self.sent.chars - self._done_chars + len(text) > MAX_TEXT_CHARS:
            return False
        self.sent.push(text)
        self._unflushed = True
        if not text.isspace():
            self._unspoken = self.worded = True
        return True

    def mark(self, mark_id: ClientId | None) -> None:
        """The engine is told of a flush."""
        self._marks.append(Mark(self._unspoken, mark_id, self.sent.chars))
        self._unflushed = self._unspoken = False

    # From the engine ----------------------------------------------------------------------------

    def began(self, begin: int, end: int) -> None:
        """A segment is spoken from now on: all between so many characters and so many."""
        self._done_chars = max(self._done_chars, end)
        self.sent.forget(begin)

    def sounded(self, samples: bytes) -> None:
        """Audio, s16le; what is only zeros is no sound."""
        if self._sounded or any(samples):
            self._sounded = True
        else:
            self._silence += len(samples) // 2

    def reached(self) -> Mark:
        """The next mark: all before it was spoken."""
        mark = self._marks.popleft() if self._marks else Mark(False, None, 0)
        self._done_chars = max(self._done_chars, mark.chars)
        return mark

    def lacking(self, mark: Mark | None, least: int) -> int:
        """Samples of silence that are missing until the text before ``mark``, or before the end,
        has ``least``, if it had any and made no sound. Asked once each."""
        worded = self._unspoken if mark is None else mark.worded
        lacks = worded and not self._sounded
        missing = max(0, least - self._silence) if lacks else 0
        self._sounded, self._silence = False, 0
        return missing

    # What is so ---------------------------------------------------------------------------------

    @property
    def full(self) -> bool:
        """No further mark may be set."""
        return len(self._marks) >= MAX_MARKS

    @property
    def unflushed(self) -> bool:
        """Text came since the last mark."""
        return self._unflushed

    @property
    def waits(self) -> bool:
        """There are text or marks that the engine is not through with, as far as that is known."""
        return bool(self._marks) or self._unflushed

    @property
    def owed(self) -> list[ClientId]:
        """The ids of marks that were not reached."""
        return [mark.id for mark in self._marks if mark.id is not None]

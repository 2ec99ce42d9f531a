"""``Inbox``: what one context's session was told and has not read, in order.

Pieces of text that follow each other are kept as one, and how much may wait is bounded, so that a
session that cannot begin yet holds up nobody who talks to it. Knows no session and no wire. Owned
by the event loop's thread.
"""

from __future__ import annotations

import io
from collections import deque

from shoal.proto.messages import MAX_TEXT_CHARS, Cancel, ClientMessage, Flush, Start, Text

from .turn_text import MAX_MARKS


class Inbox:
    """See the module. After too much was put in only a ``Cancel`` counts."""

    def __init__(self) -> None:
        self._messages: deque[ClientMessage | io.StringIO] = deque()
        self._chars = 0
        self._flushes = 0
        self._refusal: str | None = None
        self._refused = False

    def __len__(self) -> int:
        """Messages that wait; text in a row is one."""
        return len(self._messages)

    def put(self, message: ClientMessage) -> None:
        """A cancel takes the place of what was put in before it and is still unread."""
        match message:
            case Cancel():
                start = next((known for known in self._messages if isinstance(known, Start)), None)
                self._clear()
                if start is not None:
                    self._messages.append(start)
                self._messages.append(message)
            case _ if self._refused:
                pass
            case Text(text=text):
                self._put_text(text)
            case Flush(id=mark) if self._flushes >= MAX_MARKS:
                if mark is not None:  # else what comes next is spoken with what came before
                    self._refuse(f"over {MAX_MARKS} flushes wait")
            case _:
                self._flushes += isinstance(message, Flush)
                self._messages.append(message)

    def take(self) -> ClientMessage | str | None:
        """The next message; ``None`` when there is none. Once, after too much was put in, a string
        instead: why the session cannot have it, in the client's terms."""
        if self._refusal is not None:
            refusal, self._refusal = self._refusal, None
            return refusal
        if self._refused or not self._messages:
            return None
        message = self._messages.popleft()
        if isinstance(message, io.StringIO):
            text = message.getvalue()
            self._chars -= len(text)
            return Text(text)
        self._flushes -= isinstance(message, Flush)
        return message

    def _put_text(self, text: str) -> None:
        self._chars += len(text)
        if self._chars > MAX_TEXT_CHARS:
            self._refuse(f"over {MAX_TEXT_CHARS} characters wait to be spoken")
            return
        last = self._messages[-1] if self._messages else None
        if not isinstance(last, io.StringIO):
            last = io.StringIO(newline="")  # as it is
            self._messages.append(last)
        last.write(text)

    def _refuse(self, why: str) -> None:
        start = [known for known in self._messages if isinstance(known, Start)]
        self._clear()
        self._messages.extend(start)
        self._refusal, self._refused = why, True

    def _clear(self) -> None:
        self._messages.clear()
        self._chars = self._flushes = 0
        self._refusal, self._refused = None, False

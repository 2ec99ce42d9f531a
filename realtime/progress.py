"""Shows long work on a terminal: one line rewritten in place, or plain lines where that is a file.

Knows nothing of what the work is. Used by the commands, on the thread that calls it.
"""

from __future__ import annotations

from typing import TextIO

_CLEAR_LINE = "\r\x1b[K"


class Progress:
    """Call it with what is being done now; ``done`` before anything else is printed."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._in_place = stream.isatty()
        self._last = ""

    def __call__(self, doing: str) -> None:
        if doing == self._last:
            return
        self._last = doing
        self._stream.write(f"{_CLEAR_LINE}{doing}" if self._in_place else f"{doing}\n")
        self._stream.flush()

    def done(self) -> None:
        """Remove the line, so that what follows starts on a clean one. Idempotent."""
        if self._in_place and self._last:
            self._stream.write(_CLEAR_LINE)
            self._stream.flush()
        self._last = ""

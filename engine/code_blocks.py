"""``CodeBlocks``: takes fenced code out of text that comes in pieces; nobody wants it read aloud.

Owns what of the current line may still become a fence. A fence is a line of three or more backticks
or tildes, in front of which only white space stands, and behind which the name of a language may;
one of the same kind, at least as long, ends the block. What is never ended goes to the end of the
text, as in Markdown. Knows nothing of sentences or time. Not thread-safe: one thread owns it.
"""

from __future__ import annotations

import re

from .spans import Trail

_MAX_LINE = 120
_MAY_OPEN = re.compile(r"`{1,2}|~{1,2}|`{3,}[^`]*|~{3,}[^~]*")
_OPENS = re.compile(r"`{3,}|~{3,}")


class CodeBlocks:
    """What is let through depends on the text alone, not on how it was cut into pieces."""

    def __init__(self, trail: Trail) -> None:
        """``trail`` is told what is let through and what is not, in order."""
        self._trail = trail
        self._blank = True  # nothing but white space was let through of the current line
        self._held = ""
        self._inside: list[tuple[int, int]] = []  # behind how much of it, how many are left out
        self._fence = ""

    def leave_out(self, count: int) -> None:
        """So many characters stand here that are no text."""
        if self._fence or not self._held:
            self._trail.leave_out(count)
            return
        at = len(self._held)
        if self._inside and self._inside[-1][0] == at:
            count += self._inside.pop()[1]
        self._inside.append((at, count))

    def without(self, text: str) -> str:
        """``text`` without code, and without an end that may be the beginning of a fence."""
        plain = not (self._fence or self._held) and "`" not in text and "~" not in text
        if plain:
            last = text.rpartition("\n")
            self._blank = (self._blank or bool(last[1])) and (not last[2] or last[2].isspace())
            return self._trail.keep(text)
        said: list[str] = []
        lines = text.split("\n")
        for line in lines[:-1]:
            said.append(self._part(line))
            said.append(self._line_end("\n"))
        said.append(self._part(lines[-1]))
        return "".join(said)

    def boundary(self) -> str:
        """The text stops here: what was held and is no fence. A line begins behind it."""
        return self._line_end("")

    def _part(self, part: str) -> str:
        if self._fence:
            self._held = (self._held + part)[:_MAX_LINE]
            self._trail.leave_out(len(part))
            return ""
        if not (self._blank and part):
            return self._trail.keep(part)
        spaces = ""
        if not self._held:
            code = part.lstrip()
            spaces, part = part[: len(part) - len(code)], code
        held = self._held + part
        if not held or (len(held) <= _MAX_LINE and _MAY_OPEN.fullmatch(held)):
            self._held = held
            return self._trail.keep(spaces)
        self._held, self._blank = "", False
        return self._trail.keep(spaces) + self._let_through(held)

    def _line_end(self, end: str) -> str:
        held, self._held, self._blank = self._held, "", True
        if self._fence:
            mark = held.strip()
            if len(mark) >= len(self._fence) and not mark.strip(self._fence[0]):
                self._fence = ""
            self._trail.leave_out(len(end))
            return ""
        if opened := _OPENS.match(held):
            self._fence = opened[0]
            inside = sum(count for _, count in self._inside)
            self._inside.clear()
            self._trail.leave_out(len(held) + inside + len(end))
            return ""
        return self._let_through(held + end)

    def _let_through(self, text: str) -> str:
        """``text`` begins with what was held."""
        begin = 0
        for at, count in self._inside:
            self._trail.keep(text[begin:at])
            self._trail.leave_out(count)
            begin = at
        self._inside.clear()
        self._trail.keep(text[begin:])
        return text

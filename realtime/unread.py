"""What a voice that reads Latin letters only leaves out of a text, as a remark to its sender.

Knows no sessions and no voices. Pure; any thread.
"""

from __future__ import annotations

import re
from typing import Final

REMARK: Final = (
    "letters of other scripts than Latin are left out of what is spoken: this voice reads English"
)
# Other scripts from Cyrillic on, without the Latin letters and signs that lie among them. One Greek
# letter is a sign of a formula and has a name.
_OTHER = re.compile(
    "[\u0400-\u1cff\u2c00-\u2c5f\u2c80-\ua71f\ua800-\uab2f\uabc0-\ud7ff\uf900-\ufaff\ufb13-\ufdff"
    "\ufe70-\ufefc\uff66-\uffdc\U00010000-\U0001d3ff\U0001d800-\U0001efff\U00020000-\U0003ffff]+"
    "|[\u0370-\u03ff\u1f00-\u1fff]{2,}"
)


def nothing_unread(text: str) -> str:
    """For a voice that reads whatever there is."""
    return ""


def unread_by_latin(text: str) -> str:
    """The remark where ``text`` has letters that will not be spoken, else ""."""
    if text.isascii():
        return ""
    found = any(any(map(str.isalpha, part)) for part in _OTHER.findall(text))
    return REMARK if found else ""

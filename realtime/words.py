"""Where the words of a text are, and about how long each takes to say. Pure; any thread.

Lengths are in units of about one spoken letter; what a unit is in seconds is for ``alignment.py``
to find out. Knows no audio, and no language but by its script.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass, field
from typing import Final

DIGIT_UNITS: Final = 4.0  # a digit is a short word
CAPITAL_UNITS: Final = 2.5  # of an acronym, which is spelled
WORD_UNITS: Final = 1.0  # what a word takes beyond its letters
SHORT_PAUSE: Final = 3.0
LONG_PAUSE: Final = 6.0
MAX_ACRONYM: Final = 5

# What the engine's front ends take out of a text or keep as directions to the model.
_MARK: Final = re.compile(
    r"<\|[^<>|]{0,200}\|>|\[[^\[\]\n]{0,200}\]|<(?!https?:|mailto:)[/!]?[A-Za-z][^<>\n]{0,200}>"
)
# Scripts that put no spaces between words, and how many units one of their characters takes.
_UNSPACED: Final = re.compile(
    "[\u0e00-\u0e7f\u0e80-\u0eff\u1000-\u109f\u1780-\u17ff"  # Thai, Lao, Burmese, Khmer
    "\u3040-\u30ff\u31f0-\u31ff\uff66-\uff9f"  # kana
    "\u3005\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"  # Han
)
_HAN_UNITS: Final = 3.4
_KANA_UNITS: Final = 2.0
_THAI_UNITS: Final = 1.2
_SYLLABLE_UNITS: Final = 2.6  # of Hangul and of Indic scripts
_LONG: Final = frozenset(".!?;:\u2026\u3002\uff01\uff1f\uff1b\uff1a\u0964\u061f\n")
_SHORT: Final = frozenset(',\u2014\u2013()\u3001\uff0c\u060c"\u201c\u201d')
_INSIDE: Final = frozenset("'\u2019-_.,:/@&+%$\u20ac\u00a3")


@dataclass(frozen=True, slots=True)
class Spoken:
    """One word: its text and place, its length in units, and the pause that follows it."""

    text: str = field(repr=False)
    begin: int
    end: int
    units: float
    pause_units: float = 0.0


def words_of(text: str) -> list[Spoken]:
    """The words of ``text`` in order; each character of a script without spaces is one.

    Punctuation and marks are in none of them. A combining mark belongs to what it follows.
    """
    hidden = _MARK.sub(lambda match: " " * len(match.group()), text)
    found: list[Spoken] = []
    at = 0
    while at < len(hidden):
        if not _is_spoken(hidden[at]):
            at += 1
            continue
        end = _end_of_word(hidden, at)
        pause = _pause_after(hidden, end)
        found.append(Spoken(text[at:end], at, end, _units(text[at:end]), pause))
        at = end
    return found


def _is_spoken(character: str) -> bool:
    return character.isalnum() or unicodedata.category(character) == "Mn"


def _end_of_word(text: str, start: int) -> int:
    end = start + 1
    alone = _UNSPACED.match(text[start]) is not None
    while end < len(text):
        character = text[end]
        if unicodedata.category(character) in ("Mn", "Mc", "Cf"):
            end += 1
        elif alone or _UNSPACED.match(character):
            break
        elif character.isalnum():
            end += 1
        elif character in _INSIDE and _joins(text, end):
            end += 1
        elif character in "%$\u20ac\u00a3" and text[end - 1].isdigit():
            end += 1
        else:
            break
    return end


def _joins(text: str, at: int) -> bool:
    """Whether the sign at ``at`` stands inside a word: don't, 3.14, well-known, a.b@c."""
    after = text[at + 1] if at + 1 < len(text) else ""
    return bool(after) and after.isalnum() and not _UNSPACED.match(after)


def _pause_after(text: str, end: int) -> float:
    pause = 0.0
    while end < len(text) and not _is_spoken(text[end]):
        if text[end] in _LONG:
            pause = LONG_PAUSE
        elif text[end] in _SHORT or (text[end] == "-" and text[end - 1].isspace()):
            pause = max(pause, SHORT_PAUSE)
        end += 1
    return pause


def _units(word: str) -> float:
    letters = [character for character in word if character.isalpha()]
    acronym = 1 < len(letters) <= MAX_ACRONYM and all("A" <= each <= "Z" for each in letters)
    units = 0.0 if _UNSPACED.match(word[0]) else WORD_UNITS
    for character in word:
        if character.isdigit():
            units += DIGIT_UNITS
        elif character in "%$@&+\u20ac\u00a3":
            units += DIGIT_UNITS
        elif acronym and character.isalpha():
            units += CAPITAL_UNITS
        elif character.isalpha():
            units += _letter(character)
    return max(units, 0.5)


def _letter(character: str) -> float:
    if character < "\u0900":
        return 1.0
    if "\uac00" <= character <= "\ud7a3" or character < "\u0e00":
        return _SYLLABLE_UNITS
    if character < "\u1800":
        return _THAI_UNITS
    if "\u3040" <= character <= "\u30ff" or "\uff66" <= character <= "\uff9f":
        return _KANA_UNITS
    return _HAN_UNITS if _UNSPACED.match(character) else 1.0

"""``Timeline``: snapshots of an alignment -> pieces that never change, as vendors' clients want.

A snapshot replaces the one before; a client that was told a time keeps it. So a word is told when
its segment is final, which is soon where speech is made faster than it plays, or when it is about
to be played. Times rise and stay inside the audio. Pure; owned by whoever feeds it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from shoal.proto.messages import Aligned, Word

LEAD_S: Final = 0.3
"""Words that play so soon are told although their segment is not final."""
_OPENING: Final = re.compile(r"[^\w\s]*\Z")
_CLOSING: Final = re.compile(r"[^\w\s]*")
_SPACE: Final = re.compile(r"\s*")


@dataclass(frozen=True, slots=True)
class Timed:
    """Text and when it is spoken, in seconds of the turn's audio."""

    text: str = field(repr=False)
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Piece:
    """What became known. ``words`` have the punctuation that touches them; ``characters`` are
    all of the text, spaces too, one after the other. It follows on the piece before."""

    words: tuple[Timed, ...]
    characters: tuple[Timed, ...]


class Timeline:
    """One turn's."""

    def __init__(self) -> None:
        self._segment = -1
        self._told = 0  # characters of the segment
        self._at_s = 0.0
        self._padded = False

    def take(self, aligned: Aligned, played_s: float) -> Piece | None:
        """What can be told now that ``played_s`` of the turn may have been played."""
        if aligned.segment != self._segment:
            self._segment, self._told = aligned.segment, 0
            if self._padded:  # the space between them was told
                self._told = len(aligned.text) - len(aligned.text.lstrip())
        self._at_s = max(self._at_s, aligned.offset_s)
        limit_s = max(aligned.offset_s + aligned.audio_s, self._at_s)
        words: list[Timed] = []
        characters: list[Timed] = []
        waiting = [word for word in aligned.words if word.begin >= self._told]
        if not aligned.final:
            due_s = played_s + LEAD_S - aligned.offset_s
            waiting = [word for word in waiting if word.start_s <= due_s]
        place = _fitted(waiting, aligned.offset_s, self._at_s, limit_s)
        for word in waiting:
            self._tell(aligned.text, word, place, words, characters)
        if aligned.final:
            rest = aligned.text[self._told :]
            self._padded = not aligned.text[-1:].isspace()
            if self._padded:
                rest += " "  # so that a client does not wait for the rest of the last word
            self._spell(rest, limit_s, characters)
            self._told = len(aligned.text)
        return Piece(tuple(words), tuple(characters)) if characters else None

    def _tell(
        self,
        text: str,
        word: Word,
        place: Callable[[float], float],
        words: list[Timed],
        characters: list[Timed],
    ) -> None:
        opening = _OPENING.search(text, self._told, word.begin)
        begin = opening.start() if opening else word.begin
        closing = _CLOSING.match(text, word.end)
        end = closing.end() if closing else word.end
        start_s = max(place(word.start_s), self._at_s)
        end_s = max(place(word.end_s), start_s)
        words.append(Timed(text[begin:end], start_s, end_s))
        self._spell(text[self._told : begin], start_s, characters)
        self._spell(text[begin:end], end_s, characters)
        space = _SPACE.match(text, end)
        self._told = space.end() if space else end
        for character in text[end : self._told]:
            characters.append(Timed(character, self._at_s, self._at_s))

    def _spell(self, text: str, until_s: float, characters: list[Timed]) -> None:
        """Share the time from the last character out among those of ``text``."""
        start_s = self._at_s
        step_s = (until_s - start_s) / len(text) if text else 0.0
        for at, character in enumerate(text):
            characters.append(Timed(character, start_s + at * step_s, start_s + (at + 1) * step_s))
        self._at_s = max(until_s, start_s)


def _fitted(
    words: Sequence[Word], offset_s: float, from_s: float, limit_s: float
) -> Callable[[float], float]:
    """From a segment's time to the turn's. Where words were told later than is now known of
    them, those that follow share the time that is left."""
    first_s = offset_s + words[0].start_s if words else from_s
    if first_s >= from_s or limit_s <= first_s:
        return lambda at_s: min(offset_s + at_s, limit_s)
    scale = (limit_s - from_s) / (limit_s - first_s)
    return lambda at_s: min(from_s + (offset_s + at_s - first_s) * scale, limit_s)


def milliseconds(characters: Sequence[Timed], since_s: float) -> tuple[list[int], list[int]]:
    """Starts and durations in whole milliseconds after ``since_s``, so that each character ends
    no later than the next begins and the last where it should."""
    base = round(1000 * since_s)
    starts = [round(1000 * c.start_s) - base for c in characters]
    ends = [round(1000 * c.end_s) - base for c in characters]
    return starts, [end - start for start, end in zip(starts, ends, strict=True)]

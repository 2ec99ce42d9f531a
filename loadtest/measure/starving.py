"""Whose fault is a dry player while text still comes: the server's or the text's? Pure.

Which sentence is next follows from how much audio was played: audio and text go hand in hand, so
the share of the audio played is the share of the text spoken.
"""

from __future__ import annotations

from collections.abc import Sequence

from .playout import TextDue
from .timeline import SentenceEnd

_NEAR_SHARE = 0.25
_NEAR_S = 0.6
"""A player that ran dry so close to a sentence's end, by share of the sentence or in seconds, ran
dry at that end: a voice pauses and hurries, so text and audio are not in step to the letter."""


def text_due_of(sentences: Sequence[SentenceEnd], s_per_char: float) -> TextDue | None:
    """For :func:`.playout.play`; ``None`` where the text came at once and nothing can be excused.

    ``s_per_char`` is the turn's own: its audio over its text.
    """
    if len(sentences) < 2 or s_per_char <= 0:
        return None

    def due_s(played_s: float) -> float | None:
        spoken = played_s / s_per_char
        begin = 0
        nearest: tuple[float, float] | None = None
        for number, sentence in enumerate(sentences[:-1]):
            near = max(_NEAR_SHARE * (sentence.chars - begin), _NEAR_S / s_per_char)
            away = abs(spoken - sentence.chars)
            if away <= near and (nearest is None or away < nearest[0]):
                nearest = (away, sentences[number + 1].due_s)
            begin = sentence.chars
        return nearest[1] if nearest else None

    return due_s

"""One turn as it is meant to happen, and the supply of such turns for one user. Pure."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from shoal.loadtest.measure.timeline import Kind, SentenceEnd

from .text import (
    Piece,
    Prompts,
    count_clauses,
    count_sentences,
    ends_sentence,
    first_speakable,
    paced,
    speech_chars,
    whole,
)
from .voices import Voice, VoiceMix


@dataclass(frozen=True, slots=True)
class TurnPlan:
    """``cut_after_s`` counts from the first audio heard; ``None`` lets the turn finish."""

    index: int
    user: int
    kind: Kind
    scheduled_s: float
    pieces: tuple[Piece, ...] = field(repr=False)
    voice: Voice
    cut_after_s: float | None = None

    @property
    def speakable_piece(self) -> int:
        """Number of the piece with which there is something to speak."""
        return first_speakable(self.pieces)

    @property
    def speakable_s(self) -> float:
        """When that piece is due: the turn's T0."""
        return self.scheduled_s + self.pieces[self.speakable_piece].offset_s

    @property
    def sentences(self) -> tuple[SentenceEnd, ...]:
        """When each sentence is complete; nothing for text that is sent at once."""
        if len(self.pieces) < 2:
            return ()
        found: list[SentenceEnd] = []
        text = ""
        for number, piece in enumerate(self.pieces, start=1):
            text += piece.text
            if ends_sentence(piece.text) or number == len(self.pieces):
                found.append(SentenceEnd(self.scheduled_s + piece.offset_s, speech_chars(text)))
        return tuple(found)

    @property
    def parts(self) -> int:
        """How many utterances a server may make of the text: see :class:`Turn`."""
        text = "".join(piece.text for piece in self.pieces)
        return count_sentences(text) + (count_clauses(text) if len(self.pieces) > 1 else 0)

    @property
    def chars(self) -> int:
        return speech_chars("".join(piece.text for piece in self.pieces))


@dataclass(frozen=True, slots=True)
class Speech:
    """How users speak: prompt length, pace, voices, barge-ins.

    ``tokens_per_s`` ``None`` sends the whole text at once. ``by_sentence`` gathers the tokens and
    sends a sentence when its last one came, as agent frameworks do. Without ``openings`` no
    written sentence is led in by another one ("Sure."): so many as were asked for, and no more.
    """

    sentences: tuple[int, int] = (1, 3)
    corpus: tuple[str, ...] = field(default=(), repr=False)
    tokens_per_s: tuple[float, float] | None = None
    by_sentence: bool = False
    openings: bool = True
    voices: VoiceMix = field(default_factory=VoiceMix)
    barge_in_share: float = 0.0
    barge_in_s: tuple[float, float] = (0.3, 3.0)


class Script:
    """What one user will say, turn after turn; equal seeds give equal scripts."""

    def __init__(self, speech: Speech, seed: str, user: int) -> None:
        self._speech = speech
        self._user = user
        self._rng = random.Random(f"{seed}/{user}")
        self._prompts = Prompts(self._rng, speech.sentences, speech.corpus, speech.openings)
        self._index = 0

    def next(
        self, scheduled_s: float, kind: Kind = Kind.WARM, voice: Voice | None = None
    ) -> TurnPlan:
        """The next turn, due at ``scheduled_s``, with ``voice`` or one from the mix."""
        speech, rng = self._speech, self._rng
        text = self._prompts.next()
        pace = rng.uniform(*speech.tokens_per_s) if speech.tokens_per_s else 0.0
        pieces = paced(text, pace, speech.by_sentence) if pace else whole(text)
        cut = kind is Kind.WARM and rng.random() < speech.barge_in_share
        plan = TurnPlan(
            self._index,
            self._user,
            kind,
            scheduled_s,
            whole(text) if kind is Kind.COLD else pieces,
            voice or self.next_voice(),
            rng.uniform(*speech.barge_in_s) if cut else None,
        )
        self._index += 1
        return plan

    def next_voice(self) -> Voice:
        """The voice a user would come with: needed before the turn, to prepare it."""
        return self._speech.voices.pick(self._rng)

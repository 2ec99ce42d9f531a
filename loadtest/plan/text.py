"""What the virtual users say: unique prompts, cut as a language model would stream them.

Unique, because a server that caches prompts would otherwise be measured on its cache. Pure: a
``random.Random`` comes in, text comes out.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

_PEOPLE = (
    "my sister|the driver|our neighbour|the young doctor|an old friend|the new teacher|the baker|"
    "your colleague|the night nurse|a tall stranger|the pilot|the librarian|his uncle|the editor|"
    "the gardener|a quiet student|the farmer|the clerk|her cousin|the captain"
).split("|")
_VERBS = (
    "found|forgot|repaired|carried|described|painted|borrowed|measured|delivered|noticed|opened|"
    "followed|answered|checked|ordered|counted|returned|recorded|visited|planned"
).split("|")
_THINGS = (
    "a wooden box|the second letter|an empty bottle|the blue curtain|a heavy suitcase|the map|"
    "a broken clock|the last ticket|the kitchen window|a silver spoon|the garden gate|the report|"
    "a warm blanket|the train schedule|an early breakfast|the old bicycle|a jar of honey|the bill"
).split("|")
_PLACES = (
    "near the river|behind the station|at the market|in the long hallway|on the north side of town|"
    "under the bridge|across the street|by the harbour|next to the museum|in the upper field|"
    "at the corner shop|outside the theatre|along the coast road|in the waiting room"
).split("|")
_TIMES = (
    "this morning|before sunrise|late on Tuesday|after the storm|around noon|last weekend|"
    "during the meeting|just after lunch|in early spring|on the way home|while it was raining"
).split("|")
_OPENINGS = (
    "Sure.|Of course.|Good question.|Let me check that for you.|Thanks for waiting.|Here we go.|"
    "I understand.|One moment, please.|That is right.|Well, it depends."
).split("|")

_SENTENCE_END = frozenset(".!?。！？")
_ENDS = re.compile(r"[.!?。！？]+")
_CLAUSES = re.compile(r"[,;:—–，、；：]+")
_TOKEN = re.compile(r"\s*(?:[　-鿿豈-￯]|[^\W_　-鿿]{1,6}|[^\s])")
_CJK_WEIGHT = 3.3
"""One such character takes about as long to say as so many Latin letters."""


def write_prompt(rng: random.Random, sentences: int, openings: bool = True) -> str:
    """A paragraph of ``sentences`` plain English sentences; about 10^6 different ones each.

    With ``openings`` half of them begin with a short one more, as answers do.
    """
    return " ".join(_sentence(rng, openings and i == 0) for i in range(max(1, sentences)))


def _sentence(rng: random.Random, opening: bool) -> str:
    if opening and rng.random() < 0.5:
        return f"{rng.choice(_OPENINGS)} {_sentence(rng, False)}"
    who, what = rng.choice(_PEOPLE), rng.choice(_THINGS)
    where, when, did = rng.choice(_PLACES), rng.choice(_TIMES), rng.choice(_VERBS)
    number = rng.randint(2, 98)
    sentence = rng.choice(
        (
            f"{who} {did} {what} {where} {when}.",
            f"{when}, {who} {did} {what} {where}.",
            f"{who} {did} {what} {when}, about {number} minutes later than we had hoped.",
            f"do you know whether {who} {did} {what} {where}?",
            f"it was {who} who {did} {what} {where}, and {rng.choice(_PEOPLE)} saw it {when}.",
            f"there are {number} reasons why {who} {did} {what} {where}.",
        )
    )
    return sentence[0].upper() + sentence[1:]


def speech_chars(text: str) -> int:
    """How much there is to say, in Latin letters: marks count nothing, a CJK character several."""
    weight = 0.0
    for char in text:
        if "　" <= char <= "鿿" or "豈" <= char <= "￯":
            weight += _CJK_WEIGHT if char.isalnum() else 0.0
        elif char.isalnum() or char == " ":
            weight += 1.0
    return round(weight)


@dataclass(frozen=True, slots=True)
class Piece:
    """Text that leaves ``offset_s`` after the turn's scheduled time."""

    offset_s: float
    text: str


def whole(text: str) -> tuple[Piece, ...]:
    """The text in one message, at once."""
    return (Piece(0.0, text),)


def paced(text: str, tokens_per_s: float, by_sentence: bool = False) -> tuple[Piece, ...]:
    """The text token by token, or sentence by sentence; joined, the pieces are the text again.

    A sentence leaves when its last token came.
    """
    tokens = _TOKEN.findall(text)
    tail = text[sum(map(len, tokens)) :]
    if tail and tokens:
        tokens[-1] += tail
    pieces: list[Piece] = []
    gathered = ""
    for i, token in enumerate(tokens):
        gathered += token
        whole_sentence = ends_sentence(token) or i == len(tokens) - 1
        if whole_sentence or not by_sentence:
            pieces.append(Piece(i / tokens_per_s, gathered))
            gathered = ""
    return tuple(pieces) or whole(text)


def ends_sentence(text: str) -> bool:
    """Whether a sentence ends in this piece of text."""
    return bool(_SENTENCE_END.intersection(text))


def count_sentences(text: str) -> int:
    """How many sentences end in ``text``, one at least; marks in a row end one."""
    return max(1, len(_ENDS.findall(text)))


def count_clauses(text: str) -> int:
    """How many clauses end in ``text`` where no sentence does."""
    return len(_CLAUSES.findall(text))


def first_speakable(pieces: Sequence[Piece]) -> int:
    """Number of the piece that ends the first sentence; of the last one where none ends."""
    for number, piece in enumerate(pieces):
        if ends_sentence(piece.text):
            return number
    return len(pieces) - 1


class Prompts:
    """An endless supply of prompts: written ones, or lines of a corpus in shuffled order.

    ``sentences`` bounds the length of written prompts, both ends included; ``openings`` as for
    :func:`write_prompt`.
    """

    def __init__(
        self,
        rng: random.Random,
        sentences: tuple[int, int] = (1, 3),
        corpus: Sequence[str] = (),
        openings: bool = True,
    ) -> None:
        self._rng = rng
        self._sentences = sentences
        self._corpus = corpus
        self._openings = openings
        self._pile: list[str] = []

    def next(self) -> str:
        if not self._corpus:
            return write_prompt(self._rng, self._rng.randint(*self._sentences), self._openings)
        if not self._pile:
            self._pile = list(self._corpus)
            self._rng.shuffle(self._pile)
        return self._pile.pop()

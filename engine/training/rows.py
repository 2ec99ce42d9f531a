"""What the DualAR is trained on: conversations packed into rows of equal length.

A conversation is what the engine builds: a system message, with recordings of the speaker or
without, then texts and what is said. Every position knows its conversation (attention stays within
it), its place in it, the slow token to predict, and, where sound is predicted, where in the text
the sound is spelled and which phonemes it holds: the two that the auxiliary losses need.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import IterableDataset, get_worker_info

from . import vocabulary as v
from .codes import Corpus
from .texts import Texts

NOTHING = -100
WAITING = 24
"""Conversations to choose from when a row is filled."""
Int = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Mix:
    """Shares of the kinds of conversation, and how much of the input is spoilt."""

    named_first: float = 0.1
    """Of all conversations are with speaker 0, beyond its share of the corpus."""
    unreferenced: float = 0.6
    """Of speaker 0's conversations have no recording; all others have one."""
    two_recordings: float = 0.25
    second_turn: float = 0.25
    joined: float = 0.1
    """Of the turns are two sentences said as one."""
    joined_bytes: int = 170
    spoilt: float = 0.1
    """Of the frames are fed with wrong residual codes, so that errors do not add up."""
    spoilt_semantic: float = 0.2
    """Of the spoilt frames have a wrong semantic code as well."""


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """One step's input. R rows of L positions, K codebooks, F frames for the fast stack.

    ``columns`` [R, L, 1 + K]; ``slow`` [R, L], the next slow token; ``conversation`` and ``place``
    [R, L]; ``target`` [R, L], the position in the row where the next frame is spelled;
    ``phonemes`` [R, L, 2] of the next frame; ``fast_at`` [F], positions (row * L + place in row)
    before frames whose codes are ``fast_codes`` [F, K]. ``NOTHING`` where there is none.
    """

    columns: Tensor
    slow: Tensor
    conversation: Tensor
    place: Tensor
    target: Tensor
    phonemes: Tensor
    fast_at: Tensor
    fast_codes: Tensor

    def to(self, device: torch.device) -> Rows:
        moved = (getattr(self, f.name).to(device, non_blocking=True).long() for f in fields(self))
        return Rows(*moved)

    def pin_memory(self) -> Rows:
        return Rows(*(getattr(self, f.name).pin_memory() for f in fields(self)))


@dataclass(slots=True, eq=False)
class _Conversation:
    """Columns so far; the arrays of :class:`Rows` follow from ``said``."""

    tokens: list[Int]
    codes: list[Int]
    targets: list[Int]
    phonemes: list[Int]
    length: int = 0

    def write(self, ids: list[int] | Int, books: int) -> int:
        """Text; returns where it begins."""
        ids = np.asarray(ids, np.int64)
        begin = self.length
        self.tokens.append(ids)
        self.codes.append(np.zeros((len(ids), books), np.int64))
        self.targets.append(np.full(len(ids), NOTHING, np.int64))
        self.phonemes.append(np.full((len(ids), 2), NOTHING, np.int64))
        self.length += len(ids)
        return begin

    def say(self, codes: Int, targets: Int, phonemes: Int) -> None:
        self.tokens.append(codes[:, 0] + v.SEMANTIC_BEGIN)
        self.codes.append(codes)
        self.targets.append(targets)
        self.phonemes.append(phonemes)
        self.length += len(codes)


class Conversations:
    """Draws conversations over chosen utterances of a corpus."""

    def __init__(self, corpus: Corpus, texts: Texts, chosen: Int, mix: Mix, longest: int) -> None:
        self._corpus, self._texts, self._mix = corpus, texts, mix
        self._chosen, self._longest = chosen, longest
        self.books = corpus.codes.shape[1]
        ordered = chosen[np.argsort(corpus.speaker[chosen], kind="stable")]
        speakers, first = np.unique(corpus.speaker[ordered], return_index=True)
        self._of = dict(zip(speakers.tolist(), np.split(ordered, first[1:]), strict=True))

    def draw(self, random: np.random.Generator) -> tuple[Int, ...]:
        """Tokens [N], clean codes [N, K], targets [N], phonemes [N, 2] of one conversation."""
        while True:
            made = self._draw(random)
            if made.length <= self._longest:
                return (
                    np.concatenate(made.tokens),
                    np.concatenate(made.codes),
                    np.concatenate(made.targets),
                    np.concatenate(made.phonemes),
                )

    def _draw(self, random: np.random.Generator) -> _Conversation:
        mix, corpus = self._mix, self._corpus
        utterance = int(random.choice(self._chosen))
        if 0 in self._of and random.random() < mix.named_first:
            utterance = int(random.choice(self._of[0]))
        speaker = int(corpus.speaker[utterance])
        same = self._of[speaker]
        made = _Conversation([], [], [], [])
        made.write(v.SYSTEM, self.books)
        if speaker != 0 or random.random() >= mix.unreferenced:
            count = 2 if random.random() < mix.two_recordings else 1
            others = same[same != utterance]
            self._refer(made, random.choice(others if len(others) else same, count).tolist())
        made.write(v.CLOSING, self.books)
        turns = 2 if random.random() < mix.second_turn else 1
        for turn in range(turns):
            said = [utterance if turn == 0 else int(random.choice(same))]
            if random.random() < mix.joined:
                more = int(random.choice(same))
                if sum(len(self._sentence(i)) for i in (said[0], more)) < mix.joined_bytes:
                    said.append(more)
            self._turn(made, said)
        return made

    def _sentence(self, utterance: int) -> bytes:
        return self._texts.sentences[self._corpus.text[utterance]]

    def _refer(self, made: _Conversation, recordings: list[int]) -> None:
        made.write([v.REFERENCE], self.books)
        begins: list[int] = []
        for number, utterance in enumerate(recordings):
            if number:
                made.write([ord("\n")], self.books)
            made.write([v.speaker_mark(number)], self.books)
            begins.append(made.write(list(self._sentence(utterance)), self.books))
        made.write([v.SPEECH], self.books)
        for begin, utterance in zip(begins, recordings, strict=True):
            self._say(made, utterance, begin)

    def _turn(self, made: _Conversation, said: list[int]) -> None:
        made.write(v.USER, self.books)
        begins: list[int] = []
        for number, utterance in enumerate(said):
            if number:
                made.write([ord(" ")], self.books)
            begins.append(made.write(list(self._sentence(utterance)), self.books))
        text_end = made.length
        made.write(v.ASSISTANT, self.books)
        for begin, utterance in zip(begins, said, strict=True):
            self._say(made, utterance, begin)
        end = made.length
        made.write(v.CLOSING, self.books)
        # The end of the speech is spelled by the end of the text.
        made.targets[-1][0] = text_end
        assert end == made.length - len(v.CLOSING)

    def _say(self, made: _Conversation, utterance: int, begin: int) -> None:
        corpus, text = self._corpus, int(self._corpus.text[utterance])
        where = corpus.where_of(utterance)
        targets = begin + self._texts.bytes_at(text, where[0::2])
        phonemes = self._texts.labels(text, where).reshape(-1, 2)
        made.say(corpus.codes_of(utterance).astype(np.int64), targets, phonemes)


class PackedRows(IterableDataset[Rows]):
    """Endless steps of ``rows`` x ``length`` positions and ``fast`` frames each."""

    def __init__(
        self,
        conversations: Conversations,
        corpus: Corpus,
        mix: Mix,
        *,
        rows: int,
        length: int,
        fast: int,
        seed: int,
    ) -> None:
        self._conversations, self._corpus, self._mix = conversations, corpus, mix
        self._rows, self._length, self._fast, self._seed = rows, length, fast, seed

    def __iter__(self) -> Iterator[Rows]:
        worker = get_worker_info()
        random = np.random.default_rng((self._seed, worker.id if worker else 0))
        waiting: list[tuple[Int, ...]] = []
        books, rows, length = self._conversations.books, self._rows, self._length
        while True:
            columns = np.zeros((rows, length, 1 + books), np.int16)
            columns[..., 0] = v.PAD
            shape = (rows, length)
            slow, target = np.full(shape, NOTHING, np.int16), np.full(shape, NOTHING, np.int16)
            conversation, place = np.zeros(shape, np.int16), np.zeros(shape, np.int16)
            phonemes = np.full((*shape, 2), NOTHING, np.int16)
            at: list[Int] = []
            codes_at: list[Int] = []
            for row in range(rows):
                begin = number = 0
                while True:
                    while len(waiting) < WAITING:
                        waiting.append(self._conversations.draw(random))
                    chosen = fitting(waiting, length - begin, first=number == 0)
                    if chosen is None:
                        break
                    tokens, codes, targets, labels = waiting.pop(chosen)
                    end, number = begin + len(tokens), number + 1
                    sound = tokens >= v.SEMANTIC_BEGIN
                    fed, fed_codes = self._spoil(tokens, codes, sound, random)
                    columns[row, begin:end, 0] = fed
                    columns[row, begin:end, 1:] = fed_codes
                    conversation[row, begin:end] = number
                    place[row, begin:end] = np.arange(end - begin)
                    ahead = np.flatnonzero(targets[1:] != NOTHING)
                    slow[row, begin + ahead] = tokens[ahead + 1]
                    target[row, begin + ahead] = begin + targets[ahead + 1]
                    phonemes[row, begin + ahead] = labels[ahead + 1]
                    frames = np.flatnonzero(sound[1:])
                    at.append(row * length + begin + frames)
                    codes_at.append(codes[frames + 1])
                    begin = end
            every, every_codes = np.concatenate(at), np.concatenate(codes_at)
            kept = random.permutation(len(every))
            if len(kept) < self._fast:
                kept = np.concatenate([kept, random.integers(len(every), size=self._fast)])
            kept = kept[: self._fast]
            arrays = (
                *(columns, slow, conversation, place, target, phonemes),
                *(every[kept].astype(np.int32), every_codes[kept].astype(np.int16)),
            )
            yield Rows(*(torch.from_numpy(np.ascontiguousarray(array)) for array in arrays))

    def _spoil(
        self, tokens: Int, codes: Int, sound: npt.NDArray[np.bool_], random: np.random.Generator
    ) -> tuple[Int, Int]:
        """Some frames as the model might get them wrong: codes of other frames, from some
        codebook on."""
        mix, books = self._mix, codes.shape[1]
        spoilt = np.flatnonzero(sound & (random.random(len(tokens)) < mix.spoilt))
        if not len(spoilt):
            return tokens, codes
        tokens, codes = tokens.copy(), codes.copy()
        others = self._corpus.codes[random.integers(len(self._corpus.codes), size=len(spoilt))]
        first = random.integers(1, books, len(spoilt))
        first[random.random(len(spoilt)) < mix.spoilt_semantic] = 0
        wrong = np.arange(books)[None] >= first[:, None]
        codes[spoilt] = np.where(wrong, others, codes[spoilt])
        tokens[spoilt] = codes[spoilt, 0] + v.SEMANTIC_BEGIN
        return tokens, codes


def fitting(waiting: list[tuple[Int, ...]], room: int, *, first: bool) -> int | None:
    """The one that waits longest begins a row, so that none waits for ever; then the longest that
    still fits, so that little of the row is left empty."""
    if first:
        return 0
    lengths = [len(tokens) if len(tokens) <= room else 0 for tokens, *_ in waiting]
    longest = max(lengths)
    return lengths.index(longest) if longest else None

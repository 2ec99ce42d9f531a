"""The sentences the teacher reads, with its phonemes and where each is spelled.

A text file is an ``.npz`` of ``text`` (sentences joined by newlines), ``ph`` (phoneme ids, back to
back) and ``plen`` (how many each sentence has). Its alignment is a second file that says for every
phoneme which byte of the sentence it comes from; see ``align.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

PHONEMES = 178
"""Size of the teacher's alphabet; 0 is silence at both ends."""

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Texts:
    """Sentence ``i``: ``sentences[i]``, phonemes ``phonemes[starts[i]:starts[i + 1]]``; the byte
    that phoneme ``k`` is spelled by is ``places[k]``, when an alignment was read."""

    sentences: list[bytes]
    phonemes: Bytes
    starts: Ints
    places: Bytes | None = None

    def __len__(self) -> int:
        return len(self.sentences)

    def lengths(self) -> Ints:
        """Phonemes of each sentence, without the silences at its ends."""
        return np.diff(self.starts)

    def phonemes_of(self, index: int) -> Bytes:
        return self.phonemes[self.starts[index] : self.starts[index + 1]]

    def labels(self, index: int, where: npt.NDArray[np.integer]) -> Ints:
        """Phoneme ids of frames that stand at phonemes ``where``, counted from 1 (0 and one past
        the end are the silences)."""
        padded = np.concatenate([[0], self.phonemes_of(index), [0]]).astype(np.int64)
        return padded[np.minimum(where, len(padded) - 1)]

    def bytes_at(self, index: int, where: npt.NDArray[np.integer]) -> Ints:
        """Byte offsets in the sentence of frames that stand at phonemes ``where``.

        Raises ValueError without an alignment.
        """
        if self.places is None:
            raise ValueError("this needs an alignment: run the align command first")
        places = self.places[self.starts[index] : self.starts[index + 1]].astype(np.int64)
        last = len(self.sentences[index]) - 1
        padded = np.concatenate([[0], places, [last]])
        return padded[np.minimum(where, len(padded) - 1)]


def read_texts(path: Path, alignment: Path | None = None) -> Texts:
    """Raises ValueError for files that do not fit each other."""
    stored = np.load(path)
    sentences = bytes(stored["text"]).split(b"\n")
    lengths = stored["plen"].astype(np.int64)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    places = None if alignment is None else np.load(alignment)["places"]
    if len(sentences) != len(lengths) or starts[-1] != len(stored["ph"]):
        raise ValueError(f"{path}: {len(sentences)} sentences, {len(lengths)} phoneme strings")
    if places is not None and len(places) != starts[-1]:
        raise ValueError(f"{alignment} was not made from {path}")
    return Texts(sentences, stored["ph"], starts, places)


def write_texts(path: Path, sentences: list[bytes], phonemes: list[Bytes]) -> None:
    lengths = np.array([len(p) for p in phonemes], np.uint8)
    np.savez_compressed(
        path,
        text=np.frombuffer(b"\n".join(sentences), np.uint8),
        ph=np.concatenate(phonemes),
        plen=lengths,
    )

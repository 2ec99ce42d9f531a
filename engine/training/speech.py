"""Teacher speech on disk: samples, and which phoneme of which sentence every frame says.

A folder of ``audio.i16`` (24 kHz mono, utterances back to back), ``where.u8`` (for each frame of
25 ms the phoneme it belongs to, counted from 1) and ``meta.npz``. Utterances are whole code frames
(50 ms). The pool of speakers is the same in every run of one seed: the named voices first, then
blends of two.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import numpy as np
import numpy.typing as npt

from .texts import Texts

RATE = 24_000
FRAME = 600
"""Samples of a teacher frame; a code frame is two."""
FRAMES_PER_CODE = 2
FIRST_VOICES = ("af_heart", "am_michael", "bf_emma", "bm_george", "af_bella", "am_fenrir")
"""Speaker 0 is the voice that is heard without a reference."""

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Speakers:
    """Speaker ``i`` is ``share[i]`` of voice ``first[i]`` and the rest of ``second[i]``."""

    names: tuple[str, ...]
    first: Ints
    second: Ints
    share: npt.NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.first)


def speaker_pool(voices: list[str], blends: int, seed: int = 1234) -> Speakers:
    """All of ``voices`` alone, then ``blends`` random pairs."""
    known = [name for name in FIRST_VOICES if name in voices]
    names = known + sorted(set(voices) - set(known))
    draw = np.random.default_rng(seed)
    pairs = [draw.choice(len(names), 2, replace=False) for _ in range(blends)]
    alone = np.arange(len(names))
    return Speakers(
        tuple(names),
        np.concatenate([alone, [a for a, _ in pairs]]).astype(np.int64),
        np.concatenate([alone, [b for _, b in pairs]]).astype(np.int64),
        np.concatenate([np.ones(len(names)), draw.uniform(0.3, 0.7, blends)]),
    )


@dataclass(frozen=True, slots=True, eq=False)
class Speech:
    """``text``, ``speaker``, ``start`` and ``frames`` (both in frames of 25 ms) of each utterance;
    ``audio`` int16 and ``where`` uint8 of all, mapped from disk."""

    text: Ints
    speaker: Ints
    start: Ints
    frames: Ints
    names: tuple[str, ...]
    audio: npt.NDArray[np.int16]
    where: npt.NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.text)

    @property
    def hours(self) -> float:
        return float(self.frames.sum()) * FRAME / RATE / 3600

    def samples(self, index: int) -> npt.NDArray[np.float32]:
        begin, count = int(self.start[index]) * FRAME, int(self.frames[index]) * FRAME
        return self.audio[begin : begin + count].astype(np.float32) / 32768.0

    def where_of(self, index: int) -> npt.NDArray[np.uint8]:
        begin = int(self.start[index])
        return np.asarray(self.where[begin : begin + int(self.frames[index])])

    def labels(self, texts: Texts) -> npt.NDArray[np.uint8]:
        """The phoneme of every frame of the whole folder."""
        result = np.zeros(len(self.where), np.uint8)
        for index in range(len(self)):
            begin = int(self.start[index])
            where = self.where_of(index)
            result[begin : begin + len(where)] = texts.labels(int(self.text[index]), where)
        return result


class SpeechWriter:
    """Appends utterances; a folder is readable as it was at the last :meth:`keep`, which closing
    does once more."""

    def __init__(self, folder: Path, names: tuple[str, ...]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._names = folder, names
        self._audio = (folder / "audio.i16").open("wb")
        self._where = (folder / "where.u8").open("wb")
        self._rows: list[tuple[int, int, int, int]] = []
        self.frames = 0

    def __enter__(self) -> SpeechWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.keep()
        self._audio.close()
        self._where.close()

    def keep(self) -> None:
        """What was added so far outlives this process, however it ends."""
        self._audio.flush()
        self._where.flush()
        rows = np.array(self._rows, np.int64).reshape(-1, 4)
        text, speaker, start, frames = rows.T
        partial = self._folder / "meta.new.npz"
        np.savez(
            partial,
            text=text,
            speaker=speaker,
            start=start,
            frames=frames,
            names=np.array(self._names),
        )
        partial.replace(self._folder / "meta.npz")

    def add(
        self,
        text: int,
        speaker: int,
        audio: npt.NDArray[np.int16],
        where: npt.NDArray[np.uint8],
    ) -> None:
        """``audio`` [600 F] and ``where`` [F], F even."""
        if len(where) % FRAMES_PER_CODE or len(audio) != FRAME * len(where):
            raise ValueError(f"{len(audio)} samples do not go with {len(where)} frames")
        self._audio.write(np.ascontiguousarray(audio).tobytes())
        self._where.write(np.ascontiguousarray(where).tobytes())
        self._rows.append((text, speaker, self.frames, len(where)))
        self.frames += len(where)

    def __len__(self) -> int:
        return len(self._rows)


def read_speech(folder: Path) -> Speech:
    """What a :class:`SpeechWriter` left. Raises ValueError when the files do not agree."""
    meta = np.load(folder / "meta.npz")
    audio = np.memmap(folder / "audio.i16", np.int16, "r")
    where = np.memmap(folder / "where.u8", np.uint8, "r")
    count = int(meta["frames"].sum())
    if len(audio) < FRAME * count or len(where) < count:
        raise ValueError(f"{folder}: audio or phonemes are shorter than the index")
    # A writer that was stopped leaves more than it had put into the index.
    audio, where = audio[: FRAME * count], where[:count]
    names = tuple(str(name) for name in meta["names"])
    return Speech(meta["text"], meta["speaker"], meta["start"], meta["frames"], names, audio, where)

"""The ``teacher`` command: sentences read aloud by the teacher, batched on a GPU.

Sentences are drawn in random order, read in batches of about equal length by random speakers at
random speeds, cut to where sound begins and ends, and brought to one loudness.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from .archive import read_archive
from .budget import Budget
from .kokoro_sound import SoundSide
from .kokoro_text import TextSide, Weights
from .speech import FRAME, FRAMES_PER_CODE, RATE, Speakers, SpeechWriter, speaker_pool
from .texts import Texts, read_texts
from .tracing import pulse

LOUDNESS = 0.07
"""Root mean square of what is louder than ``QUIET``."""
QUIET = 0.004
LEAD_FRAMES, TAIL_FRAMES = 3, 7
"""Frames of 25 ms kept before the first sound and behind the last."""
SECONDS_PER_PHONEME = (0.03, 0.2)
"""What lies outside was not said as written."""
SPEEDS = (0.92, 1.12)
TOLD_S, KEPT_S = 5.0, 30.0
"""Between two lines, and between two moments from which the folder is readable."""
_CHUNK = 4096


class Teacher(Protocol):
    """Phonemes and styles to sound."""

    def __call__(
        self, phonemes: Tensor, lengths: Tensor, style: Tensor, speed: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """-> samples [B, 600 F], frames [B], phoneme of each frame [B, F]."""
        ...


class Kokoro:
    """The teacher from its archive. ``half``: convolutions in float16, on a GPU."""

    def __init__(self, archive: Path, device: torch.device, half: bool) -> None:
        weights = Weights(read_archive(archive), device, half)
        self._text, self._sound = TextSide(weights), SoundSide(weights)

    def __call__(
        self, phonemes: Tensor, lengths: Tensor, style: Tensor, speed: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        prosody, sound, durations = self._text(phonemes, lengths, style, speed)
        return self._sound(prosody, sound, durations, style)


@dataclass(frozen=True, slots=True)
class Styles:
    """``table`` float [voices, rows, 256]: the row depends on the length of what is said."""

    table: Tensor
    speakers: Speakers

    def of(self, speakers: npt.NDArray[np.int64], phonemes: npt.NDArray[np.int64]) -> Tensor:
        row = np.clip((phonemes - 4 + 6) // 12, 0, self.table.shape[1] - 1)
        pool = self.speakers
        share = torch.tensor(pool.share[speakers], dtype=torch.float32, device=self.table.device)
        first = self.table[pool.first[speakers], row]
        second = self.table[pool.second[speakers], row]
        return first * share[:, None] + second * (1 - share[:, None])


def read_styles(path: Path, blends: int, device: torch.device) -> Styles:
    stored = np.load(path)
    pool = speaker_pool(list(stored.files), blends)
    table = np.stack([stored[name].astype(np.float32) for name in pool.names])
    return Styles(torch.from_numpy(table).to(device), pool)


def draw_speakers(
    draw: np.random.Generator, count: int, named: int, all_speakers: int
) -> npt.NDArray[np.int64]:
    """A quarter the first voice or another of the first six, a third any named one, the rest
    blends."""
    kind = draw.random(count)
    first = draw.integers(0, min(6, named), count)
    first = np.where(draw.random(count) < 0.4, 0, first)
    blend = draw.integers(named, all_speakers, count) if all_speakers > named else first
    return np.where(kind < 0.3, first, np.where(kind < 0.6, draw.integers(0, named, count), blend))


class Batches:
    """Batches of sentence indices of about equal length, every sentence once a round."""

    def __init__(self, lengths: npt.NDArray[np.int64], phonemes: int, seed: int) -> None:
        """``phonemes``: of a batch, padding included."""
        self._lengths, self._phonemes = lengths, phonemes
        self._draw = np.random.default_rng(seed)
        self._order = self._draw.permutation(len(lengths))
        self._next = 0
        self._pool = np.zeros(0, np.int64)

    def __call__(self) -> npt.NDArray[np.int64]:
        if len(self._pool) < 256:
            if self._next >= len(self._order):
                self._order, self._next = self._draw.permutation(len(self._lengths)), 0
            fresh = self._order[self._next : self._next + _CHUNK]
            self._next += _CHUNK
            self._pool = np.concatenate([self._pool, fresh])
            self._pool = self._pool[np.argsort(self._lengths[self._pool], kind="stable")]
        begin = int(self._draw.integers(0, max(1, len(self._pool) - 64)))
        end = begin + 1
        while (
            end < len(self._pool)
            and (end - begin + 1) * (self._lengths[self._pool[end]] + 2) <= self._phonemes
        ):
            end += 1
        batch = self._pool[begin:end]
        self._pool = np.concatenate([self._pool[:begin], self._pool[end:]])
        return batch


Drawn = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]
"""Sentences of a batch, and who says each."""


def at_random(texts: Texts, speakers: Speakers, batch_phonemes: int, seed: int) -> Iterator[Drawn]:
    """Endless."""
    draw = np.random.default_rng(seed)
    batches = Batches(texts.lengths(), batch_phonemes, seed + 1)
    while True:
        batch = batches()
        yield batch, draw_speakers(draw, len(batch), len(speakers.names), len(speakers))


def each_by_each(texts: Texts, speakers: Sequence[int], batch_phonemes: int) -> Iterator[Drawn]:
    """Every sentence by every one of ``speakers``, in the order of the text file."""
    rows = max(1, batch_phonemes // (int(texts.lengths().max()) + 2))
    for speaker in speakers:
        for begin in range(0, len(texts), rows):
            batch = np.arange(begin, min(begin + rows, len(texts)))
            yield batch, np.full(len(batch), speaker)


@torch.inference_mode()
def trimmed(samples: Tensor, frames: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Samples [B, 600 F] as int16 [B, F, 600] at one loudness; first frame, end, and whether
    there is sound at all, each [B]."""
    count = samples.shape[1] // FRAME
    cut = samples[:, : count * FRAME].view(len(samples), count, FRAME)
    power = cut.pow(2).mean(-1)
    loud = power.sqrt() > QUIET
    first = loud.float().argmax(1)
    last = count - 1 - loud.flip(1).float().argmax(1)
    level = ((power * loud).sum(1) / loud.sum(1).clamp(min=1)).sqrt()
    gain = torch.minimum(
        LOUDNESS / level.clamp(min=1e-4), 0.95 / samples.abs().amax(1).clamp(min=1e-4)
    )
    whole = (cut * gain[:, None, None] * 32767).round().clamp(-32768, 32767).to(torch.int16)
    end = torch.minimum(last + TAIL_FRAMES, frames.clamp(max=count))
    sound = torch.isfinite(samples).all(1) & (loud.sum(1) > 10)
    return whole, (first - LEAD_FRAMES).clamp(min=0), end, sound


def speak(
    teacher: Teacher,
    styles: Styles,
    texts: Texts,
    out: SpeechWriter,
    budget: Budget,
    *,
    drawn: Iterator[Drawn],
    max_hours: float,
    seed: int,
) -> int:
    """Fills ``out`` until the budget, the hours or ``drawn`` is used up; returns how many
    utterances were dropped."""
    draw = np.random.default_rng(seed)
    device = styles.table.device
    lengths = texts.lengths()
    dropped = said = 0
    told_s = kept_s = budget.spent_s

    def keep(
        batch: npt.NDArray[np.int64],
        speakers: npt.NDArray[np.int64],
        whole: npt.NDArray[np.int16],
        spans: npt.NDArray[np.int64],
        where: npt.NDArray[np.uint8],
    ) -> int:
        lost = 0
        for row, text in enumerate(batch):
            begin, stop, sound = (int(value) for value in spans[row])
            stop -= (stop - begin) % FRAMES_PER_CODE
            pace = (stop - begin) * FRAME / RATE / lengths[text]
            if not sound or not SECONDS_PER_PHONEME[0] < pace < SECONDS_PER_PHONEME[1]:
                lost += 1
                continue
            audio = whole[row, begin:stop].reshape(-1)
            out.add(int(text), int(speakers[row]), audio, where[row, begin:stop])
        return lost

    with ThreadPoolExecutor(1) as disk:
        # One batch is written while the next is spoken.
        written: Future[int] | None = None
        for batch, speakers in drawn:
            if budget.over or out.frames * FRAME / RATE / 3600 >= max_hours:
                break
            phonemes = np.zeros((len(batch), int(lengths[batch].max()) + 2), np.int64)
            for row, index in enumerate(batch):
                phonemes[row, 1 : 1 + lengths[index]] = texts.phonemes_of(int(index))
            speed = torch.from_numpy(draw.uniform(*SPEEDS, len(batch)).astype(np.float32))
            samples, frames, index = teacher(
                torch.from_numpy(phonemes).to(device),
                torch.from_numpy(lengths[batch] + 2).to(device),
                styles.of(speakers, lengths[batch]),
                speed.to(device),
            )
            whole, first, end, sound = trimmed(samples, frames)
            spans = torch.stack([first, end, sound.long()], 1).cpu().numpy()
            where = index.to(torch.uint8).cpu().numpy()
            if written is not None:
                dropped += written.result()
                if budget.spent_s - kept_s > KEPT_S:
                    kept_s = budget.spent_s
                    out.keep()
            written = disk.submit(keep, batch, speakers, whole.cpu().numpy(), spans, where)
            said += 1
            if said == 1 or budget.spent_s - told_s > TOLD_S:
                told_s = budget.spent_s
                hours = out.frames * FRAME / RATE / 3600
                rate = hours * 3600 / max(1e-9, budget.spent_s)
                print(
                    f"{said} batches, {hours:.2f} h, {rate:.0f} x real time, "
                    f"{dropped} dropped, {budget.spent_s:.0f} s",
                    flush=True,
                )
        if written is not None:
            dropped += written.result()
    return dropped


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="teacher", description=__doc__)
    parser.add_argument("--archive", type=Path, required=True, help="kokoro_q8.npz.xz")
    parser.add_argument("--voices", type=Path, required=True, help="voices.npz")
    parser.add_argument("--texts", type=Path, required=True, help="texts.npz")
    parser.add_argument("--out", type=Path, required=True, help="a folder for the speech")
    parser.add_argument("--minutes", type=float, required=True)
    parser.add_argument("--max-hours", type=float, default=100.0)
    parser.add_argument("--batch-phonemes", type=int, default=9000)
    parser.add_argument("--blends", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--only",
        type=int,
        nargs="*",
        default=[],
        help="every sentence once by each of these speakers",
    )
    parser.add_argument("--full", action="store_true", help="float32 convolutions")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    flags = parser.parse_args(argv)
    budget = Budget(flags.minutes)
    torch.manual_seed(flags.seed)
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.allow_tf32 = True
    device = torch.device(flags.device)
    with pulse("reading the teacher"):
        teacher = Kokoro(flags.archive, device, not flags.full)
    styles = read_styles(flags.voices, flags.blends, device)
    print(f"teacher ready after {budget.spent_s:.1f} s", flush=True)
    with SpeechWriter(flags.out, styles.speakers.names) as out:
        texts = read_texts(flags.texts)
        drawn = (
            each_by_each(texts, flags.only, flags.batch_phonemes)
            if flags.only
            else at_random(texts, styles.speakers, flags.batch_phonemes, flags.seed)
        )
        with pulse("speaking"):
            dropped = speak(
                teacher,
                styles,
                texts,
                out,
                budget,
                drawn=drawn,
                max_hours=flags.max_hours,
                seed=flags.seed + 2,
            )
        hours = out.frames * FRAME / RATE / 3600
        print(f"{len(out)} utterances, {hours:.2f} h in {budget.spent_s:.0f} s, {dropped} dropped")
        return 0 if len(out) else 1

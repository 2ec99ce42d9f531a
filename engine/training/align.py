"""Which letter each phoneme of the teacher comes from, learnt from the sentences themselves.

A monotonic alignment: every phoneme stands at a byte, places never go back, letters may be passed
over (silent ones) and shared (one letter, two phonemes). What a letter may sound like is counted
over all sentences and the alignment repeated, as in training a translation model; the first round
knows only that both strings run from end to end. The training of the voice uses the result as a
map from sound to text, so a place that is off by one letter does no harm.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import numpy.typing as npt

from .texts import PHONEMES, Bytes, Texts, read_texts

Floats = npt.NDArray[np.float32]

SKIP_COST = 0.7
"""Of passing over a letter, in nats; spaces and marks are free."""
SHARE_COST = 1.2
"""Of a second phoneme at the same letter."""
DIAGONAL = 0.15
"""Weight of the distance from the straight line, in nats a byte; only the first round's guide."""
BATCH = 512
_FREE = frozenset(b" ,.!?'-")


def align(texts: Texts, rounds: int = 4, sample: int = 12000, seed: int = 0) -> Bytes:
    """For every phoneme of every sentence, the offset of its byte. ``sample`` sentences train."""
    order = np.random.default_rng(seed).permutation(len(texts))[:sample]
    costs = np.zeros((256, PHONEMES), np.float32)
    for number in range(rounds):
        counts = np.full((256, PHONEMES), 0.05, np.float32)
        for batch in _batches(texts, order):
            for index, places in zip(batch, _places(texts, batch, costs, number == 0), strict=True):
                letters = np.frombuffer(texts.sentences[index], np.uint8)[places]
                np.add.at(counts, (_lower(letters), texts.phonemes_of(index)), 1.0)
        costs = -np.log(counts / counts.sum(0, keepdims=True)).astype(np.float32)
    result = np.zeros(len(texts.phonemes), np.uint8)
    for batch in _batches(texts, np.arange(len(texts))):
        for index, places in zip(batch, _places(texts, batch, costs, False), strict=True):
            result[texts.starts[index] : texts.starts[index + 1]] = places
    return result


def _batches(texts: Texts, chosen: npt.NDArray[np.int64]) -> list[list[int]]:
    """Sentences of about equal length together."""
    ordered = sorted(chosen.tolist(), key=lambda i: (len(texts.sentences[i]), i))
    return [ordered[i : i + BATCH] for i in range(0, len(ordered), BATCH)]


def _lower(letters: Bytes) -> Bytes:
    capital = (letters >= 65) & (letters <= 90)
    return np.where(capital, letters + 32, letters).astype(np.uint8)


def _places(texts: Texts, batch: list[int], costs: Floats, diagonal: bool) -> list[Bytes]:
    """The cheapest alignment of each sentence: dynamic programming over (phoneme, byte), all
    sentences of the batch at once."""
    spelled = [np.frombuffer(texts.sentences[i], np.uint8) for i in batch]
    spoken = [texts.phonemes_of(i) for i in batch]
    rows, wide, long = len(batch), max(map(len, spelled)), max(map(len, spoken))
    letters = np.zeros((rows, wide), np.uint8)
    phonemes = np.zeros((rows, long), np.uint8)
    for row, (s, p) in enumerate(zip(spelled, spoken, strict=True)):
        letters[row, : len(s)] = _lower(s)
        phonemes[row, : len(p)] = p
    widths = np.array([len(s) for s in spelled])
    lengths = np.array([len(p) for p in spoken])
    free = np.isin(letters, list(_FREE))
    passed = np.cumsum(np.where(free, 0.0, SKIP_COST), 1, dtype=np.float32)
    before = np.concatenate([np.zeros((rows, 1), np.float32), passed[:, :-1]], 1)
    outside = np.arange(wide)[None] >= widths[:, None]
    column = np.arange(wide, dtype=np.float32)[None]

    came = np.zeros((long, rows, wide), np.uint8)
    own = np.arange(wide, dtype=np.int64)[None].repeat(rows, 0)
    best = np.zeros((rows, wide), np.float32)
    ends = np.zeros((rows, wide), np.float32)
    for step in range(long):
        here = costs[letters, phonemes[:, step : step + 1]]
        if diagonal:
            line = widths[:, None] * (step + 0.5) / lengths[:, None]
            here = here + DIAGONAL * np.abs(column - line).astype(np.float32)
        here = np.where(outside, np.float32(1e6), here)
        if step == 0:
            best = here + before
            came[0] = own
        else:
            # From an earlier byte j: best[j] plus the letters passed between.
            rest = best - passed
            lowest = np.minimum.accumulate(rest, 1)
            at = np.maximum.accumulate(np.where(rest == lowest, own, 0), 1)
            moved = np.full_like(best, 1e6)
            moved[:, 1:] = lowest[:, :-1] + before[:, 1:]
            source = np.zeros_like(own)
            source[:, 1:] = at[:, :-1]
            stay = best + SHARE_COST <= moved
            came[step] = np.where(stay, own, source)
            best = here + np.where(stay, best + SHARE_COST, moved)
        final = lengths == step + 1
        if final.any():
            total = best + (np.take_along_axis(passed, widths[:, None] - 1, 1) - passed)
            ends = np.where(final[:, None], total, ends)
    found: list[Bytes] = []
    for row, length in enumerate(lengths):
        place = int(np.argmin(np.where(outside[row], np.inf, ends[row])))
        path = np.zeros(length, np.uint8)
        for step in range(length - 1, -1, -1):
            path[step] = place
            place = int(came[step, row, place])
        found.append(path)
    return found


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="align", description=__doc__)
    parser.add_argument("--texts", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=4)
    flags = parser.parse_args(argv)
    texts = read_texts(flags.texts)
    np.savez_compressed(flags.out, places=align(texts, flags.rounds))
    print(f"{len(texts)} sentences, {flags.out.stat().st_size / 2**20:.1f} MiB")
    return 0

"""What can be seen of speech without understanding it: how it begins, pauses, joins and ends.

Figures in seconds, dBFS and shares of full scale, and pictures of the spectrum. Knows arrays of
samples only; pure, any thread.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Samples = npt.NDArray[np.float32]

STEP_S = 0.005
SOUND_BELOW_LOUD_DB = 35.0
"""What is quieter than speech at its loudest by this is no speech."""
QUIETEST_DB = -120.0
NEAR_S = 0.03
"""On either side of a seam, where a click would be."""
PAUSE_WITHIN_S = 0.6
"""A seam whose pause is further away than this has none."""
WINDOW, HIGHEST_HZ = 1024, 8000
DARKEST_DB, BRIGHTEST_DB = -95.0, -25.0


@dataclass(frozen=True, slots=True)
class Edges:
    """``lead_s`` of quiet before the first sound and ``trail_s`` behind the last, how loud each is
    (dBFS), and ``last``, the share of full scale at which the samples stop."""

    lead_s: float
    lead_db: float
    trail_s: float
    trail_db: float
    last: float


@dataclass(frozen=True, slots=True)
class Seam:
    """``jump``: the largest step from sample to sample near the seam, in shares of full scale;
    ``usual``: what one step in a thousand exceeds in the speech around it; ``pause_s`` of quiet at
    the seam and how loud it is."""

    jump: float
    usual: float
    pause_s: float
    pause_db: float


def levels_db(samples: Samples, rate: int) -> npt.NDArray[np.float64]:
    """Loudness of each :data:`STEP_S`, in dBFS."""
    size = round(rate * STEP_S)
    blocks = samples[: len(samples) // size * size].reshape(-1, size).astype(np.float64)
    return _decibel(np.sqrt(np.mean(blocks**2, axis=1)))


def is_sound(levels: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    return levels > np.percentile(levels, 95) - SOUND_BELOW_LOUD_DB


def edges(samples: Samples, rate: int) -> Edges:
    """Raises ValueError where nothing is heard."""
    levels = levels_db(samples, rate)
    if not len(levels) or levels.max() <= QUIETEST_DB:
        raise ValueError("there is no sound in it")
    heard = np.flatnonzero(is_sound(levels))
    first, last = int(heard[0]), int(heard[-1])
    # A sound rises out of the quiet: what lies just before it is part of it.
    margin = round(0.02 / STEP_S)
    return Edges(
        first * STEP_S,
        _mean_db(levels[: max(0, first - margin)]),
        (len(levels) - 1 - last) * STEP_S,
        _mean_db(levels[last + 1 + margin :]),
        float(abs(samples[-1])),
    )


def seam(samples: Samples, rate: int, at: int) -> Seam:
    """Of the two pieces that meet at sample ``at``."""
    steps = np.abs(np.diff(samples.astype(np.float64)))
    near = round(rate * NEAR_S)
    jump = float(steps[max(0, at - near) : at + near].max(initial=0.0))
    around = steps[max(0, at - 2 * rate) : at + 2 * rate]
    levels = levels_db(samples, rate)
    quiet = np.flatnonzero(~is_sound(levels))
    where = at / (rate * STEP_S)
    usual = float(np.percentile(around, 99.9))
    if not len(quiet):
        return Seam(jump, usual, 0.0, 0.0)
    middle = int(quiet[np.argmin(np.abs(quiet - where))])
    if abs(middle - where) * STEP_S > PAUSE_WITHIN_S:
        return Seam(jump, usual, 0.0, 0.0)
    runs = np.split(quiet, np.flatnonzero(np.diff(quiet) > 1) + 1)
    run = next(run for run in runs if run[0] <= middle <= run[-1])
    return Seam(jump, usual, len(run) * STEP_S, _mean_db(levels[run]))


def picture(samples: Samples, rate: int, marks: Sequence[int] = ()) -> bytes:
    """A PNG of the spectrum up to :data:`HIGHEST_HZ`, dark is loud, a column each
    :data:`STEP_S`; a line at each sample of ``marks``."""
    hop = round(rate * STEP_S)
    padded = np.pad(samples.astype(np.float64), WINDOW // 2)
    count = max(1, (len(padded) - WINDOW) // hop)
    index = np.arange(WINDOW)[None] + hop * np.arange(count)[:, None]
    window = np.hanning(WINDOW)
    spectrum = np.abs(np.fft.rfft(padded[index] * window, axis=1)) / window.sum()
    rows = round(HIGHEST_HZ * WINDOW / rate)
    shade = (_decibel(spectrum[:, :rows]) - DARKEST_DB) / (BRIGHTEST_DB - DARKEST_DB)
    image = 255 - (255 * shade.clip(0, 1)).astype(np.uint8).T[::-1]
    for mark in marks:
        image[::2, min(count - 1, mark // hop)] = 0
    return png(image)


def png(image: npt.NDArray[np.uint8]) -> bytes:
    """An image [rows, columns] in grey."""
    rows, columns = image.shape
    lines = np.zeros((rows, columns + 1), np.uint8)
    lines[:, 1:] = image

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    header = struct.pack(">IIBBBBB", columns, rows, 8, 0, 0, 0, 0)
    packed = zlib.compress(lines.tobytes(), 9)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", packed) + chunk(b"IEND", b"")
    )


def _decibel(amplitude: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    return 20 * np.log10(np.maximum(amplitude, 10 ** (QUIETEST_DB / 20)))


def _mean_db(levels: npt.NDArray[np.float64]) -> float:
    """Of the power; as quiet as can be where there is nothing."""
    if not len(levels):
        return QUIETEST_DB
    return float(10 * np.log10(np.mean(10 ** (levels / 10))))

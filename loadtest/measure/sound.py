"""What the samples themselves show: first audible one, clipping, how the end sounds. Pure.

Fed chunk by chunk so that no turn's audio has to be looked at twice or at once.
"""

from __future__ import annotations

import math

import numpy as np

from .timeline import Sound

AUDIBLE_DBFS = -50.0
SILENCE_DBFS = -120.0
"""Stands for no signal at all; one bit of 16 is at -90."""
TAIL_MS = 10
CLIP_RUN = 3
"""So many samples in a row at full scale are clipping; fewer may be a loud but honest peak."""

_FULL_SCALE = 32768.0


def level_dbfs(samples: np.ndarray) -> float:
    """RMS of int16 ``samples`` against full scale, ``SILENCE_DBFS`` for zeros or nothing."""
    if samples.size == 0:
        return SILENCE_DBFS
    rms = float(np.sqrt(np.mean(np.square(samples.astype(np.float64)))))
    return 20.0 * math.log10(rms / _FULL_SCALE) if rms > 0 else SILENCE_DBFS


class SoundMeter:
    """Takes mono signed 16-bit little-endian audio in pieces of any whole number of samples."""

    def __init__(self, rate: int, audible_dbfs: float = AUDIBLE_DBFS) -> None:
        self._threshold = _FULL_SCALE * 10 ** (audible_dbfs / 20.0)
        self._tail_samples = max(1, rate * TAIL_MS // 1000)
        self._seen = 0
        self._first_audible: int | None = None
        self._peak = 0
        self._clipped = 0
        self._run = 0
        self._tail = np.zeros(0, dtype=np.int16)

    def feed(self, pcm: bytes) -> None:
        samples = np.frombuffer(pcm, dtype="<i2")
        if samples.size == 0:
            return
        loudness = np.abs(samples.astype(np.int32))
        if self._first_audible is None:
            loud = np.flatnonzero(loudness > self._threshold)
            if loud.size:
                self._first_audible = self._seen + int(loud[0])
        peak = int(loudness.max())
        self._peak = max(self._peak, peak)
        if peak >= 32767 or self._run:
            self._count_clipping(loudness >= 32767)
        self._seen += samples.size
        self._tail = np.concatenate((self._tail, samples[-self._tail_samples :]))
        self._tail = self._tail[-self._tail_samples :]

    def result(self, leftover_bytes: int = 0, repeated_headers: int = 0) -> Sound:
        """The figures so far; the two counts come from whoever unpacked the container."""
        return Sound(
            self._first_audible,
            self._peak,
            self._clipped,
            level_dbfs(self._tail) if self._seen else None,
            leftover_bytes,
            repeated_headers,
        )

    def _count_clipping(self, full: np.ndarray) -> None:
        """Count samples that stand in runs of at least ``CLIP_RUN``, across chunk borders."""
        for flag in full.tolist():
            if flag:
                self._run += 1
                if self._run == CLIP_RUN:
                    self._clipped += CLIP_RUN
                elif self._run > CLIP_RUN:
                    self._clipped += 1
            else:
                self._run = 0

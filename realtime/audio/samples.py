"""``Samples``: the model's samples at a format's rate, with a gain, as a stream; and quiet."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import soxr  # pyright: ignore[reportMissingTypeStubs]

_QUIET: Final = 64
"""-54 dB of full scale: below what is heard beside speech."""
_TAIL_BYTES: Final = 512


def quiet_samples(pcm: bytes) -> int:
    """How many samples of s16le are quiet before the first that is not."""
    loud = _loud(pcm)
    return int(loud[0]) if len(loud) else len(pcm) // 2


def loud_samples(pcm: bytes) -> int:
    """How many samples of s16le there are up to the last that is not quiet."""
    for begin in (max(0, len(pcm) - _TAIL_BYTES), 0):  # speech seldom ends in much quiet
        loud = _loud(pcm[begin:])
        if len(loud):
            return begin // 2 + int(loud[-1]) + 1
    return 0


def _loud(pcm: bytes) -> npt.NDArray[np.intp]:
    samples = np.frombuffer(pcm, "<i2")
    return np.flatnonzero((samples > _QUIET) | (samples < -_QUIET))


class Samples:
    """Mono s16le from one rate to another.

    The resampler's variable-rate mode at a constant ratio: its other mode works in blocks, which
    would hold the first sound back by up to 70 ms instead of 5 to 30.
    """

    def __init__(self, rate_in: int, rate_out: int, volume_db: float = 0.0) -> None:
        self.rate = rate_out
        self._gain = np.float32(10.0 ** (volume_db / 20.0))
        self._changes = rate_in != rate_out or volume_db != 0.0
        self._resampler = (
            None if rate_in == rate_out else soxr.ResampleStream(rate_in, rate_out, 1, vr=True)
        )

    def convert(self, pcm: bytes) -> bytes:
        """What is ready. Raises ValueError for half a sample."""
        if len(pcm) % 2:
            raise ValueError("pcm must be whole 16-bit samples")
        if not pcm or not self._changes:
            return pcm
        return self._through(np.frombuffer(pcm, "<i2").astype(np.float32), last=False)

    def rest(self) -> bytes:
        """What the resampler still holds."""
        return self._through(np.zeros(0, np.float32), last=True) if self._resampler else b""

    def _through(self, samples: npt.NDArray[np.float32], *, last: bool) -> bytes:
        if self._resampler is not None:
            samples = self._resampler.resample_chunk(samples, last=last)
        louder = np.rint(samples * self._gain)
        return np.clip(louder, -32768, 32767).astype("<i2").tobytes()

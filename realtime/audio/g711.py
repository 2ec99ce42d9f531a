"""G.711, the telephone's sound: 16-bit samples to 8-bit mu-law or A-law. Pure.

Both laws write a sign, the exponent of a power of two and four bits after it. The tables hold the
code of every 16-bit sample and are made on first use; they never change.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt

_Table = npt.NDArray[np.uint8]
_BIAS = 0x84 >> 2
"""Added to a 14-bit magnitude, so that mu-law's first step begins at a power of two."""
_LOUDEST_14 = 8158
_SIGN = 0x80
ULAW_SILENCE = b"\xff"
ALAW_SILENCE = b"\xd5"


def ulaw(pcm: bytes) -> bytes:
    """s16le to mu-law, a byte a sample."""
    return _ulaw_table()[np.frombuffer(pcm, "<u2")].tobytes()


def alaw(pcm: bytes) -> bytes:
    """s16le to A-law, a byte a sample."""
    return _alaw_table()[np.frombuffer(pcm, "<u2")].tobytes()


def _all_samples() -> npt.NDArray[np.int32]:
    """[65536] every sample, at the place of its bits read as unsigned."""
    return np.arange(1 << 16, dtype=np.uint16).view(np.int16).astype(np.int32)


@cache
def _ulaw_table() -> _Table:
    fourteen = _all_samples() >> 2
    # The law has a zero of each sign: magnitudes of negatives are those of a ones' complement.
    magnitude = np.where(fourteen < 0, ~fourteen, fourteen)
    biased = np.minimum(magnitude, _LOUDEST_14) + _BIAS
    exponent = np.floor(np.log2(biased)).astype(np.int32) - 5
    mantissa = biased >> (exponent + 1) & 0xF
    sign = np.where(fourteen < 0, _SIGN, 0)
    return (~(sign | exponent << 4 | mantissa) & 0xFF).astype(np.uint8)


@cache
def _alaw_table() -> _Table:
    thirteen = _all_samples() >> 3
    magnitude = np.where(thirteen < 0, ~thirteen, thirteen)
    exponent = np.maximum(np.floor(np.log2(np.maximum(magnitude, 1))).astype(np.int32) - 4, 0)
    mantissa = magnitude >> np.maximum(exponent, 1) & 0xF
    sign = np.where(thirteen < 0, 0, _SIGN)
    return ((sign | exponent << 4 | mantissa) ^ 0x55).astype(np.uint8)

"""How often a turn's voice is prefilled already where the turn lands. Pure.

Voices are asked for by Zipf's law. A cache that drops what was unused longest keeps a voice for a
certain time after each use; that time is the one at which it is just full (Che's approximation).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Voices:
    """``kept``: prefilled voices that one GPU holds."""

    count: int = 50_000
    exponent: float = 1.0
    kept: int = 256

    def shares(self) -> FloatArray:
        """Of all turns, what each voice has, most wanted first."""
        weights = np.arange(1, self.count + 1, dtype=np.float64) ** -self.exponent
        return weights / weights.sum()


def hit_share(shares: FloatArray, kept: float) -> float:
    """Of all turns, those that find their voice in a cache of ``kept`` voices."""
    if kept >= len(shares):
        return 1.0
    low, high = 0.0, kept
    while _expected(shares, high) < kept:
        high *= 2.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _expected(shares, middle) < kept else (low, middle)
    return float((shares * -np.expm1(-shares * high)).sum())


def _expected(shares: FloatArray, uses: float) -> float:
    """Voices in the cache when it keeps each for ``uses`` turns of the whole."""
    return float(-np.expm1(-shares * uses).sum())


def fleet_hit_share(voices: Voices, replicas: int, affinity: bool) -> float:
    """With affinity every GPU keeps voices of its own; without, all keep the same ones."""
    return hit_share(voices.shares(), float(voices.kept * (replicas if affinity else 1)))

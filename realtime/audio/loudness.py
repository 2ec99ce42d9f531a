"""``Loudness``: speech at one loudness, as a stream, without delay.

The level is measured as BS.1770 weighs it (its high shelf; its filter against rumble is left out),
over the speech of the last seconds. The gain follows slowly and stands still in pauses; peaks are
bent before full scale. Each block's gain depends on earlier blocks only, so nothing waits and what
comes out does not depend on how the input was cut. Pure; one object a turn.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
import numpy.typing as npt

Wave = npt.NDArray[np.float32]
TARGET_LUFS: Final = -20.0
MOST_DB: Final = 15.0
"""Most gain, up or down."""
FIRST_DB_PER_S: Final = 24.0
"""How fast the gain may change in the first half second of speech: its level is found then."""
LATER_DB_PER_S: Final = 2.0
_BLOCKS_A_SECOND: Final = 100
_FIRST_BLOCKS: Final = 50
_MEMORY_BLOCKS: Final = 300
_CERTAIN_BLOCKS: Final = 8
"""After this much speech two thirds of what its level asks for are done."""
_PAUSE_LUFS: Final = -50.0
_OFFSET_LUFS: Final = -0.691
_KNEE: Final = np.float32(0.7)
_TAPS: Final = 24


class Loudness:
    """Mono float32, full scale 1."""

    def __init__(self, rate: int) -> None:
        self._block = rate // _BLOCKS_A_SECOND
        self._shelf = _shelf(rate)
        self._ramp = np.arange(self._block, dtype=np.float32) / np.float32(self._block)
        # What came of the block that is not full, behind as much before it as the filter sees.
        self._seen = np.zeros(_TAPS - 1, np.float32)
        self._energy = 0.0
        self._weight = 0.0
        self._speech_blocks = 0
        self.gain_db = 0.0
        """The gain at the end of the block that is being filled."""
        self._gains = [1.0, 1.0]
        """At the beginning and at the end of that block."""

    def process(self, samples: Wave) -> Wave:
        """As many samples as were given. A chunk is measured as a whole: its blocks cost a few
        numbers each. Sums are taken in an order that no cut of the input changes."""
        if not len(samples):
            return samples
        filled = len(self._seen) - (_TAPS - 1)
        seen = np.concatenate((self._seen, samples))
        blocks, rest = divmod(filled + len(samples), self._block)
        for energy in self._energies(seen, blocks):
            if _lufs(energy) > _PAUSE_LUFS:
                self._heard(energy)
            self._gains.append(10.0 ** (self.gain_db / 20.0))
        edges = np.array(self._gains[: blocks + 2], np.float32)[:, None]
        ramps = edges[:-1] + (edges[1:] - edges[:-1]) * self._ramp
        del self._gains[:blocks]
        self._seen = seen[-(_TAPS - 1 + rest) :]
        return _bent(samples * ramps.reshape(-1)[filled : filled + len(samples)])

    def _energies(self, seen: Wave, blocks: int) -> list[float]:
        """Of the first ``blocks`` blocks, weighed."""
        count = blocks * self._block
        weighed, part = np.zeros(count, np.float32), np.empty(count, np.float32)
        for lag, tap in enumerate(self._shelf):
            begin = _TAPS - 1 - lag
            np.multiply(seen[begin : begin + count], tap, out=part)
            weighed += part
        np.multiply(weighed, weighed, out=part)
        sums = part.reshape(blocks, self._block).sum(1)
        return [float(total) / self._block for total in sums]

    def _heard(self, energy: float) -> None:
        """A block of speech: move the gain towards what its level and those before ask for."""
        fade = math.exp(-1.0 / _MEMORY_BLOCKS)
        self._energy = self._energy * fade + energy
        self._weight = self._weight * fade + 1.0
        self._speech_blocks += 1
        certainty = 1.0 - math.exp(-self._speech_blocks / _CERTAIN_BLOCKS)
        wanted = (TARGET_LUFS - _lufs(self._energy / self._weight)) * certainty
        wanted = min(max(wanted, -MOST_DB), MOST_DB)
        early = self._speech_blocks <= _FIRST_BLOCKS
        most = (FIRST_DB_PER_S if early else LATER_DB_PER_S) / _BLOCKS_A_SECOND
        self.gain_db += min(max(wanted - self.gain_db, -most), most)


def _lufs(energy: float) -> float:
    return _OFFSET_LUFS + 10.0 * math.log10(max(energy, 1e-12))


def _bent(samples: Wave) -> Wave:
    """Untouched up to the knee, and never beyond full scale."""
    size = np.abs(samples)
    if not len(samples) or size.max() <= _KNEE:
        return samples
    room = np.float32(1.0) - _KNEE
    bent = _KNEE + room * np.tanh((size - _KNEE) / room)
    return np.where(size > _KNEE, np.copysign(bent, samples), samples).astype(np.float32)


def _shelf(rate: int) -> Wave:
    """BS.1770's high shelf at any rate, as the beginning of its impulse response."""
    k = math.tan(math.pi * 1681.974450955533 / rate)
    high = 10.0 ** (3.999843853973347 / 20.0)
    band = high**0.4996667741545416
    q = 0.7071752369554196
    a0 = 1.0 + k / q + k * k
    b = [(high + band * k / q + k * k) / a0, 2.0 * (k * k - high) / a0]
    b += [(high - band * k / q + k * k) / a0, *[0.0] * _TAPS]
    a1, a2 = 2.0 * (k * k - 1.0) / a0, (1.0 - k / q + k * k) / a0
    response: list[float] = []
    for n in range(_TAPS):
        earlier = (response[n - 1] if n > 0 else 0.0), (response[n - 2] if n > 1 else 0.0)
        response.append(b[n] - a1 * earlier[0] - a2 * earlier[1])
    return np.array(response, np.float32)

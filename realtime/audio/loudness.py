"""``Loudness``: speech at one loudness, as a stream, without delay.

The level is measured as BS.1770 weighs it (its high shelf; its filter against rumble is left out),
over the speech of the last seconds. The gain follows slowly and stands still in pauses; peaks are
bent before full scale. Each block's gain depends on earlier blocks only, so nothing waits and what
comes out does not depend on how the input was cut. Pure; one object a turn.
"""

from __future__ import annotations

import math
from typing import Final, cast

import numpy as np
import numpy.typing as npt

Wave = npt.NDArray[np.float32]
Samples = npt.NDArray[np.int16]
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
_PAUSE_ENERGY: Final = 10.0 ** ((_PAUSE_LUFS - _OFFSET_LUFS) / 10.0)
_FADE: Final = math.exp(-1.0 / _MEMORY_BLOCKS)
_FIRST_STEP_DB: Final = FIRST_DB_PER_S / _BLOCKS_A_SECOND
_LATER_STEP_DB: Final = LATER_DB_PER_S / _BLOCKS_A_SECOND
_SURE_BLOCKS: Final = 40 * _CERTAIN_BLOCKS
"""From here on what is missing to certainty is less than a float can tell."""
_FULL_SCALE: Final = 32_768
_KNEE: Final = 0.7
_MOST: Final = np.float32(32_767)
_TAPS: Final = 24
_UNIT: Final = 1024
"""What 1 is among the filter's whole numbers."""
_LEAST: Final = 256
"""Of a weighed sample, what is too little to count."""
_EVERY: Final = 8


class Loudness:
    """Mono int16. Few operations on whole chunks: each that is a large one lets go of the
    interpreter, and has to wait for it again while other threads are busy."""

    def __init__(self, rate: int) -> None:
        self._block = rate // _BLOCKS_A_SECOND
        # Whole numbers add up to the same in any order, so no cut of the input changes a sum.
        self._taps = np.rint(_shelf(rate)[::-1] * _UNIT).astype(np.int32)
        self._points = self._block // _EVERY
        self._ramp = np.arange(self._block, dtype=np.float32) / np.float32(self._block)
        # What came of the block that is not full, behind as much before it as the filter sees.
        self._seen = np.zeros(_TAPS - 1, np.int16)
        self._energy = 0.0
        self._weight = 0.0
        self._speech_blocks = 0
        self.gain_db = 0.0
        """The gain at the end of the block that is being filled."""
        self._gains = [1.0, 1.0]
        """At the beginning and at the end of that block."""

    def process(self, samples: Samples) -> Samples:
        """As many samples as were given."""
        if not len(samples):
            return samples
        filled = len(self._seen) - (_TAPS - 1)
        seen = np.concatenate((self._seen, samples))
        blocks, rest = divmod(filled + len(samples), self._block)
        if blocks:
            self._follow(self._energies(seen, blocks))
        edges = np.array(self._gains[: blocks + 2], np.float32)[:, None]
        ramps = edges[:-1] + (edges[1:] - edges[:-1]) * self._ramp
        del self._gains[:blocks]
        self._seen = seen[-(_TAPS - 1 + rest) :].copy()
        louder = cast(Wave, samples * ramps.reshape(-1)[filled : filled + len(samples)])
        if max(int(samples.max()), -int(samples.min())) * float(edges.max()) > _KNEE * _FULL_SCALE:
            louder = _bent(louder)
        return np.rint(louder, out=louder).astype(np.int16)

    def _energies(self, seen: Samples, blocks: int) -> list[float]:
        """Of the first ``blocks`` blocks, weighed, from every few samples of each: as much power
        is in those as in all."""
        step, apart = seen.strides[0], _EVERY * seen.strides[0]
        shape, strides = (blocks, self._points, _TAPS), (self._block * step, apart, step)
        windows = np.ndarray(shape, seen.dtype, seen, strides=strides)
        weighed = np.matmul(windows.astype(np.int32), self._taps) // _LEAST
        sums = np.einsum("bp,bp->b", weighed, weighed, dtype=np.int64)
        unit = float(_FULL_SCALE * _UNIT / _LEAST) ** 2 * self._points
        return [int(total) / unit for total in sums]

    def _follow(self, energies: list[float]) -> None:
        """Block after block: where it is speech, move the gain towards what its level and those
        before ask for. A hundred times a second for every listener, so nothing is called twice."""
        gain_db, energy_sum, weight = self.gain_db, self._energy, self._weight
        spoken, gains = self._speech_blocks, self._gains
        for energy in energies:
            if energy > _PAUSE_ENERGY:
                energy_sum = energy_sum * _FADE + energy
                weight = weight * _FADE + 1.0
                spoken += 1
                wanted = TARGET_LUFS - _OFFSET_LUFS - 10.0 * math.log10(energy_sum / weight)
                if spoken < _SURE_BLOCKS:
                    wanted *= 1.0 - math.exp(-spoken / _CERTAIN_BLOCKS)
                wanted = MOST_DB if wanted > MOST_DB else -MOST_DB if wanted < -MOST_DB else wanted
                most = _FIRST_STEP_DB if spoken <= _FIRST_BLOCKS else _LATER_STEP_DB
                step = wanted - gain_db
                gain_db += most if step > most else -most if step < -most else step
            gains.append(10.0 ** (gain_db / 20.0))
        self.gain_db, self._energy, self._weight = gain_db, energy_sum, weight
        self._speech_blocks = spoken


def _bent(samples: Wave) -> Wave:
    """Untouched up to the knee, and never beyond full scale."""
    size = np.abs(samples) / np.float32(_FULL_SCALE)
    knee, room = np.float32(_KNEE), np.float32(1.0 - _KNEE)
    bent = np.copysign((knee + room * np.tanh((size - knee) / room)) * _MOST, samples)
    return np.where(size > knee, bent, samples).astype(np.float32)


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

"""``Stretch``: speech faster or slower at the same pitch, as a stream.

Waveform-similarity overlap-add: the output is pieces of the input, each cross-faded into the next,
and each taken from where the wave goes on most like the piece before. It holds back at most 50 ms.
What comes out does not depend on how the input was cut. Pure; one object a turn.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

Wave = npt.NDArray[np.float32]
_HOP_S: Final = 0.015
"""A piece, and its cross-fade: longer than the period of the lowest voice, 70 Hz."""
_SEARCH_S: Final = 0.0075
"""How far from its place a piece is looked for: together one such period."""
_NEARER: Final = 0.01
"""How much likeness, of one, a piece at the edge must have more than one in its place."""


class Stretch:
    """``speed`` 0.5..2: seconds of input in a second of output."""

    def __init__(self, rate: int, speed: float) -> None:
        self._speed = speed
        self._hop = round(_HOP_S * rate)
        self._reach = round(_SEARCH_S * rate)
        turn = np.linspace(0, np.pi, self._hop, endpoint=False)
        self._fade_in: Wave = ((1.0 - np.cos(turn)) / 2.0).astype(np.float32)
        self._fft = 1 << (2 * self._hop + 2 * self._reach).bit_length()
        self._reset()

    def process(self, samples: Wave) -> Wave:
        """Float32 in any scale; what is ready."""
        self._held = np.concatenate((self._held, samples))
        self._given += len(samples)
        return _joined(self._ready())

    def flush(self) -> Wave:
        """All the rest, so that the output is ``1 / speed`` times as long as the input. What is
        given after that begins anew."""
        left = round(self._given / self._speed) - self._made
        margin = np.zeros(4 * self._hop + 2 * self._reach, np.float32)
        pieces: list[Wave] = []
        while left > sum(map(len, pieces)):
            self._held = np.concatenate((self._held, margin))
            pieces += self._ready()
        self._reset()
        return _joined(pieces)[:left]

    def _reset(self) -> None:
        self._held = np.zeros(0, np.float32)
        self._start = 0  # place of the first held sample in the input
        self._given = 0
        self._made = 0
        self._pieces = 0
        self._next = 0  # where the last piece would go on

    def _ready(self) -> list[Wave]:
        """The pieces for which there is enough input."""
        hop, reach = self._hop, self._reach
        out: list[Wave] = []
        while True:
            place = round(self._pieces * hop * self._speed)
            end = self._start + len(self._held)
            if max(self._next, place + reach) + hop > end:
                break
            if self._pieces == 0:
                begin, piece = 0, self._at(0)
            else:
                expected = self._at(self._next)
                begin = self._most_like(expected, place)
                faded = expected + (self._at(begin) - expected) * self._fade_in
                piece = faded.astype(np.float32, copy=False)
            out.append(piece)
            self._made += hop
            self._pieces += 1
            self._next = begin + hop
            keep = min(self._next, round(self._pieces * hop * self._speed) - reach)
            self._held = self._held[max(0, min(keep, end) - self._start) :]
            self._start = end - len(self._held)
        return out

    def _at(self, place: int) -> Wave:
        begin = place - self._start
        return self._held[begin : begin + self._hop]

    def _most_like(self, expected: Wave, place: int) -> int:
        """Where, around ``place``, the input is most like ``expected``."""
        low = max(place - self._reach, self._start)
        count = place + self._reach - low + 1
        region = self._held[low - self._start :][: count + self._hop - 1]
        count = len(region) - self._hop + 1
        spectrum = np.fft.rfft(region, self._fft) * np.conj(np.fft.rfft(expected, self._fft))
        products = np.fft.irfft(spectrum, self._fft)[:count]
        sums = np.concatenate(((0.0,), np.cumsum(np.square(region, dtype=np.float64))))
        energy = (sums[self._hop :] - sums[: -self._hop]) * float(np.dot(expected, expected))
        likeness = products / np.sqrt(np.maximum(energy, 1e-9))
        distance = np.abs(np.arange(low - place, low - place + count)) / self._reach
        return low + int(np.argmax(likeness - _NEARER * distance))


def _joined(pieces: list[Wave]) -> Wave:
    return np.concatenate(pieces) if pieces else np.zeros(0, np.float32)

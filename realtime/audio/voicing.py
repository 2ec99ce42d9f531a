"""``Voicing``: what a request asks of the voice whatever its format: its speed and its loudness.

Its volume is a gain after these, so that it is relative to the normal loudness. One object a turn.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from shoal.proto.messages import Prosody

from .loudness import Loudness
from .stretch import Stretch

_FULL_SCALE = np.float32(32768)


class Voicing:
    """Mono s16le in and out. Bytes pass untouched where nothing is asked for."""

    def __init__(self, prosody: Prosody, rate: int) -> None:
        self._stretch = None if prosody.speed == 1.0 else Stretch(rate, prosody.speed)
        self._loudness = Loudness(rate) if prosody.normalize_loudness else None

    @property
    def dear(self) -> bool:
        """Whether it takes longer than an event loop should be held up."""
        return self._stretch is not None

    def shape(self, pcm: bytes) -> bytes:
        """What is ready. Raises ValueError for half a sample."""
        if len(pcm) % 2:
            raise ValueError("pcm must be whole 16-bit samples")
        if self._stretch is None and self._loudness is None:
            return pcm
        samples = np.frombuffer(pcm, "<i2")
        if self._stretch is not None:
            samples = _whole(self._stretch.process(samples.astype(np.float32) / _FULL_SCALE))
        return self._levelled(samples)

    def flush(self) -> bytes:
        """The rest of what was given so far; what comes after may be another sentence."""
        return b"" if self._stretch is None else self._levelled(_whole(self._stretch.flush()))

    def _levelled(self, samples: npt.NDArray[np.int16]) -> bytes:
        if self._loudness is not None:
            samples = self._loudness.process(samples)
        return samples.astype("<i2", copy=False).tobytes()


def _whole(samples: npt.NDArray[np.float32]) -> npt.NDArray[np.int16]:
    return np.clip(np.rint(samples * _FULL_SCALE), -32768, 32767).astype(np.int16)

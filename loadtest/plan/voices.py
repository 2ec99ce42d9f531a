"""Which voice speaks: a few popular ones and a long tail (Zipf), now and then a fresh reference."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate


@dataclass(frozen=True, slots=True)
class Voice:
    """A voice as a target needs it: an id, or a recording with its words. Both empty: default."""

    voice_id: str = ""
    reference_audio: bytes = field(default=b"", repr=False)
    reference_text: str = field(default="", repr=False)

    @property
    def label(self) -> str:
        """For the report: never the recording or its words."""
        return self.voice_id or ("reference" if self.reference_audio else "default")


@dataclass(frozen=True, slots=True)
class VoiceMix:
    """Voices in order of popularity: number k is chosen with weight 1/k^``exponent``.

    ``fresh_share`` of the turns bring ``reference`` with one bit of noise changed, so that no
    cache can have seen it.
    """

    voices: tuple[Voice, ...] = (Voice(),)
    exponent: float = 1.0
    reference: Voice | None = None
    fresh_share: float = 0.0

    def pick(self, rng: random.Random) -> Voice:
        if self.reference is not None and rng.random() < self.fresh_share:
            return freshen(self.reference, rng)
        return rng.choices(self.voices, cum_weights=_zipf(self.voices, self.exponent))[0]


def _zipf(voices: Sequence[Voice], exponent: float) -> list[float]:
    return list(accumulate(1.0 / k**exponent for k in range(1, len(voices) + 1)))


def freshen(voice: Voice, rng: random.Random) -> Voice:
    """The same recording to the ear, other bytes: 32 low bits in the last half are redrawn.

    Meant for PCM WAV files, where a low bit is noise at -90 dB.
    """
    audio = bytearray(voice.reference_audio)
    start = (len(audio) // 2) & ~1
    for _ in range(32):
        at = start + 2 * rng.randrange(max(1, (len(audio) - start) // 2))
        if at < len(audio):
            audio[at] = (audio[at] & 0xFE) | rng.getrandbits(1)
    return Voice(voice.voice_id, bytes(audio), voice.reference_text)

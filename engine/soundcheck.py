"""Whether a recording can be a voice, and whether its transcript can be what is said in it.

Pure functions over samples and text; the limits are set so that speech in any quality passes, and
what they refuse could not have made a voice. Knows nothing of files. Any thread; no torch.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import cast

import numpy as np
import numpy.typing as npt
import soxr  # pyright: ignore[reportMissingTypeStubs]

Float32Array = npt.NDArray[np.float32]

_RATE = 8000
_FRAME = 320
_COLOUR = 0.9
_MAX_FRAMES = 1500
"""Frames that are looked at; of a long recording every n-th."""
_PITCH_HZ = (70.0, 400.0)
_VOICED = 0.42
"""Likeness of a frame to itself one period later. One in a hundred frames of noise reaches 0.35; of
speech as loud as the white noise over it, 0.49; of clean speech 0.89."""
_STEADY_DB = 8.0
"""Between the quietest and the loudest tenth. A fan has 2, speech above as much noise 9."""
_FLAT_RUN = 4
_FLAT_STEP = 2e-5
"""Less than one step of 16 bits apart: samples that a limit cut off, not a wave's crest."""

_HUM_HZ = 48.0
_TONE_DB = 3.0
_TONE = 0.8
"""A tone's frames are as loud as each other, and like themselves one period later."""
_BAND_DB = -35.0
"""What is left of the whole in the band of voices. Of a tone above it -45, by the ends of the
recording; of speech -15 at the least, without all that is above 400 Hz."""
_AUDIBLE_DB = 30.0
"""Below the level of speech. What is quieter counts as silence."""
_LOUD_S = 0.1
"""Seconds that are louder than what is taken for the level of speech: more than a knock has."""

SHORT_S = 3.0
"""What imitation needs to be good."""
_SLOWEST, _FASTEST = 1.5, 30.0
"""Letters a second. Slow speech has 8, an auctioneer 25."""
_WIDE = 2.5
"""Letters that one character of a script without an alphabet stands for."""


def voice_band(samples: Float32Array, rate: int) -> Float32Array:
    """What of mono ``samples`` lies below 4 kHz, at 8 kHz, and without the deep sounds that no
    voice makes."""
    if rate != _RATE:
        samples = cast(Float32Array, soxr.resample(samples, rate, _RATE, "LQ"))
    return (samples[1:] - np.float32(_COLOUR) * samples[:-1]).astype(np.float32)


def is_noise(band: Float32Array) -> bool:
    """Whether a :func:`voice_band` holds neither a voiced sound nor the rise and fall of speech."""
    frames = _frames(band)
    levels = 10 * np.log10((frames**2).mean(axis=1) + 1e-12)
    low, high = np.percentile(levels, (10, 90))
    return bool(high - low < _STEADY_DB and np.percentile(_periodicity(frames), 99) < _VOICED)


def is_above_voices(band: Float32Array, samples: Float32Array, rate: int) -> bool:
    """Whether mono ``samples`` hold next to nothing in their ``band``, as a high tone does."""
    length = _FRAME * rate // _RATE
    whole = _power(samples[: len(samples) // length * length].reshape(-1, length))
    return _power(_frames(band)) < whole * 10 ** (_BAND_DB / 10)


def is_tone(band: Float32Array) -> bool:
    """Whether a :func:`voice_band` holds nothing but one steady tone, and maybe silence."""
    frames = _frames(band)
    levels = 10 * np.log10((frames**2).mean(axis=1) + 1e-12)
    heard = levels > levels.max() - _AUDIBLE_DB
    low, high = np.percentile(levels[heard], (10, 90))
    return bool(
        high - low < _TONE_DB and np.percentile(_periodicity(frames[heard], _HUM_HZ), 10) > _TONE
    )


def sound_s(samples: Float32Array, rate: int) -> float:
    """Seconds of mono ``samples`` that are no silence beside the rest."""
    length = max(1, rate // 50)
    whole = samples[: len(samples) // length * length].reshape(-1, length)
    levels = 10 * np.log10((whole.astype(np.float32) ** 2).mean(axis=1) + 1e-12)
    if not len(levels):
        return 0.0
    loud = np.sort(levels)[-min(len(levels), int(_LOUD_S * rate / length))]
    return float((levels > loud - _AUDIBLE_DB).sum()) * length / rate


def clipped_share(samples: Float32Array) -> float:
    """Of the samples louder than half the peak, the share in flat runs at the peak."""
    level = np.abs(samples)
    peak = float(level.max(initial=0.0))
    loud = level > 0.5 * peak
    steps = np.diff(samples)
    flat = (level[1:] > 0.97 * peak) & (np.abs(steps, out=steps) < _FLAT_STEP)
    # A run of n equal samples is n - 1 flat steps.
    edges = np.flatnonzero(np.diff(np.pad(flat.view(np.int8), 1)))
    runs = edges[1::2] - edges[::2] + 1
    return float(runs[runs >= _FLAT_RUN].sum() / max(1, loud.sum()))


def reference_doubt(texts: Sequence[str], seconds: Sequence[float]) -> str:
    """Why the transcripts cannot be what is said in recordings of so many seconds, or why these
    make a poor voice, in their sender's terms; empty when all is well."""
    for number, (text, length_s) in enumerate(zip(texts, seconds, strict=True), 1):
        which = "the reference's transcript" if len(texts) == 1 else f"transcript {number}"
        letters = _letters(text)
        pace = letters / length_s
        if not letters:
            return f"{which} is empty: say what is spoken in the recording to be better imitated"
        if not _SLOWEST <= pace <= _FASTEST:
            long = "long" if pace > _FASTEST else "short"
            return (
                f"{which} is too {long} for its recording ({pace:.1f} letters a second): "
                "what is spoken there must be written there, word for word"
            )
    if 0.0 < sum(seconds) < SHORT_S:
        return (
            f"{sum(seconds):.1f} s of reference audio are little: a voice is imitated better "
            f"from {SHORT_S:g} s or more"
        )
    return ""


def _letters(text: str) -> float:
    count = 0.0
    for char in text:
        if char.isalnum():
            count += _WIDE if unicodedata.east_asian_width(char) in "WF" else 1.0
    return count


def _frames(samples: Float32Array) -> Float32Array:
    """[frames, length]; zeros are appended where there is less than one."""
    if len(samples) < _FRAME:
        samples = np.pad(samples, (0, _FRAME - len(samples)))
    frames = np.lib.stride_tricks.sliding_window_view(samples, _FRAME)[:: _FRAME // 2]
    return frames[:: -(-len(frames) // _MAX_FRAMES)]


def _power(frames: Float32Array) -> float:
    """Mean square of what moves within a frame."""
    if not len(frames):
        return 0.0
    # Without a copy in float64, which of a minute at 384 kHz would be 180 MB.
    squares = np.einsum("ij,ij->i", frames, frames, dtype=np.float64) / frames.shape[1]
    return float((squares - frames.mean(axis=1, dtype=np.float64) ** 2).mean())


def _periodicity(frames: Float32Array, lowest_hz: float = _PITCH_HZ[0]) -> npt.NDArray[np.float64]:
    """Per frame, how like itself it is one period of some pitch later: 1 is a tone."""
    centred = frames.astype(np.float64)
    centred -= centred.mean(axis=1, keepdims=True)
    power = np.abs(np.fft.rfft(centred, 2 * _FRAME, axis=1)) ** 2
    alike = np.fft.irfft(power, 2 * _FRAME, axis=1)
    lags = np.arange(int(_RATE / _PITCH_HZ[1]), int(_RATE / lowest_hz) + 1)
    peaks = alike[:, lags] * (_FRAME / (_FRAME - lags))
    return peaks.max(axis=1) / (alike[:, 0] + 1e-12)

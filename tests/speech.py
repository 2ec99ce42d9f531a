"""Speech for tests of sound: recordings, a vowel, and what to measure of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import soundfile

Wave = npt.NDArray[np.float32]
DATA = Path(__file__).parent / "data"
RATE = 24_000
LOWEST_HZ, HIGHEST_HZ = 70, 400


def builtin_voice() -> Wave:
    """Two sentences, 7.1 s at 24 kHz."""
    return read("builtin.ogg")


def read(file: str) -> Wave:
    samples, rate = soundfile.read(DATA / file, dtype="float32")
    assert rate == RATE
    return samples


def vowel(hz: float, seconds: float, rate: int = RATE) -> Wave:
    """A steady "ah": harmonics of ``hz`` under two formants."""
    t = np.arange(round(seconds * rate)) / rate
    out = np.zeros(len(t))
    for n in range(1, int(4000 / hz)):
        f = n * hz
        weight = 1 / (1 + ((f - 700) / 150) ** 2) + 0.5 / (1 + ((f - 1200) / 200) ** 2) + 0.02
        out += weight * np.sin(2 * np.pi * f * t + n)
    return (0.3 * out / np.abs(out).max()).astype(np.float32)


def pitches(samples: Wave, rate: int, at_s: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Hz at these times, NaN where there is no voice."""
    width = round(0.05 * rate)
    low, high = rate // HIGHEST_HZ, rate // LOWEST_HZ
    found: list[float] = []
    for second in at_s:
        part = samples[max(0, round(second * rate) - width // 2) :][:width].astype(np.float64)
        if len(part) < width or np.sqrt((part**2).mean()) < 0.02:
            found.append(np.nan)
            continue
        part = part - part.mean()
        spectrum = np.abs(np.fft.rfft(part, 2 * width)) ** 2
        alike = np.fft.irfft(spectrum)[: high + 2] / np.arange(width, width - high - 2, -1)
        # The shortest lag that is nearly as good: its multiples are no pitch.
        near = alike[low : high + 1] >= 0.9 * alike[low : high + 1].max()
        lag = low + int(np.argmax(near))
        while lag < high and alike[lag + 1] > alike[lag]:
            lag += 1
        before, here, after = alike[lag - 1 : lag + 2]
        bend = before - 2 * here + after
        voiced = here > 0.5 * alike[0] and bend < 0
        found.append(rate / (lag + (before - after) / 2 / bend) if voiced else np.nan)
    return np.array(found)


def db(samples: Wave) -> float:
    """Mean level of what is louder than a pause."""
    whole = samples[: len(samples) // 240 * 240].astype(np.float64)
    energy = (whole.reshape(-1, 240) ** 2).mean(1)
    return float(10 * np.log10(energy[energy > 1e-4 * energy.max()].mean()))

"""What the fake engine says: a tone that is a function of text, voice and seed alone.

Pure; any thread.
"""

from __future__ import annotations

import math

import numpy as np

SECONDS_PER_LETTER = 0.06
LEAST_FRAMES = 4


def tone(text: str, voice: str, seed: int, rate: int, frame_samples: int) -> bytes:
    """What the fake says: whole frames, longer for longer text, a pitch for each voice.

    Empty for text with no letter or digit in it.
    """
    frames, at_hz = frame_count(text, rate, frame_samples), pitch_hz(voice, seed)
    return b"".join(frame(at, at_hz, rate, frame_samples) for at in range(frames))


def frame_count(text: str, rate: int, frame_samples: int) -> int:
    """Frames that ``text`` takes; 0 where it has no letter or digit."""
    letters = sum(character.isalnum() for character in text)
    if not letters:
        return 0
    return max(LEAST_FRAMES, math.ceil(letters * SECONDS_PER_LETTER * rate / frame_samples))


def pitch_hz(voice: str, seed: int) -> float:
    """Of a voice with a seed."""
    return 220.0 + (sum(voice.encode()) + 7 * seed) % 220


def frame(index: int, at_hz: float, rate: int, frame_samples: int) -> bytes:
    """The ``index``-th frame of a segment, s16le."""
    time_s = np.arange(index * frame_samples, (index + 1) * frame_samples) / rate
    envelope = 0.6 + 0.4 * np.sin(2 * np.pi * 4 * time_s)
    wave = 0.4 * envelope * np.sin(2 * np.pi * at_hz * time_s)
    return (wave * 32767).astype("<i2").tobytes()

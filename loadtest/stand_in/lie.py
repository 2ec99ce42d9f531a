"""What the stand-in does wrong in a turn, the audio it plays and when each chunk leaves. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

import numpy as np


class End(Enum):
    """How a turn ends."""

    FINISH = "finish"
    CLOSE = "close"  # the connection goes away without an end signal
    HANG = "hang"  # nothing more comes
    ERROR = "error"  # the protocol's error, as an engine's failure
    BUSY = "busy"  # the protocol's error for lack of room


@dataclass(frozen=True, slots=True)
class Lie:
    """One turn's faults; the defaults are an honest turn. Times in seconds.

    ``audio_s`` 0 speaks 15 letters a second. Chunks of ``chunk_s`` leave ``pace`` times their
    length apart (0: all at once); ``gaps_s`` adds a wait before chunk number k. ``cut_short_s``
    is missing from the end, though the full length is declared. ``true_rate`` is sent instead of
    the rate asked for; a WAV header admits it, headerless audio only its length does.
    ``deaf_s``: how long it speaks on after a barge-in. ``header_ahead_s``: a WAV header travels
    so long before the first sample. With ``frame_s`` it keeps to a request's cap of frames so long.
    """

    accept_delay_s: float = 0.0
    refuse_status: int = 0
    first_delay_s: float = 0.0
    audio_s: float = 0.0
    chunk_s: float = 0.1
    pace: float = 0.0
    gaps_s: Mapping[int, float] = field(default_factory=dict[int, float])
    leading_silence_s: float = 0.0
    header_ahead_s: float = 0.0
    cut_short_s: float = 0.0
    abrupt: bool = False
    clipped: bool = False
    odd_byte: bool = False
    true_rate: int = 0
    declare_length: bool = True
    deaf_s: float = 0.0
    end: End = End.FINISH
    stages: Mapping[str, float] = field(default_factory=dict[str, float])
    frame_s: float = 0.0


HONEST = Lie()


@dataclass(frozen=True, slots=True)
class Chunk:
    """Audio that leaves ``wait_s`` after the one before it (the first: after the text)."""

    wait_s: float
    pcm: bytes = field(repr=False)


def full_length_s(lie: Lie, chars: int) -> float:
    """How long the turn's audio would be if nothing were missing."""
    return lie.audio_s or max(0.2, chars / 15)


def capped_s(lie: Lie, length_s: float, frames: int) -> float:
    """What a request's cap of so many frames (0: none) leaves of that."""
    return min(length_s, frames * lie.frame_s) if frames and lie.frame_s else length_s


def speech(lie: Lie, length_s: float, rate: int) -> bytes:
    """A tone with a soft end, after the silence asked for. Mono s16le at ``rate``.

    The last 70 ms are the end: 50 ms fading, 20 ms silent. An abrupt end lacks them.
    """
    silent = round(lie.leading_silence_s * rate)
    total = round(length_s * rate)
    at = np.arange(max(0, total - silent))
    loudness = 1.6 if lie.clipped else 0.3
    tone = loudness * np.sin(2 * np.pi * 220 * (at + 0.5) / rate)
    end = min(len(tone), round(0.07 * rate))
    if end:
        tone[-end:] *= np.clip(np.linspace(1.0, -0.4, end), 0.0, 1.0)
    sound = np.concatenate((np.zeros(min(silent, total)), tone))
    keep = total - round(lie.cut_short_s * rate)
    if lie.abrupt:
        keep -= end
    samples = np.clip(sound[: max(0, keep)] * 32767, -32768, 32767)
    return samples.astype("<i2").tobytes()


def chunks(lie: Lie, pcm: bytes, rate: int) -> list[Chunk]:
    """``pcm`` cut and timed as the lie says."""
    size = 2 * max(1, round(lie.chunk_s * rate))
    pieces = [pcm[i : i + size] for i in range(0, len(pcm), size)]
    planned: list[Chunk] = []
    for k, piece in enumerate(pieces):
        wait_s = lie.first_delay_s if k == 0 else lie.pace * lie.chunk_s
        planned.append(Chunk(wait_s + lie.gaps_s.get(k, 0.0), piece))
    if lie.odd_byte and planned:
        planned[-1] = Chunk(planned[-1].wait_s, planned[-1].pcm[:-1])
    return planned

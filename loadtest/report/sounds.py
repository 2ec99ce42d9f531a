"""The worst turns' sound, small enough to travel inside the page. Reads the WAV files of a run.

MP3 of about 24 kbit/s and 4 s about the place that matters; the whole turn is in its file.
Without an encoder, or for a rate that it does not know, a turn only has its link.
"""

from __future__ import annotations

import base64
import io
import wave
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .result import worst_turns

EXCERPT_S = 4.0
MOST_CHARS = 80_000
_HIGH_RATE = 32000
_COMPRESSION = 0.9
_BEFORE_S = 1.5
"""Of the excerpt, how much comes before the first stall."""


def embedded(
    result: Mapping[str, Any], folder: Path, most_chars: int = MOST_CHARS
) -> dict[str, str]:
    """``data:`` addresses by the name of the WAV file, worst first, no more than ``most_chars``."""
    found: dict[str, str] = {}
    left = most_chars
    for _, turn in worst_turns(result):
        data = _excerpt(folder / turn["wav"], _place_s(turn)) if turn["wav"] else b""
        address = "data:audio/mpeg;base64," + base64.b64encode(data).decode("ascii")
        if data and len(address) <= left:
            found[turn["wav"]] = address
            left -= len(address)
    return found


def _place_s(turn: Mapping[str, Any]) -> float:
    """How far into the audio the excerpt begins: a little before the first stall, or its end.

    A turn that broke off, or ends abruptly, is heard there; one that was late, at its beginning.
    """
    played_s = float(turn["audio_s"] or 0.0)
    if turn["stalls"] and turn["play_start_s"] is not None:
        return max(0.0, turn["stalls"][0][0] - turn["play_start_s"] - _BEFORE_S)
    if turn["ending"] != "finished" or "abrupt_tail" in turn["faults"]:
        return max(0.0, played_s - EXCERPT_S)
    return 0.0


def _excerpt(path: Path, from_s: float) -> bytes:
    try:
        import soundfile  # pyright: ignore[reportMissingTypeStubs]
    except ImportError:
        return b""
    try:
        with wave.open(str(path), "rb") as file:
            rate = file.getframerate()
            file.setpos(min(round(from_s * rate), file.getnframes()))
            samples = np.frombuffer(file.readframes(round(EXCERPT_S * rate)), dtype="<i2")
    except (OSError, EOFError, wave.Error):
        return b""
    if samples.size == 0:
        return b""
    if rate > _HIGH_RATE:  # half of it is enough to hear what is wrong, and half the bytes
        samples, rate = _halved(samples), rate // 2
    found = io.BytesIO()
    try:
        soundfile.write(  # pyright: ignore[reportUnknownMemberType]
            found,
            samples,
            rate,
            format="MP3",
            subtype="MPEG_LAYER_III",
            compression_level=_COMPRESSION,
            bitrate_mode="CONSTANT",
        )
    except (TypeError, ValueError, soundfile.LibsndfileError):
        return b""
    return found.getvalue()


def _halved(samples: np.ndarray) -> np.ndarray:
    pairs = samples[: samples.size // 2 * 2].reshape(-1, 2)
    return pairs.mean(axis=1).astype(np.int16)

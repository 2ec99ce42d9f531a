"""The worst turns' sound, small enough to travel inside the page. Reads the WAV files of a run.

MP3 of speech at 24 kbit/s and 4 s about the place that matters; the whole turn is in its file.
Without an encoder, or for a rate that it does not know, a turn only has its link.
"""

from __future__ import annotations

import base64
import wave
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from .result import worst_turns

EXCERPT_S = 4.0
KBPS = 24
MOST_CHARS = 80_000
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
        import lameenc  # pyright: ignore[reportMissingTypeStubs]
    except ImportError:
        return b""
    try:
        with wave.open(str(path), "rb") as file:
            rate = file.getframerate()
            file.setpos(min(round(from_s * rate), file.getnframes()))
            pcm = file.readframes(round(EXCERPT_S * rate))
    except (OSError, EOFError, wave.Error):
        return b""
    if not pcm:
        return b""
    encoder = cast("Any", lameenc).Encoder()
    encoder.silence()
    encoder.set_bit_rate(KBPS)
    encoder.set_in_sample_rate(rate)
    encoder.set_out_sample_rate(16000)
    encoder.set_channels(1)
    try:
        return bytes(encoder.encode(pcm)) + bytes(encoder.flush())
    except RuntimeError:
        return b""

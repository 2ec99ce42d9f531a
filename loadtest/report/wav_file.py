"""Writes the audio of the worst turns beside the result."""

from __future__ import annotations

import wave
from collections.abc import Sequence
from pathlib import Path

from shoal.loadtest.drive.session import LevelResult

from .result import run_name


def save_worst(results: Sequence[LevelResult], folder: Path) -> dict[tuple[int, int], str]:
    """Mono 16-bit WAV files, in place of an earlier run's.

    Returns their names relative to ``folder``, by (run, rank).
    """
    for stale in (folder / "worst").glob("*.wav"):
        stale.unlink()
    names: dict[tuple[int, int], str] = {}
    for number, result in enumerate(results):
        for rank, kept in enumerate(result.worst):
            if not kept.pcm:
                continue
            run = run_name(result.mode.value, result.level).replace("@", "-")
            name = f"worst/{run}-{rank + 1}.wav"
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with wave.open(str(path), "wb") as file:
                file.setnchannels(1)
                file.setsampwidth(2)
                file.setframerate(kept.turn.rate)
                file.writeframes(kept.pcm)
            names[number, rank] = name
    return names

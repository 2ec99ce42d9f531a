"""The other gate: the first frames' codes, token for token, against a reference's. Pure.

Both files are JSON, written by whoever runs the model: ``{"precision": "bf16", "prompts":
{"<name>": [[code, ...], ...]}}``, one inner list a frame. This side knows nothing of models.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from .baseline import Finding

Frames = Sequence[Sequence[int]]


class BadTokens(Exception):
    """The file does not hold what it should; the message says why."""


def read(path: Path) -> dict[str, Frames]:
    """Frames by prompt. :raises BadTokens: anything else than the format above."""
    try:
        prompts = cast("dict[str, Any]", json.loads(path.read_text(encoding="utf-8")))["prompts"]
        return {
            str(name): [[int(code) for code in frame] for frame in frames]
            for name, frames in cast("dict[str, Any]", prompts).items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as problem:
        raise BadTokens(f"{path}: {problem}") from problem


def check(
    reference: Mapping[str, Frames], candidate: Mapping[str, Frames], frames: int
) -> list[Finding]:
    """One finding a prompt of the reference; a prompt or frame that is missing fails."""
    if not reference:
        return [Finding(False, "the reference holds no prompts")]
    return [_prompt(name, codes, candidate.get(name), frames) for name, codes in reference.items()]


def _prompt(name: str, expected: Frames, found: Frames | None, frames: int) -> Finding:
    if found is None:
        return Finding(False, f"{name}: not in the candidate")
    if len(expected) < frames:
        return Finding(False, f"{name}: the reference has {len(expected)} frames, not {frames}")
    for number in range(frames):
        if number >= len(found):
            return Finding(False, f"{name}: ends after frame {number}")
        if list(found[number]) != list(expected[number]):
            pairs = zip(expected[number], found[number], strict=False)
            book = next((k for k, (a, b) in enumerate(pairs) if a != b), len(found[number]))
            return Finding(False, f"{name}: frame {number} differs first in codebook {book}")
    return Finding(True, f"{name}: first {frames} frames equal")

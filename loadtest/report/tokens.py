"""The other gate: the first frames' codes, token for token, against a reference's. Pure.

Both files are JSON, written by whoever runs the model: ``{"precision": "bf16", "prompts":
{"<name>": [[code, ...], ...]}}``, one inner list a frame. A candidate's may hold ``"behind"`` too,
alike in shape: how many logits the reference, fed with the candidate's tokens, has each of them
behind its best one. Then a token may differ from the reference's where that is within a tolerance,
and codes are not compared: behind the first such token the two speak of different things. This
side knows nothing of models.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from .baseline import Finding

Frames = Sequence[Sequence[int]]
Behind = Sequence[Sequence[float]]


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


def read_behind(path: Path) -> dict[str, Behind] | None:
    """Logits behind by prompt, or None where the file has none. :raises BadTokens: as above."""
    try:
        held = cast("dict[str, Any]", json.loads(path.read_text(encoding="utf-8"))).get("behind")
        if held is None:
            return None
        return {
            str(name): [[float(value) for value in frame] for frame in frames]
            for name, frames in cast("dict[str, Any]", held).items()
        }
    except (OSError, ValueError, TypeError, AttributeError) as problem:
        raise BadTokens(f"{path}: {problem}") from problem


def check_behind(
    reference: Mapping[str, Frames], behind: Mapping[str, Behind], frames: int, tolerance: float
) -> list[Finding]:
    """One finding a prompt of the reference: no token of its first ``frames`` further behind than
    ``tolerance`` logits. A candidate may end early: the reference judged that token too."""
    if not reference:
        return [Finding(False, "the reference holds no prompts")]
    findings: list[Finding] = []
    for name in reference:
        values = [value for frame in behind.get(name, ())[:frames] for value in frame]
        if not values:
            findings.append(Finding(False, f"{name}: not in the candidate"))
            continue
        passed = all(value <= tolerance for value in values)  # false for NaN
        text = f"{name}: {max(values):.2f} logits behind at most, {tolerance:g} allowed"
        findings.append(Finding(passed, text))
    return findings


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

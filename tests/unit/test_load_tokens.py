"""The token gate's files: first frames equal, or no further behind than a tolerance."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shoal.loadtest.report import tokens

FRAMES = [[n * 10 + k for k in range(10)] for n in range(6)]


def token_failures(candidate: dict[str, Any], frames: int = 5) -> list[str]:
    found = tokens.check({"p": FRAMES}, candidate, frames)
    return [finding.text for finding in found if not finding.passed]


def test_equal_first_frames_pass_whatever_follows() -> None:
    assert token_failures({"p": [*FRAMES[:5], [0] * 10]}) == []


def test_the_first_difference_is_named() -> None:
    other = [list(frame) for frame in FRAMES]
    other[4][7] += 1
    assert token_failures({"p": other}) == ["p: frame 4 differs first in codebook 7"]
    assert token_failures({"p": other}, frames=4) == []


@pytest.mark.parametrize(
    ("candidate", "reason"),
    [
        ({}, "not in the candidate"),
        ({"p": FRAMES[:4]}, "ends after frame 4"),
        ({"p": [*FRAMES[:4], FRAMES[4][:9]]}, "differs first in codebook 9"),
    ],
)
def test_what_is_missing_fails(candidate: dict[str, Any], reason: str) -> None:
    assert reason in token_failures(candidate)[0]


def test_a_reference_that_is_too_short_or_empty_passes_nothing() -> None:
    assert "has 6 frames, not 7" in token_failures({"p": FRAMES}, frames=7)[0]
    assert not tokens.check({}, {"p": FRAMES}, 5)[0].passed


def test_token_files_are_read_or_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"precision": "bf16", "prompts": {"p": FRAMES}}))
    assert tokens.read(path) == {"p": FRAMES}
    for content in ("[]", "{}", '{"prompts":{"p":[["x"]]}}', '{"prompts":3}'):
        path.write_text(content)
        with pytest.raises(tokens.BadTokens):
            tokens.read(path)


@pytest.mark.parametrize(
    ("behind", "passed"),
    [
        ([[0.0, 0.4], [2.9, 0.0]], True),
        ([[0.0, 3.1], [0.0, 0.0]], False),
        ([[0.0, 0.0], [0.0, 0.0], [9.0, 0.0]], True),
        ([[float("nan"), 0.0]], False),
        ([], False),
    ],
)
def test_tokens_within_a_tolerance_of_the_reference_pass(
    behind: list[list[float]], passed: bool
) -> None:
    """Only the first two frames are asked for."""
    assert [f.passed for f in tokens.check_behind({"p": FRAMES}, {"p": behind}, 2, 3.0)] == [passed]


def test_a_prompt_without_logits_fails() -> None:
    assert not tokens.check_behind({"p": FRAMES}, {}, 5, 3.0)[0].passed
    assert not tokens.check_behind({}, {}, 5, 3.0)[0].passed


def test_logits_are_read_beside_the_codes(tmp_path: Path) -> None:
    path = tmp_path / "candidate.json"
    path.write_text(json.dumps({"prompts": {"p": FRAMES}, "behind": {"p": [[0, 1.5]]}}))
    assert tokens.read_behind(path) == {"p": [[0.0, 1.5]]}
    path.write_text(json.dumps({"prompts": {"p": FRAMES}}))
    assert tokens.read_behind(path) is None
    for bad in ('{"behind": 3}', '{"behind": {"p": [["x"]]}}', "[]", "{"):
        path.write_text(bad)
        with pytest.raises(tokens.BadTokens):
            tokens.read_behind(path)

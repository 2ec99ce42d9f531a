"""What the precision gate makes of judged tokens: a summary, and whether it passes.

Owns the questions of ``bench_precision``; knows no model and no torch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

WORSE = 1.5
STANDARD_ERRORS = 4.0


@dataclass(frozen=True, slots=True)
class Judged:
    """One sentence's tokens against the bf16 reference fed with them; [frames][codebooks]."""

    behind: list[list[float]]
    """Logits from the reference's best token down to the one that was drawn."""
    margin: list[list[float]]
    """Logits from the reference's best token down to its second."""


@dataclass(frozen=True, slots=True)
class Summary:
    """All tokens of all sentences."""

    tokens: int
    agreement: float
    """Share that the reference would have drawn too."""
    furthest_behind: float
    mean_behind: float
    sure: int
    """Tokens that the reference prefers by more than the tolerance."""
    sure_and_wrong: int


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the verdict."""

    passed: bool
    text: str


@dataclass(frozen=True, slots=True)
class Equal:
    """One reference input."""

    frames: int
    """Equal to bf16's own, before the first difference."""
    least_margin: float
    """Logits by which bf16 prefers the least sure of its own tokens to the next."""


def equality(inputs: Sequence[Equal], frames: int, sure: float) -> list[Finding]:
    """Whether the reference inputs are drawn token for token, and whether bf16 is sure of them."""
    least = min(one.least_margin for one in inputs)
    equal = [one.frames for one in inputs]
    is_sure = least >= sure
    advice = "" if is_sure else "; they are of other weights, run bench_precision_choice"
    return [
        Finding(
            min(equal) >= frames,
            f"{sum(x >= frames for x in equal)} of {len(equal)} reference inputs token for token "
            f"equal to bf16 over {frames} frames; equal frames {equal}",
        ),
        Finding(
            is_sure,
            f"bf16 prefers each token of these inputs by {least:.2f} logits or more, {sure} is "
            f"asked{advice}",
        ),
    ]


def summary(judged: Sequence[Judged], tolerance: float) -> Summary:
    behind = [x for one in judged for frame in one.behind for x in frame]
    margin = [x for one in judged for frame in one.margin for x in frame]
    pairs = list(zip(behind, margin, strict=True))
    return Summary(
        tokens=len(behind),
        agreement=sum(x == 0 for x in behind) / len(behind),
        furthest_behind=max(behind),
        mean_behind=sum(behind) / len(behind),
        sure=sum(m > tolerance for m in margin),
        sure_and_wrong=sum(b > 0 and m > tolerance for b, m in pairs),
    )


def verdict(
    candidate: Summary, format_alone: Summary, tolerance: float, *, is_random: bool
) -> list[Finding]:
    """The questions about ordinary sentences; of a random model the second alone."""
    p = format_alone.agreement
    allowed = STANDARD_ERRORS * math.sqrt(max(p * (1 - p), 1e-4) / candidate.tokens)
    findings = [
        Finding(
            candidate.agreement >= p - allowed,
            f"agrees with bf16 in {candidate.agreement:.1%} of {candidate.tokens} tokens; "
            f"the format alone in {p:.1%}, {allowed:.1%} less is allowed",
        ),
        Finding(
            candidate.mean_behind <= WORSE * format_alone.mean_behind + 1e-3,
            f"{candidate.mean_behind:.3f} logits behind on average; the format alone "
            f"{format_alone.mean_behind:.3f}, {WORSE} times that is allowed",
        ),
    ]
    if not is_random:
        findings.insert(
            0,
            Finding(
                candidate.furthest_behind <= tolerance,
                f"{candidate.sure - candidate.sure_and_wrong} of {candidate.sure} tokens exact that"
                f" bf16 prefers by more than {tolerance}; "
                f"{candidate.furthest_behind:.2f} behind at most",
            ),
        )
    return findings

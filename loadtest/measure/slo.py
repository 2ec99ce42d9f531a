"""The promise a level is held against, and whether it was kept. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from .metrics import Figures
from .timeline import Ending


@dataclass(frozen=True, slots=True)
class Slo:
    """TTFA at a percentile, and the shares of turns that may stall or fail.

    ``prebuffer_s`` is the player's: a turn stalls when that player runs dry. Shares are of the
    turns offered, so a refused turn counts against ``failed_share``.
    """

    ttfa_s: float = 0.100
    percentile: float = 95.0
    prebuffer_s: float = 0.0
    stalled_share: float = 0.0
    failed_share: float = 0.0

    def good(self, figures: Figures) -> bool:
        """Goodput counts this turn: it came through, in time, without a stall.

        A turn that we interrupted before its audio began is not held against the server.
        """
        if not figures.complete:
            return False
        if figures.ttfa_s is None:
            return figures.ending is Ending.CUT
        playout = figures.playout(self.prebuffer_s)
        return figures.ttfa_s <= self.ttfa_s and playout is not None and playout.stalls == 0

    def describe(self) -> str:
        return (
            f"TTFA p{self.percentile:g} <= {self.ttfa_s * 1e3:g} ms, stalled turns"
            f" <= {self.stalled_share:.2%} ({self.prebuffer_s * 1e3:g} ms prebuffer),"
            f" failed or refused <= {self.failed_share:.2%}"
        )


@dataclass(frozen=True, slots=True)
class Verdict:
    """Kept or not, and the reasons in words when not."""

    kept: bool
    reasons: tuple[str, ...] = ()


def judge(
    slo: Slo, ttfa_s: float | None, turns: int, stalled_turns: int, failed_turns: int
) -> Verdict:
    """Hold a level's totals against ``slo``. A level without a single turn keeps nothing."""
    if turns == 0:
        return Verdict(False, ("no turn was measured",))
    reasons: list[str] = []
    if ttfa_s is None:
        reasons.append("no turn had audio")
    elif ttfa_s > slo.ttfa_s:
        reasons.append(f"TTFA p{slo.percentile:g} {ttfa_s * 1e3:.1f} ms > {slo.ttfa_s * 1e3:g} ms")
    for what, count, allowed in (
        ("stalled", stalled_turns, slo.stalled_share),
        ("failed or refused", failed_turns, slo.failed_share),
    ):
        if count / turns > allowed:
            reasons.append(f"{count} of {turns} turns {what} (allowed {allowed:.2%})")
    return Verdict(not reasons, tuple(reasons))

"""Two results side by side: what became worse, by how much, and whether that is too much. Pure."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, cast

from .result import metrics

Json = Mapping[str, Any]


class Worse(Enum):
    """Which direction is bad."""

    HIGHER = "higher"
    LOWER = "lower"


class BadThresholds(Exception):
    """The thresholds file is not usable; the message says why."""


@dataclass(frozen=True, slots=True)
class Threshold:
    """A regression is a change for the worse beyond both ``share`` of the old value and ``slack``.

    ``slack`` is in the metric's own unit (seconds, shares, frames/s).
    """

    metric: str
    worse: Worse
    share: float = 0.0
    slack: float = 0.0

    def allowed(self, old: float) -> float:
        """How much worse than ``old`` is still no regression."""
        return max(abs(old) * self.share, self.slack)

    def worsening(self, old: float, new: float) -> float:
        """Positive when ``new`` is worse."""
        return new - old if self.worse is Worse.HIGHER else old - new


DEFAULT_THRESHOLDS = (
    Threshold("ttfa.p50", Worse.HIGHER, 0.10, 0.003),
    Threshold("ttfa.p95", Worse.HIGHER, 0.10, 0.005),
    Threshold("ttfa.p99", Worse.HIGHER, 0.20, 0.010),
    Threshold("audible.p95", Worse.HIGHER, 0.10, 0.005),
    Threshold("cold_ttfa.p50", Worse.HIGHER, 0.15, 0.010),
    Threshold("gap.p99", Worse.HIGHER, 0.20, 0.010),
    Threshold("cut_tail.p95", Worse.HIGHER, 0.20, 0.020),
    Threshold("stalled_share.0ms", Worse.HIGHER, 0.0, 0.002),
    Threshold("stalled_share.100ms", Worse.HIGHER, 0.0, 0.001),
    Threshold("stalled_share.200ms", Worse.HIGHER, 0.0, 0.001),
    Threshold("failed_share", Worse.HIGHER, 0.0, 0.001),
    Threshold("goodput", Worse.LOWER, 0.0, 0.005),
    Threshold("frames_per_s", Worse.LOWER, 0.05),
    Threshold("fault_share.wrong_sample_rate", Worse.HIGHER),
    Threshold("fault_share.shorter_than_declared", Worse.HIGHER),
    Threshold("fault_share.clipped", Worse.HIGHER),
    Threshold("fault_share.abrupt_tail", Worse.HIGHER, 0.0, 0.01),
)


def read_thresholds(path: Path) -> tuple[Threshold, ...]:
    """A TOML file of ``[[threshold]]`` tables: metric, worse, share, slack.

    :raises BadThresholds: unknown keys, bad values, no table at all.
    """
    try:
        entries = cast("Sequence[Json]", tomllib.loads(path.read_text())["threshold"])
        found: list[Threshold] = []
        for entry in entries:
            unknown = set(entry) - {"metric", "worse", "share", "slack"}
            if unknown:
                raise BadThresholds(f"{path}: unknown key {sorted(unknown)[0]!r}")
            found.append(
                Threshold(
                    str(entry["metric"]),
                    Worse(entry["worse"]),
                    float(entry.get("share", 0.0)),
                    float(entry.get("slack", 0.0)),
                )
            )
    except (OSError, KeyError, ValueError, TypeError) as problem:
        raise BadThresholds(f"{path}: {problem}") from problem
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Change:
    """One metric of one run, before and after."""

    run: str
    metric: str
    old: float
    new: float
    worsening: float
    allowed: float

    @property
    def regressed(self) -> bool:
        return self.worsening > self.allowed + 1e-12


@dataclass(frozen=True, slots=True)
class Comparison:
    """``missing``: runs of the old result without a partner; ``unlike``: differing conditions."""

    changes: tuple[Change, ...]
    missing: tuple[str, ...]
    unlike: tuple[str, ...]

    @property
    def regressions(self) -> tuple[Change, ...]:
        return tuple(change for change in self.changes if change.regressed)


_CONDITIONS = ("load", "speech", "slo", "frame_s", "timing")


def compare(old: Json, new: Json, thresholds: Sequence[Threshold]) -> Comparison:
    """Match runs by name and hold every threshold's metric that both have against it."""
    partners = {run["name"]: run for run in new["runs"]}
    changes: list[Change] = []
    missing: list[str] = []
    for run in old["runs"]:
        partner = partners.get(run["name"])
        if partner is None:
            missing.append(run["name"])
            continue
        before, after = metrics(run), metrics(partner)
        for threshold in thresholds:
            name = threshold.metric
            if name not in before or name not in after:
                continue
            was, now = before[name], after[name]
            changes.append(
                Change(
                    run["name"],
                    name,
                    was,
                    now,
                    threshold.worsening(was, now),
                    threshold.allowed(was),
                )
            )
    return Comparison(tuple(changes), tuple(missing), tuple(_unlike(old, new)))


def _unlike(old: Json, new: Json) -> list[str]:
    """What differs in the conditions, so that the figures may differ for that reason."""
    found = [
        f"settings.{name} differ"
        for name in _CONDITIONS
        if old["settings"][name] != new["settings"][name]
    ]
    for name in ("format", "rate", "settings"):
        before, after = old["target"].get(name), new["target"].get(name)
        if before != after:
            found.append(f"target.{name}: {before} and {after}")
    if old["kind"] != new["kind"]:
        found.append(f"machine kinds: {old['kind'] or '?'} and {new['kind'] or '?'}")
    return found


def as_text(comparison: Comparison) -> str:
    """A table of all changes, regressions marked."""
    lines = [f"not comparable: {what}" for what in comparison.unlike]
    lines += [f"missing in the new result: {name}" for name in comparison.missing]
    for change in comparison.changes:
        share = f"{(change.new - change.old) / abs(change.old):+.1%}" if change.old else "new"
        if change.old == change.new:
            share = "="
        mark = "WORSE" if change.regressed else "     "
        lines.append(
            f"{mark}  {change.run:<20} {change.metric:<34}"
            f" {change.old:>12.5g} -> {change.new:>12.5g}  {share:>8}"
            f"  (allowed {change.allowed:.3g})"
        )
    return "\n".join(lines)

"""The gate: a result against the committed baseline of its kind of machine. Pure but for the file.

A baseline holds the figures that must not become more than 5 % worse. It may be lowered, but
only with a justification in the file itself; a baseline that is worse than the one it replaced
and does not say why fails the gate, however it came about. Where absolute times mean nothing (a
shared CI machine) a baseline holds ratios of figures within one run instead.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from .compare import Threshold, Worse
from .result import metrics

Json = dict[str, Any]

TOLERANCE = 0.05
GATED = (
    Threshold("frames_per_s", Worse.LOWER, TOLERANCE),
    Threshold("ttfa.p50", Worse.HIGHER, TOLERANCE, 0.001),
    Threshold("ttfa.p95", Worse.HIGHER, TOLERANCE, 0.001),
    Threshold("stalled_share.0ms", Worse.HIGHER),
    Threshold("stalled_share.100ms", Worse.HIGHER),
    Threshold("failed_share", Worse.HIGHER),
)
"""The 1 ms beside TTFA's 5 % is the grain of a client's timers."""


class BadBaseline(Exception):
    """The file is no baseline, or may not be written; the message says why."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the gate's answer."""

    passed: bool
    text: str


def read(path: Path) -> Json:
    """:raises BadBaseline: missing, not JSON, or without what a baseline needs."""
    try:
        found: object = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as problem:
        raise BadBaseline(f"{path}: {problem}") from problem
    if not isinstance(found, dict):
        raise BadBaseline(f"{path}: not a baseline")
    baseline = cast("Json", found)
    for key in ("kind", "justification"):
        if not isinstance(baseline.get(key), str):
            raise BadBaseline(f"{path}: no {key!r}")
    if not baseline.get("metrics") and not baseline.get("ratios"):
        raise BadBaseline(f"{path}: neither metrics nor ratios: it would pass anything")
    return baseline


def check(result: Mapping[str, Any], baseline: Mapping[str, Any]) -> list[Finding]:
    """Every figure and ratio of the baseline held against ``result``, and the baseline itself."""
    findings = [_own_history(baseline)]
    kind = result["kind"]
    if kind != baseline["kind"]:
        findings.append(
            Finding(False, f"result is of kind {kind or '?'}, baseline of {baseline['kind']}")
        )
    runs = {run["name"]: metrics(run) for run in result["runs"]}
    for name, figures in cast("Json", baseline.get("metrics", {})).items():
        findings += _held(name, figures, runs.get(name))
    findings += [_ratio(ratio, runs) for ratio in cast("list[Json]", baseline.get("ratios", []))]
    return findings


def _held(
    name: str, figures: Mapping[str, float], found: Mapping[str, float] | None
) -> list[Finding]:
    if found is None:
        return [Finding(False, f"{name}: not in the result")]
    findings: list[Finding] = []
    for threshold in GATED:
        old = figures.get(threshold.metric)
        if old is None:
            continue
        new = found.get(threshold.metric)
        if new is None:
            findings.append(Finding(False, f"{name} {threshold.metric}: not in the result"))
            continue
        worse = threshold.worsening(old, new) > threshold.allowed(old) + 1e-12
        change = f" ({(new - old) / old:+.1%})" if old else ""
        findings.append(
            Finding(not worse, f"{name} {threshold.metric}: {old:.5g} -> {new:.5g}{change}")
        )
    return findings


def _ratio(ratio: Mapping[str, Any], runs: Mapping[str, Mapping[str, float]]) -> Finding:
    """``{"metric", "of", "to", "at_least" and/or "at_most"}``: metric of one run over another's."""
    metric, of, to = str(ratio["metric"]), str(ratio["of"]), str(ratio["to"])
    upper, lower = runs.get(of, {}).get(metric), runs.get(to, {}).get(metric)
    what = f"{metric} of {of} to {to}"
    if upper is None or not lower:
        return Finding(False, f"{what}: not in the result")
    value = upper / lower
    least, most = ratio.get("at_least"), ratio.get("at_most")
    passed = (least is None or value >= least) and (most is None or value <= most)
    bounds = [f"at least {least:g}"] if least is not None else []
    bounds += [f"at most {most:g}"] if most is not None else []
    return Finding(
        passed and bool(bounds), f"{what}: {value:.3g} ({', '.join(bounds) or 'no bound'})"
    )


def _own_history(baseline: Mapping[str, Any]) -> Finding:
    """A baseline lowered against its predecessor must say why."""
    lowered = lowered_figures(baseline.get("previous") or {}, baseline.get("metrics") or {})
    if lowered and not str(baseline["justification"]).strip():
        return Finding(False, f"baseline lowered without a justification: {', '.join(lowered)}")
    return Finding(True, "baseline is as good as before, or says why not")


def lowered_figures(
    previous: Mapping[str, Mapping[str, float]], current: Mapping[str, Mapping[str, float]]
) -> list[str]:
    """Figures of ``current`` that are beyond tolerance worse than in ``previous``, or gone."""
    lowered: list[str] = []
    for name, figures in previous.items():
        now = current.get(name, {})
        for threshold in GATED:
            old, new = figures.get(threshold.metric), now.get(threshold.metric)
            if old is None:
                continue
            if new is None or threshold.worsening(old, new) > threshold.allowed(old) + 1e-12:
                lowered.append(f"{name} {threshold.metric}")
    return lowered


def record(
    result: Mapping[str, Any], old: Mapping[str, Any] | None, kind: str, justification: str
) -> Json:
    """A new baseline from ``result``; its ratios are kept from the old one.

    :raises BadBaseline: figures would be lowered without a justification.
    """
    if result["kind"] != kind:
        raise BadBaseline(f"result is of kind {result['kind'] or '?'}, not {kind}")
    new = {run["name"]: _gated(metrics(run)) for run in result["runs"]}
    previous = cast("Json", (old or {}).get("metrics", {}))
    lowered = lowered_figures(previous, {**previous, **new})
    if lowered and not justification.strip():
        raise BadBaseline(f"needs a justification, because it lowers {', '.join(lowered)}")
    return {
        "kind": kind,
        "recorded": result["created"],
        "machine": result["machine"],
        "target": result["target"],
        "justification": justification,
        "metrics": {**previous, **new},
        "previous": previous,
        "ratios": (old or {}).get("ratios", []),
    }


def _gated(figures: Mapping[str, float]) -> dict[str, float]:
    return {t.metric: figures[t.metric] for t in GATED if t.metric in figures}


def as_text(findings: Sequence[Finding]) -> str:
    """One line a finding."""
    return "\n".join(f"{'ok  ' if f.passed else 'FAIL'}  {f.text}" for f in findings)

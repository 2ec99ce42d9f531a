"""The gate: measured rows against the committed baseline of their kind of machine. Pure but for
the file.

A baseline holds the figures that must not become more than 5 % worse. A figure that is worse may
be excused in the file itself, by a justification that says down to which value and why; a baseline
that is worse than the one it replaced and does not say why fails the gate, however it came about.
Where absolute times mean nothing (a shared CI machine) a baseline holds ratios of figures within
one run instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from .compare import Threshold, Worse
from .documents import read_object
from .figures import Rows, Source, gather

Json = dict[str, Any]

TOLERANCE = 0.05
GATED = (
    Threshold("frames_per_s", Worse.LOWER, TOLERANCE),
    Threshold("ttfa.p50", Worse.HIGHER, TOLERANCE, 0.001),
    Threshold("ttfa.p95", Worse.HIGHER, TOLERANCE, 0.001),
    Threshold("stalled_share.0ms", Worse.HIGHER),
    Threshold("stalled_share.100ms", Worse.HIGHER),
    Threshold("failed_share", Worse.HIGHER),
    Threshold("fault_share.wrong_sample_rate", Worse.HIGHER),
    Threshold("fault_share.shorter_than_declared", Worse.HIGHER),
    Threshold("allocations", Worse.HIGHER),
    Threshold("tokens", Worse.LOWER),
    Threshold("sure_and_wrong", Worse.HIGHER),
    Threshold("failed_findings", Worse.HIGHER),
)
"""The 1 ms beside TTFA's 5 % is the grain of a client's timers."""
LOOSENED = ("ttfa.p50", "ttfa.p95")
"""What a baseline may allow more than 5 % for, since a tail of few turns scatters; it says so."""
FOLDER = Path(__file__).resolve().parents[1] / "baselines"
_ROUNDING = 1e-12


class BadBaseline(Exception):
    """The file is no baseline, or may not be written; the message says why."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the gate's answer."""

    passed: bool
    text: str


def path_of(kind: str) -> Path:
    """Where the committed baseline of that kind of machine lies."""
    if not kind or not kind.replace("-", "").replace("_", "").isalnum():
        raise BadBaseline(f"--kind {kind}: write letters, digits and dashes")
    return FOLDER / f"{kind}.json"


def read(path: Path) -> Json:
    """:raises BadBaseline: missing, not JSON, or without what a baseline needs."""
    baseline = read_object(path, BadBaseline, "not a baseline")
    for key in ("kind", "justification"):
        if not isinstance(baseline.get(key), str):
            raise BadBaseline(f"{path}: no {key!r}")
    if not baseline.get("metrics") and not baseline.get("ratios"):
        raise BadBaseline(f"{path}: neither metrics nor ratios: it would pass anything")
    for name in baseline.get("tolerances", {}):
        if name not in LOOSENED:
            raise BadBaseline(f"{path}: {name} has no tolerance of its own")
    for what, excuse in cast("Json", baseline.get("justified", {})).items():
        if not str(excuse.get("why", "")).strip() or not isinstance(
            excuse.get("accepts"), int | float
        ):
            raise BadBaseline(f"{path}: justified {what!r} needs 'accepts', a value, and 'why'")
    return baseline


def check(sources: Sequence[Source], baseline: Mapping[str, Any]) -> list[Finding]:
    """Every figure and ratio of the baseline held against the rows, and the baseline itself."""
    findings = [_own_history(baseline), *_machines(sources, baseline)]
    rows = gather(sources)
    excuses = cast("Json", baseline.get("justified", {}))
    for name, figures in cast("Json", baseline.get("metrics", {})).items():
        findings += _held(name, figures, rows.get(name), _thresholds(baseline), excuses)
    for ratio in cast("list[Json]", baseline.get("ratios", [])):
        findings.append(_ratio(ratio, rows, excuses))
    return findings


def _thresholds(baseline: Mapping[str, Any]) -> tuple[Threshold, ...]:
    looser = cast("Mapping[str, float]", baseline.get("tolerances", {}))
    return tuple(
        Threshold(t.metric, t.worse, looser.get(t.metric, t.share), t.slack) for t in GATED
    )


def _machines(sources: Sequence[Source], baseline: Mapping[str, Any]) -> list[Finding]:
    """A row of another machine or of half a run is no witness."""
    known = {str(baseline["kind"]), *cast("list[str]", baseline.get("devices", []))}
    findings = [
        Finding(False, f"{s.file} is of {s.machine or '?'}, the baseline of {baseline['kind']}")
        for s in sources
        if s.machine not in known and "tokens" not in s.rows
    ]
    for source in sources:
        # Ratios within one run are for machines that client and server share: it is in both parts.
        strained = source.strained if baseline.get("metrics") else ()
        findings += [Finding(False, f"{source.file}: {d}") for d in (*source.doubts, *strained)]
    return findings


def _held(
    name: str,
    figures: Mapping[str, float],
    found: Mapping[str, float] | None,
    thresholds: Sequence[Threshold],
    excuses: Mapping[str, Any],
) -> list[Finding]:
    if found is None:
        return [Finding(False, f"{name}: not in the result")]
    findings: list[Finding] = []
    for threshold in thresholds:
        old = figures.get(threshold.metric)
        if old is None:
            continue
        what = f"{name} {threshold.metric}"
        new = found.get(threshold.metric)
        if new is None:
            findings.append(Finding(False, f"{what}: not in the result"))
            continue
        worse = threshold.worsening(old, new) > threshold.allowed(old) + _ROUNDING
        change = f" ({(new - old) / old:+.1%})" if old else ""
        text = f"{what}: {old:.5g} -> {new:.5g}{change}"
        excuse = excuses.get(what)
        if worse and excuse:
            beyond = threshold.worsening(float(excuse["accepts"]), new) > _ROUNDING
            findings.append(_excused(text, excuse, beyond))
        else:
            findings.append(Finding(not worse, text))
    return findings


def _excused(text: str, excuse: Mapping[str, Any], beyond: bool) -> Finding:
    verdict = "beyond" if beyond else "within"
    return Finding(
        not beyond,
        f"{text}, {verdict} the {float(excuse['accepts']):.5g} justified by: {excuse['why']}",
    )


def _ratio(
    ratio: Mapping[str, Any], rows: Mapping[str, Mapping[str, float]], excuses: Mapping[str, Any]
) -> Finding:
    """``{"metric", "of", "to", "at_least" and/or "at_most"}``: metric of one row over another's.

    ``to_metric`` where the other row's is another metric.
    """
    metric, of, to = str(ratio["metric"]), str(ratio["of"]), str(ratio["to"])
    below = str(ratio.get("to_metric", metric))
    upper, lower = rows.get(of, {}).get(metric), rows.get(to, {}).get(below)
    what = f"{metric} of {of} to {below + ' of ' if below != metric else ''}{to}"
    if upper is None or not lower:
        return Finding(False, f"{what}: not in the result")
    value = upper / lower
    least, most = ratio.get("at_least"), ratio.get("at_most")
    low = least is not None and value < least
    high = most is not None and value > most
    bounds = [f"at least {least:g}"] if least is not None else []
    bounds += [f"at most {most:g}"] if most is not None else []
    text = f"{what}: {value:.3g} ({', '.join(bounds) or 'no bound'})"
    excuse = excuses.get(what)
    if (low or high) and excuse:
        accepts = float(excuse["accepts"])
        return _excused(text, excuse, value < accepts if low else value > accepts)
    return Finding(bool(bounds) and not low and not high, text)


def _own_history(baseline: Mapping[str, Any]) -> Finding:
    """A baseline lowered against its predecessor must say why."""
    why = str(baseline["justification"]).strip()
    previous = cast("Rows", baseline.get("previous", {}))
    now = cast("Rows", baseline.get("metrics", {}))
    lowered = lowered_figures(previous, now, _thresholds(baseline))
    if lowered and not why:
        return Finding(False, f"baseline lowered without a justification: {', '.join(lowered)}")
    return Finding(
        True, f"baseline justified by: {why}" if why else "baseline is as good as before"
    )


def lowered_figures(
    previous: Mapping[str, Mapping[str, float]],
    current: Mapping[str, Mapping[str, float]],
    thresholds: Sequence[Threshold] = GATED,
) -> list[str]:
    """Figures of ``current`` that are beyond tolerance worse than in ``previous``, or gone."""
    lowered: list[str] = []
    for name, figures in previous.items():
        now = current.get(name, {})
        for threshold in thresholds:
            old, new = figures.get(threshold.metric), now.get(threshold.metric)
            if old is None:
                continue
            if new is None or threshold.worsening(old, new) > threshold.allowed(old) + _ROUNDING:
                lowered.append(f"{name} {threshold.metric}")
    return lowered


def record(
    sources: Sequence[Source],
    old: Mapping[str, Any] | None,
    kind: str,
    justification: str,
    tolerances: Mapping[str, float] | None = None,
) -> Json:
    """A new baseline of the rows; what they do not replace is kept from the old one.

    Justifications of single figures go: the new figures stand for themselves.

    :raises BadBaseline: figures would be lowered, or are doubtful, without a justification; a
        load test of another kind; a tolerance for what may have none.
    """
    for name in tolerances or {}:
        if name not in LOOSENED:
            raise BadBaseline(f"only {' and '.join(LOOSENED)} may have a tolerance of their own")
    base = old or {}
    benches = sorted({s.machine for s in sources if s.machine and s.machine != kind})
    devices = sorted({*cast("list[str]", base.get("devices", [])), *benches})
    for source in sources:
        of_load = any(not name.startswith(("step ", "tokens")) for name in source.rows)
        if of_load and source.machine != kind:
            raise BadBaseline(f"{source.file} is of kind {source.machine or '?'}, not {kind}")
    new: Rows = {name: _gated(figures) for name, figures in gather(sources).items()}
    loose = {**cast("Json", base.get("tolerances", {})), **(tolerances or {})}
    previous = cast("Json", base.get("metrics", {}))
    thresholds = _thresholds({"tolerances": loose})
    needed = lowered_figures(previous, {**previous, **new}, thresholds)
    doubts = [f"{s.file} ({doubt})" for s in sources for doubt in (*s.doubts, *s.strained)]
    known = base.get("devices")
    doubts += [f"another device ({name})" for name in benches if known and name not in known]
    if (needed or doubts) and not justification.strip():
        what = f"it lowers {', '.join(needed)}" if needed else f"of {', '.join(doubts)}"
        raise BadBaseline(f"needs a justification, because {what}")
    kept = {key: base[key] for key in ("note", "run") if key in base}
    return {
        "kind": kind,
        **kept,
        "recorded": datetime.now(UTC).isoformat(timespec="seconds"),
        "devices": devices,
        "sources": [{"file": s.file, "machine": s.machine, "made": s.made} for s in sources],
        "justification": justification.strip(),
        "tolerances": loose,
        "justified": {},
        "metrics": {**previous, **new},
        "previous": previous,
        "ratios": base.get("ratios", []),
    }


def _gated(figures: Mapping[str, float]) -> dict[str, float]:
    return {t.metric: figures[t.metric] for t in GATED if t.metric in figures}


def as_text(findings: Sequence[Finding]) -> str:
    """One line a finding."""
    return "\n".join(f"{'ok  ' if f.passed else 'FAIL'}  {f.text}" for f in findings)

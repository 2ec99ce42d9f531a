"""A finished run as text: what a terminal shows at the end. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_COLUMNS = (
    "run",
    "turns",
    "TTFA p50",
    "p95",
    "p99",
    "p99.9",
    "audible p95",
    "cold p50",
    "stalled",
    "failed",
    "goodput",
    "frames/s",
    "audio s/s",
    "RTF p50",
    "SLO",
)


def milliseconds(seconds: float | None) -> str:
    """ "12.3", or "-" for nothing."""
    return "-" if seconds is None else f"{seconds * 1e3:.1f}"


def number(value: float | None, digits: int = 1) -> str:
    """A plain number, or "-" for nothing."""
    return "-" if value is None else f"{value:,.{digits}f}"


def rows_of(result: Mapping[str, Any]) -> list[list[str]]:
    """One line a run, in the order of :data:`_COLUMNS`."""
    prebuffer = f"{result['settings']['slo']['prebuffer_s'] * 1e3:g}ms"
    table: list[list[str]] = []
    for run in result["runs"]:
        totals = run["totals"]
        percentiles = totals["percentiles"]
        ttfa: Mapping[str, float | None] = percentiles.get("ttfa", {})
        rtf = percentiles.get("rtf", {}).get("p50")
        goodput = totals["goodput"]
        table.append(
            [
                run["name"],
                str(totals["turns"]),
                *(milliseconds(ttfa.get(p)) for p in ("p50", "p95", "p99", "p99.9")),
                milliseconds(percentiles.get("audible", {}).get("p95")),
                milliseconds(percentiles.get("cold_ttfa", {}).get("p50")),
                str(totals["stalled_turns"].get(prebuffer, 0)),
                str(totals["failed"]),
                "-" if goodput is None else f"{goodput:.1%}",
                number(totals["frames_per_s"], 0),
                number(totals["audio_s_per_s"]),
                number(rtf, 3),
                "kept" if totals["slo_kept"] else "broken",
            ]
        )
    return table


def header() -> Sequence[str]:
    """The columns' names; durations are in milliseconds."""
    return _COLUMNS


def as_text(result: Mapping[str, Any]) -> str:
    """The table, then what must be known before believing it."""
    table = [list(_COLUMNS), *rows_of(result)]
    widths = [max(len(row[i]) for row in table) for i in range(len(_COLUMNS))]
    lines = ["  ".join(cell.rjust(w) for cell, w in zip(row, widths, strict=True)) for row in table]
    return "\n".join([*lines, "", headline(result), *warnings(result)])


def headline(result: Mapping[str, Any]) -> str:
    """The one number: how much load this server carries within the promise."""
    slo = result["settings"]["slo"]["words"]
    units = {
        "closed": "users",
        "open": "turns/s",
        "conversation": "conversations",
        "replay": "times the recorded speed",
    }
    knee = result["knee"]
    if knee is not None:
        unit = units.get(knee["mode"] or "", "")
        if knee["best"] is None:
            return f"No level kept: {slo}"
        return f"Highest level that kept the SLO: {knee['best']:g} {unit}{_doubt(knee)} ({slo})"
    kept = [run for run in result["runs"] if run["totals"]["slo_kept"]]
    if not kept:
        return f"No level kept: {slo}"
    best = max(kept, key=lambda run: run["level"])
    return f"Highest level tried that kept the SLO: {best['level']:g} {units[best['mode']]} ({slo})"


def _doubt(knee: Mapping[str, Any]) -> str:
    """What a search that ended before it knew has left open."""
    if knee.get("known", True):
        return ""
    broken = knee["broken"]
    return ", none higher tried" if broken is None else f", below {broken:g} not searched out"


def warnings(result: Mapping[str, Any]) -> list[str]:
    """Everything that limits what the figures mean, in words."""
    found: list[str] = []
    for run in result["runs"]:
        name, totals = run["name"], run["totals"]
        for reason in dict.fromkeys(r for c in run["client"] for r in c["reasons"]):
            found.append(f"{name}: THIS CLIENT WAS SATURATED: {reason}")
        if not run["complete"]:
            found.append(f"{name}: interrupted, figures are of what was done")
        turns, cold = totals["turns"], totals["cold_turns"]
        if turns == 0 and cold:
            found.append(
                f"{name}: the window held nothing but {cold} cold turn{'s'[: cold > 1]}:"
                " a longer --window or --cold-every 0 would hold others"
            )
        elif 0 < turns < 1000:
            # Of fewer than 20 turns the 95th percentile is the slowest one.
            which = "p99.9" if turns >= 100 else "p99" if turns >= 20 else "p95"
            found.append(f"{name}: {turns} turns, so {which} is close to the maximum")
        if early := totals.get("early_turns", 0):
            found.append(
                f"{name}: {early} of {totals['turns']} turns spoke before their first sentence was"
                " whole: their TTFA is 0, 'ttfa_text' counts from the first token"
            )
        for reason in totals["slo_reasons"]:
            found.append(f"{name}: SLO: {reason}")
        for detail, count in totals["errors"].items():
            found.append(f"{name}: {count} x {detail}")
        faults = {k: v for k, v in totals["faults"].items() if v}
        if faults:
            listed = ", ".join(f"{k} {v}" for k, v in faults.items())
            found.append(f"{name}: faults: {listed}")
        lag = totals["percentiles"].get("send_lag", {}).get("p99")
        if lag is not None and lag > 0.01 and run["mode"] != "closed":
            found.append(
                f"{name}: text left up to {lag * 1e3:.0f} ms late (p99): TTFA counts from when it"
                " was due, 'ttfa_sent' from when it left"
            )
        if run["server_problem"]:
            found.append(f"{name}: no stages from the server: {run['server_problem']}")
    return found

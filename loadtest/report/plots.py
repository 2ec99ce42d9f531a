"""The report's pictures: TTFA distribution, knee, run over time, stages, worst turns. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from shoal.loadtest.measure.histogram import Histogram

from .svg import Chart, Tick, legend, linear, logarithmic, ticks

Run = Mapping[str, Any]

_HUES = 8
_NINES = (50.0, 90.0, 99.0, 99.9, 99.99)


def _hue(i: int) -> str:
    return f"c{i % _HUES}"


def _histogram(run: Run, name: str) -> Histogram | None:
    encoded = run["totals"]["histograms"].get(name)
    return Histogram.decode(encoded) if encoded else None


def ttfa_percentiles(runs: Sequence[Run], slo_s: float) -> str:
    """TTFA against percentile, the tail stretched: each step to the right is ten times rarer."""
    curves = [(i, h.percentile_curve()) for i, r in enumerate(runs) if (h := _histogram(r, "ttfa"))]
    if not curves:
        return ""
    highest_ms = max(slo_s, max(curve[-1][1] for _, curve in curves)) * 1050
    rarest = max(0.0, max(curve[-1][0] for _, curve in curves))
    nines = max(1.0, -math.log10(1.0 - rarest / 100))
    chart = Chart(860, 320, linear(0, nines), linear(0, highest_ms), "TTFA by percentile")
    marks = [Tick(_rarity(p), f"p{p:g}") for p in (0.0, *_NINES) if _rarity(p) <= nines]
    chart.axes(marks, ticks(0, highest_ms), "percentile", "TTFA ms")
    chart.rule("slo", y=slo_s * 1e3, tip="SLO")
    for i, curve in curves:
        chart.line([(_rarity(percent), s * 1e3) for percent, s in curve], _hue(i))
    names = [(_hue(i), str(runs[i]["name"])) for i, _ in curves]
    return legend([*names, ("slo", "SLO")]) + chart.render()


def _rarity(percent: float) -> float:
    return -math.log10(max(1e-9, 1.0 - percent / 100))


def ttfa_bars(run: Run, slo_s: float) -> str:
    """How many turns had which TTFA, on a scale that cuts nothing off."""
    column = list(run["columns"]).index("ttfa_s")
    values = [row[column] * 1e3 for row in run["rows"] if row[column] is not None]
    if not values:
        return ""
    low, high = min(values), max(max(values), slo_s * 1e3) * 1.02
    low = max(0.0, low - (high - low) * 0.05)
    bins = min(60, max(10, round(math.sqrt(len(values)) * 2)))
    counts = [0] * bins
    for value in values:
        counts[min(bins - 1, int((value - low) / (high - low) * bins))] += 1
    chart = Chart(860, 220, linear(low, high), linear(0, max(counts) * 1.05), "TTFA distribution")
    chart.axes(ticks(low, high, 8), ticks(0, max(counts), 4), "TTFA ms", "turns")
    step = (high - low) / bins
    for k, count in enumerate(counts):
        if count:
            at = low + k * step
            tip = f"{at:.1f} to {at + step:.1f} ms: {count}"
            chart.box(at, at + step * 0.92, 0, count, _hue(0), tip)
    chart.rule("slo", x=slo_s * 1e3, tip="SLO")
    return chart.render()


def knee(runs: Sequence[Run], slo_s: float, prebuffer: str) -> str:
    """Against the level: TTFA, and below it how many turns were good and how many stalled."""
    ordered = sorted((r for r in runs if r["totals"]["turns"]), key=lambda r: r["level"])
    if len(ordered) < 2:
        return ""
    levels = [r["level"] for r in ordered]
    x = logarithmic(min(levels), max(levels))
    worst_ms = max((_at(r, "p99") or 0.0) for r in ordered) * 1e3
    high = max(worst_ms, slo_s * 1e3) * 1.05
    chart = Chart(860, 300, x, linear(0, high), "TTFA by level")
    marks = [Tick(level, f"{level:g}") for level in levels]
    chart.axes(marks, ticks(0, high), f"level ({ordered[0]['mode']})", "TTFA ms")
    chart.rule("slo", y=slo_s * 1e3, tip="SLO")
    for i, which in enumerate(("p50", "p95", "p99")):
        points = [(r["level"], v * 1e3) for r in ordered if (v := _at(r, which)) is not None]
        chart.line(points, _hue(i))
        for level, ms in points:
            chart.dot(level, ms, _hue(i), f"{which} at {level:g}: {ms:.1f} ms")
    shares = Chart(860, 200, x, linear(0, 100), "Goodput by level")
    shares.axes(marks, ticks(0, 100, 4), "level", "% of turns")
    good = [(r["level"], r["totals"]["goodput"] * 100) for r in ordered]
    stalled = [
        (r["level"], r["totals"]["stalled_turns"].get(prebuffer, 0) / r["totals"]["turns"] * 100)
        for r in ordered
    ]
    for css, points in ((_hue(2), good), ("bad", stalled)):
        shares.line(points, css)
        for level, percent in points:
            shares.dot(level, percent, css, f"{percent:.2f} % at {level:g}")
    return (
        legend([(_hue(0), "p50"), (_hue(1), "p95"), (_hue(2), "p99"), ("slo", "SLO")])
        + chart.render()
        + legend([(_hue(2), "good turns"), ("bad", f"stalled turns ({prebuffer} prebuffer)")])
        + shares.render()
    )


def _at(run: Run, which: str) -> float | None:
    return run["totals"]["percentiles"].get("ttfa", {}).get(which)


def over_time(run: Run, slo_s: float, most: int = 500) -> str:
    """Kept turns at the time they were due: drift, crowds and bad moments show as shapes.

    Of more than ``most`` turns the ordinary ones are thinned out evenly, then the others.
    """
    columns = list(run["columns"])
    rows = [dict(zip(columns, row, strict=True)) for row in run["rows"]]
    heard = [row for row in rows if row["ttfa_s"] is not None]
    if not heard:
        return ""
    end_s = max(row["at_s"] for row in rows)
    high = max(max(row["ttfa_s"] for row in heard), slo_s) * 1050
    chart = Chart(860, 240, linear(0, max(end_s, 1.0)), linear(0, high), "TTFA over the run")
    chart.axes(ticks(0, max(end_s, 1.0), 8), ticks(0, high), "s into the window", "TTFA ms")
    chart.rule("slo", y=slo_s * 1e3, tip="SLO")
    shown, note = _thinned(rows, slo_s, most)
    for row in shown:
        if row["ttfa_s"] is None:
            chart.dot(row["at_s"], high, "bad", f"{row['ending']}, user {row['user']}", 2.5)
            continue
        css = "cold" if row["kind"] == "cold" else "bad" if row["stalls"] else _hue(0)
        tip = f"user {row['user']} turn {row['index']}: {row['ttfa_s'] * 1e3:.1f} ms"
        chart.dot(row["at_s"], row["ttfa_s"] * 1e3, css, tip, 1.8)
    keys = [(_hue(0), "turn"), ("bad", "stalled, or no audio (at the top)"), ("cold", "cold turn")]
    return legend(keys) + chart.render() + note


def _thinned(
    rows: Sequence[Mapping[str, Any]], slo_s: float, most: int
) -> tuple[list[Mapping[str, Any]], str]:
    """At most ``most`` rows, in order, and what to say about it."""
    if len(rows) <= most:
        return list(rows), ""
    odd = [
        r["ttfa_s"] is None or r["stalls"] > 0 or r["kind"] == "cold" or r["ttfa_s"] > slo_s
        for r in rows
    ]
    special = [i for i, is_odd in enumerate(odd) if is_odd]
    plain = [i for i, is_odd in enumerate(odd) if not is_odd]
    special = special[:: max(1, math.ceil(len(special) / most))]
    room = most - len(special)
    plain = plain[:: math.ceil(len(plain) / room)] if room and plain else []
    note = f'<p class="dim">{len(special) + len(plain)} of {len(rows)} turns are drawn.</p>'
    return [rows[i] for i in sorted((*special, *plain))], note


def stages(runs: Sequence[Run]) -> str:
    """Mean time in each stage by the server's own account, as bars."""
    blocks: list[str] = []
    for run in runs:
        found = [(s["name"], s["mean_s"], s["p95_s"], s["count"]) for s in run["server_stages"]]
        found += [
            (f"{name} (per turn)", s["mean"], s["p95"], s["count"])
            for name, s in run["totals"]["stages"].items()
        ]
        if not found:
            continue
        longest_s = max(mean_s for _, mean_s, _, _ in found) or 1.0
        lines = "".join(
            f"<tr><td>{escape(str(name))}</td><td>{mean_s * 1e3:.2f}</td>"
            f"<td>{'-' if p95_s is None else f'{p95_s * 1e3:.2f}'}</td><td>{count}</td>"
            f'<td><i class="bar" style="width:{mean_s / longest_s * 100:.1f}%"></i></td></tr>'
            for name, mean_s, p95_s, count in found
        )
        blocks.append(
            f"<h3>{escape(run['name'])}</h3><table><tr><th>stage</th><th>mean ms</th>"
            f'<th>p95 ms</th><th>count</th><th class="wide"></th></tr>{lines}</table>'
        )
    return "".join(blocks)


_MOST_ARRIVALS = 80
"""Boxes in one timeline; more messages than that share them."""


def worst_turn(turn: Mapping[str, Any]) -> str:
    """One turn on one time axis: text, arrivals, what the player did."""
    arrivals: list[list[float]] = turn["arrivals"]
    played_s = sum(seconds for _, seconds in arrivals)
    still_s = sum(length for _, length in [*turn["stalls"], *turn["pauses"]])
    start_s = turn["play_start_s"]
    play_end_s = (start_s or 0.0) + played_s + still_s
    end_s = max(turn["ended_s"], play_end_s if start_s is not None else 0.0, 0.05)
    chart = Chart(860, 130, linear(0, end_s), linear(0, 3), "Timeline of one turn")
    rows = [Tick(2.5, "text"), Tick(1.5, "arrives"), Tick(0.5, "plays")]
    chart.axes(ticks(0, end_s, 8), rows, "s after the text was due", "")
    if turn["began_s"] is not None:
        done_s = turn["text_done_s"] if turn["text_done_s"] is not None else turn["began_s"]
        chart.box(0, turn["began_s"], 2.2, 2.8, "late", "due, not yet sent")
        chart.box(turn["began_s"], done_s, 2.2, 2.8, _hue(3), "text is sent")
    chart.rule("slo", x=turn["speakable_s"], tip="T0: first speakable text is due")
    together = math.ceil(len(arrivals) / _MOST_ARRIVALS)
    for i in range(0, len(arrivals), max(1, together)):
        at_s = arrivals[i][0]
        seconds = sum(length for _, length in arrivals[i : i + together])
        height = 1.15 + min(0.7, 0.2 + seconds / together)
        tip = f"{at_s * 1e3:.1f} ms: {seconds * 1e3:.0f} ms of audio"
        tip += f" in {together} messages" if together > 1 else ""
        chart.box(at_s, at_s + end_s / 400, 1.15, height, _hue(0), tip)
    if start_s is not None:
        chart.box(start_s, play_end_s, 0.2, 0.8, _hue(2), "audio plays")
        for at_s, length_s in turn["pauses"]:
            tip = f"waits {length_s * 1e3:.0f} ms for its text"
            chart.box(at_s, at_s + length_s, 0.2, 0.8, "late", tip)
        for at_s, length_s in turn["stalls"]:
            tip = f"stall of {length_s * 1e3:.0f} ms"
            chart.box(at_s, at_s + length_s, 0.1, 0.9, "bad", tip)
    if turn["cut_s"] is not None:
        chart.rule("cut", x=turn["cut_s"], tip="barge-in")
    return chart.render()

"""A fleet study as a table for the terminal and as one self-contained page. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from html import escape
from typing import Any

from shoal.loadtest.report.html import document, table
from shoal.loadtest.report.svg import Chart, Tick, legend, linear, ticks

Study = Mapping[str, Any]

HEAD = (
    "policy", "GPU hours", "most", "starts", "used", "with batch", "refused", "TTFA p50", "p95",
    "p99", "p95 with batch", "voice missed",
)  # fmt: skip


def rows(study: Study) -> list[list[str]]:
    """A line a policy; times in milliseconds."""
    return [
        [
            str(run["name"]),
            f"{run['gpu_hours']:,.0f}",
            str(run["gpus_most"]),
            str(run["starts"]),
            f"{run['utilisation']:.1%}",
            f"{run['utilisation_with_backfill']:.1%}",
            f"{run['refused_share']:.4%}",
            *(f"{run['ttfa_s'][p] * 1e3:.0f}" for p in ("p50", "p95", "p99")),
            f"{run['ttfa_with_backfill_s']['p95'] * 1e3:.0f}",
            f"{run['miss_share']:.1%}",
        ]
        for run in study["runs"]
    ]


def _time_of(study: Study) -> str:
    if study.get("recorded_turns"):
        return f"{study['hours']:g} hours, as {study['recorded_turns']} recorded ones came"
    return "a day"


def as_table(study: Study) -> str:
    """For a terminal."""
    lines = [list(HEAD), *rows(study)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEAD))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if column else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    )


def as_html(study: Study) -> str:
    """The page."""
    runs = study["runs"]
    about = (
        f"{study['note']} {study['turns']:,} turns in {_time_of(study)}, at most "
        f"{study['gpus']} GPUs; they need {study['demand_gpus_mean']:.0f} GPUs on average and "
        f"{study['demand_gpus_peak']:.0f} at most. Seed {study['seed']}."
    )
    parts = [
        "<h1>A day of the fleet</h1>",
        f'<p class="dim">{escape(about)}</p>',
        table(list(HEAD), rows(study)),
        "<h2>GPUs paid for</h2>",
        _over_the_day(study, "paid", "GPUs", max(max(r["series"]["paid"]) for r in runs), True),
        "<h2>Used by live turns</h2>",
        _over_the_day(study, "live_share", "share", 1.0, False),
        "<h2>Used with batch work in what they leave over</h2>",
        _over_the_day(study, "all_share", "share", 1.0, False),
        "<h2>Turns refused</h2>",
        _over_the_day(
            study,
            "refused_share",
            "share",
            max(0.01, *(max(r["series"]["refused_share"]) for r in runs)),
            False,
        ),
        "<h2>Parameters</h2>",
        f"<pre>{escape(json.dumps(study['parameters'], indent=1))}</pre>",
    ]
    return document("A day of the fleet", "".join(parts))


def _over_the_day(study: Study, series: str, unit: str, most: float, demand: bool) -> str:
    step_h = study["plotted_s"] / 3600
    chart = Chart(860, 260, linear(0, 24), linear(0, most * 1.03), series)
    hours = [Tick(float(hour), f"{hour}:00") for hour in range(0, 25, 3)]
    chart.axes(hours, ticks(0, most), "time of day", unit)
    keys: list[tuple[str, str]] = []
    for index, run in enumerate(study["runs"]):
        values = run["series"][series]
        chart.line([((i + 0.5) * step_h, value) for i, value in enumerate(values)], f"c{index}")
        keys.append((f"c{index}", str(run["name"])))
    if demand:
        points = [((i + 0.5) * step_h, v) for i, v in enumerate(study["demand_gpus"])]
        chart.line(points, "bad")
        keys.append(("bad", "needed by demand"))
    return legend(keys) + chart.render()

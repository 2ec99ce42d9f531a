"""The report: one HTML file that needs nothing else and stays below 300 kB. Pure.

It holds excerpts of the worst turns' sound; the whole turns are WAV files beside it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from html import escape
from typing import Any

from shoal.loadtest.measure import metrics as definitions

from . import plots
from .result import worst_turns
from .table import header, headline, milliseconds, rows_of, warnings

Result = Mapping[str, Any]

_STYLE = """
:root{color-scheme:light dark;--fg:#1b1f24;--dim:#667;--bg:#fff;--line:#e3e6ea;--bad:#d1242f;
--slo:#9a6700;--cold:#8250df;--late:#c9ced6}
@media(prefers-color-scheme:dark){:root{--fg:#e6e9ee;--dim:#98a;--bg:#14171b;--line:#2c323a;
--late:#4a525d}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--fg);background:var(--bg);max-width:900px;
margin:2rem auto;padding:0 1rem}
h1{font-size:1.5rem;margin-bottom:.2rem}h2{font-size:1.15rem;margin-top:2.2rem}
h3{font-size:1rem;margin:1.2rem 0 .3rem}
.headline{font-size:1.15rem;font-weight:600}.dim,.legend{color:var(--dim);font-size:.88rem}
.warn{border-left:3px solid var(--bad);padding:.1rem .7rem;margin:.25rem 0;font-size:.9rem}
.scroll{overflow-x:auto}table{border-collapse:collapse;font-size:.85rem;width:100%}
td,th{padding:.25rem .5rem;text-align:right;border-bottom:1px solid var(--line);
white-space:nowrap}td:first-child,th:first-child{text-align:left}.wide{width:40%}
.bar{display:block;height:.7em;background:#2f81f7}
svg{width:100%;height:auto;font-size:11px}svg text{fill:var(--dim)}
.grid{stroke:var(--line)}.line{fill:none;stroke-width:1.8}.rule{stroke-dasharray:5 4}
.slo{stroke:var(--slo);background:var(--slo)}.cut{stroke:var(--fg)}
.key{margin-right:1em;white-space:nowrap}
.key i{display:inline-block;width:.8em;height:.8em;margin-right:.35em;border-radius:2px}
audio{width:100%;height:2rem}pre{font-size:.8rem;overflow-x:auto}dt{font-weight:600}
"""

_HUES = ("#2f81f7", "#e8790c", "#2da44e", "#8250df", "#bf3989", "#1b7c83", "#9a6700", "#57606a")


def _colours() -> str:
    rules = [("bad", "var(--bad)"), ("cold", "var(--cold)"), ("late", "var(--late)")]
    rules += [(f"c{i}", hue) for i, hue in enumerate(_HUES)]
    return "".join(
        f".line.{css}{{stroke:{hue}}}.dot.{css},.box.{css}{{fill:{hue}}}"
        f".key i.{css}{{background:{hue}}}"
        for css, hue in rules
    )


_DOTS = 500
_WORST = 8
"""So many turns are drawn in all, so that a page of many levels is no larger than one of few."""


def render(result: Result, sounds: Mapping[str, str] | None = None) -> str:
    """The whole page. ``sounds``: ``data:`` addresses by the name of a worst turn's WAV file."""
    target = result["target"]
    slo = result["settings"]["slo"]
    runs = result["runs"]
    where = f"{target['name']} at {target['url']}"
    about = " · ".join(
        part
        for part in (
            result["created"],
            f"machine kind {result['kind']}" if result["kind"] else "",
            f"{target['format']} {target['rate']} Hz",
            f"seed {result['settings']['seed']}",
            result["note"],
        )
        if part
    )
    prebuffer = f"{slo['prebuffer_s'] * 1e3:g}ms"
    dots = _DOTS // max(1, len(runs))
    parts = [
        f"<h1>Load test of {escape(where)}</h1>",
        f'<p class="dim">{escape(about)}</p>',
        f'<p class="headline">{escape(headline(result))}</p>',
        "".join(f'<p class="warn">{escape(text)}</p>' for text in warnings(result)),
        _summary(result),
        _section("Time to first audio by percentile", plots.ttfa_percentiles(runs, slo["ttfa_s"])),
        _section("The knee", plots.knee(runs, slo["ttfa_s"], prebuffer)),
        _each(result, "Distribution of TTFA", plots.ttfa_bars),
        _each(result, "TTFA over the run", partial(plots.over_time, most=dots)),
        _section("Playout: stalls by prebuffer", _playouts(result)),
        _section("Where the server's time went", plots.stages(runs)),
        _section("Every duration", _percentiles(result)),
        _section("Repeats", _repeats(result)),
        _section("The client itself", _client(result)),
        _section("Worst turns", _worst(result, sounds or {})),
        _section("Definitions", f"<pre>{escape(definitions.__doc__ or '')}</pre>"),
        _section("Settings", f"<pre>{escape(json.dumps(result['settings'], indent=1))}</pre>"),
        _section("Machine", f"<pre>{escape(json.dumps(result['machine'], indent=1))}</pre>"),
    ]
    return document(f"Load test of {where}", "".join(parts))


def document(title: str, body: str) -> str:
    """A page that needs nothing else; ``body`` is HTML."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{escape(title)}</title><style>{_STYLE}{_colours()}</style></head>"
        f"<body>{body}</body></html>\n"
    )


def _section(title: str, body: str) -> str:
    return f"<h2>{escape(title)}</h2>{body}" if body else ""


def _each(result: Result, title: str, draw: Any) -> str:
    slo_s = result["settings"]["slo"]["ttfa_s"]
    drawn = [(run["name"], draw(run, slo_s)) for run in result["runs"]]
    body = "".join(f"<h3>{escape(name)}</h3>{picture}" for name, picture in drawn if picture)
    return _section(title, body)


def table(head: list[str], rows: list[list[str]]) -> str:
    """A table of text; nothing without rows."""
    if not rows:
        return ""
    top = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f'<div class="scroll"><table><tr>{top}</tr>{body}</table></div>'


def _summary(result: Result) -> str:
    note = '<p class="dim">Durations in milliseconds.</p>'
    return table(list(header()), rows_of(result)) + note


def _playouts(result: Result) -> str:
    rows: list[list[str]] = []
    for run in result["runs"]:
        totals = run["totals"]
        for prebuffer, stalled in totals["stalled_turns"].items():
            rows.append(
                [
                    run["name"],
                    prebuffer,
                    f"{stalled} of {totals['turns']}",
                    str(totals["stalls"].get(prebuffer, 0)),
                    milliseconds(totals["total_stall_s"].get(prebuffer)),
                    milliseconds(totals["worst_stall_s"].get(prebuffer)),
                    milliseconds(totals["min_lead_s"].get(prebuffer)),
                ]
            )
    head = ["run", "prebuffer", "turns stalled", "stalls", "total ms", "worst ms", "min lead ms"]
    return table(head, rows)


def _percentiles(result: Result) -> str:
    rows: list[list[str]] = []
    unitless = ("rtf", "length_ratio")
    for run in result["runs"]:
        for name, values in run["totals"]["percentiles"].items():
            shown = [values.get(p) for p in ("p50", "p90", "p95", "p99", "p99.9", "max")]
            if name in unitless:
                cells = ["-" if value is None else f"{value:.3f}" for value in shown]
            else:
                cells = [milliseconds(value) for value in shown]
            rows.append([run["name"], name, str(values["count"]), *cells])
    return table(["run", "what", "count", "p50", "p90", "p95", "p99", "p99.9", "max"], rows)


def _repeats(result: Result) -> str:
    rows = [
        [
            run["name"],
            repeat["seed"],
            str(repeat["turns"]),
            milliseconds(repeat["ttfa_p50_s"]),
            milliseconds(repeat["ttfa_p95_s"]),
            f"{repeat['frames_per_s'] or 0:,.0f}",
            str(repeat["stalled"]),
            str(repeat["failed"]),
        ]
        for run in result["runs"]
        for repeat in run["repeats"]
        if len(run["repeats"]) > 1
    ]
    head = ["run", "seed", "turns", "TTFA p50", "TTFA p95", "frames/s", "stalled", "failed"]
    return table(head, rows)


def _client(result: Result) -> str:
    rows: list[list[str]] = []
    for run in result["runs"]:
        connections = run["connections"]
        for client in run["client"]:
            machine = client["machine_cpu_share"]
            rows.append(
                [
                    run["name"],
                    str(run["processes"]),
                    milliseconds(client["lag_p99_s"]),
                    milliseconds(client["lag_max_s"]),
                    f"{client['busiest_cpu_share']:.0%}",
                    "-" if machine is None else f"{machine:.0%}",
                    str(connections["connects"]),
                    str(connections["reconnects"]),
                    str(connections["stray_messages"]),
                    "yes" if client["reasons"] else "no",
                ]
            )
    head = ["run", "processes", "loop lag p99 ms", "max ms", "busiest process", "machine CPU"]
    return table([*head, "connects", "reconnects", "stray messages", "saturated"], rows)


def _worst(result: Result, sounds: Mapping[str, str]) -> str:
    blocks: list[str] = []
    turns = worst_turns(result)
    for run, turn in turns[:_WORST]:
        title = f"{run['name']}: user {turn['user']}, turn {turn['index']}"
        facts = f"{turn['ending']} {turn['detail']} · TTFA {milliseconds(turn['ttfa_s'])} ms"
        faults = ", ".join(turn["faults"])
        blocks.append(
            f'<h3>{escape(title)}</h3><p class="dim">{escape(facts)}'
            f"{' · ' + escape(faults) if faults else ''}</p>{plots.worst_turn(turn)}"
            f"{_player(turn['wav'], sounds.get(turn['wav'], ''))}"
        )
    if len(turns) > _WORST:
        blocks.append(f'<p class="dim">{len(turns) - _WORST} more are in the JSON file.</p>')
    return "".join(blocks)


def _player(wav: str, sound: str) -> str:
    """The excerpt in the page, or else the file beside it; always a link to the whole."""
    if not wav:
        return ""
    name = escape(wav, quote=True)
    what = "an excerpt; the whole: " if sound else ""
    return (
        f'<audio controls preload="none" src="{sound or name}"></audio>'
        f'<p class="dim">{what}<a href="{name}">{name}</a></p>'
    )

"""The README's table of what was measured, made from the committed runs and from nothing else.

    python -P -m shoal.loadtest.measured [--write README.md]

``results/measured.json`` names the runs that stand there. What is not there, was interrupted or is
of another kind of machine is left out. What others publish is held here with its source, and is
theirs: other models, machines and ways of counting. Pure but for the files.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from shoal.loadtest.report import result

RESULTS = Path(__file__).resolve().parent / "results"
BEGIN, END = "<!-- measured -->", "<!-- /measured -->"
KIND = "h200"

ARTICLE = "Fish Audio's article on S2.1 Pro, July 2026"
CLAIMED_FRAMES_PER_S = {1: "154", 64: "8,006"}
"""8,006 at 64 is the article's; 154 at 1 follows from it and from its scaling of 52 times."""
CLAIMED_SCALING = 52

UNITS = {
    "closed": ("user", "users"),
    "open": ("turn/s", "turns/s"),
    "conversation": ("conversation", "conversations"),
    "replay": ("times the recorded speed", "times the recorded speed"),
}
"""What a level counts, by the mode of the run: one of it, and more."""

PARTS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("products", ("gemm_kernel",)),
    ("attention of the slow stack", ("decode_kernel",)),
    ("norms, with what they quantise", ("add_norm_kernel", "whole_norm_kernel", "quantise_kernel")),
    ("attention of the fast stack", ("fast_kernel",)),
    ("SwiGLU", ("swiglu_kernel",)),
    ("storing keys and values", ("store_heads_kernel",)),
    ("sampling", ("sample_kernel",)),
)
"""Which kernels of a step are one line of where its time goes; others together are the last."""

OTHERS: tuple[tuple[str, str, str, str, str], ...] = (
    ("Fish Audio, S2.1 Pro, H200", "1 request", "73 (first byte)", "", ARTICLE),
    ("", "64 requests", "110 (first byte)", "8,006 frames/s", ARTICLE),
    (
        "sglang-omni, Qwen3-TTS 1.7B, H100",
        "open loop, 1/s",
        "28 median",
        "",
        "[sglang-omni 2294](https://github.com/sgl-project/sglang-omni/issues/2294)",
    ),
    (
        "",
        "open loop, 20/s",
        "37 median",
        "up to 0.2 % of streams ran dry",
        "[sglang-omni 2294](https://github.com/sgl-project/sglang-omni/issues/2294)",
    ),
    (
        "nanovllm, VoxCPM2, RTX 4090",
        "1 request",
        "67 median (first byte)",
        "",
        "[VoxCPM 374](https://github.com/OpenBMB/VoxCPM/issues/374)",
    ),
    (
        "",
        "64 requests",
        "189 median (first byte)",
        "",
        "[VoxCPM 374](https://github.com/OpenBMB/VoxCPM/issues/374)",
    ),
    (
        "SAIL, Orpheus 3B, H100",
        "216 connections",
        "",
        "real time at the 99th percentile",
        "[SAIL](https://www.silares.com/targets/target-1-baseten)",
    ),
)
"""Who and where, load, first audio in ms, what else, source. An empty name: the one above."""


def table(folder: Path = RESULTS) -> str:
    """Markdown, without the marks around it."""
    named = _named(folder)
    runs = [run for name in named["served"] for run in _runs(folder / name)]
    step: Mapping[str, Any] = {}
    if named["step"]:
        step = _step(folder / named["step"], named["precision"])
    steps = {int(row["batch"]): row for row in step.get("rows", [])}
    parts = [
        _served(runs, str(named["conditions"])),
        _stepped(steps),
        _spent(step.get("profile", [])),
        _published(),
    ]
    return "\n\n".join(part for part in parts if part)


def inserted(page: str, text: str) -> str:
    """``page`` with ``text`` between its two marks. :raises ValueError: it lacks them."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page lacks {BEGIN} and {END}")
    return f"{before}{BEGIN}\n{text}\n{END}{after}"


def _named(folder: Path) -> dict[str, Any]:
    """What stands in the table: ``conditions`` in words, ``served`` files of load tests, ``step``
    a file of the step's bench and ``precision`` the part of it."""
    found = cast("dict[str, Any]", json.loads((folder / "measured.json").read_text("utf-8")))
    return {key: found[key] for key in ("conditions", "served", "step", "precision")}


def _runs(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    found = result.read(path)
    if found["kind"] != KIND:
        return []
    cap_s = found["settings"]["rules"].get("cap_s")
    runs = [
        {**run, "knee": found["knee"], "cap_s": cap_s}
        for run in found["runs"]
        if run["complete"] and run["totals"]["turns"]
    ]
    knee = found["knee"]
    if knee is None:
        return runs
    return [run for run in runs if run["level"] == knee["best"]]


def _step(path: Path, precision: str) -> Mapping[str, Any]:
    return json.loads(path.read_text("utf-8")).get(precision, {}) if path.exists() else {}


def _served(runs: Sequence[Mapping[str, Any]], conditions: str) -> str:
    if not runs:
        return ""
    head = ["shoal on one H200", "first audio p50, ms", "p95", "turns that stalled"]
    rows = [_served_row(run) for run in runs]
    notes = [conditions]
    for cap_s in sorted({run["cap_s"] for run in runs if run["cap_s"]}):
        notes.append(f"Every sentence was cut off after {cap_s:.1f} s.")
    for run in runs:
        if early := run["totals"].get("early_turns", 0):
            notes.append(
                f"With {run['level']:g}, {early} of {run['totals']['turns']} turns spoke before"
                " their first sentence was whole, which counts as 0."
            )
    if any(_strained(run) for run in runs):
        notes.append("\\* The client was at its limit, so the figures are no better than that.")
    return (
        _markdown([*head, "frames/s", "seconds of speech a second"], rows)
        + "\n\n"
        + " ".join(notes)
    )


def _served_row(run: Mapping[str, Any]) -> list[str]:
    totals = run["totals"]
    ttfa = totals["percentiles"].get("ttfa", {})
    name = _load(str(run["mode"]), float(run["level"]))
    if run["knee"] is not None:
        name += ", the most that kept p95 within the limit"
    failed = f", {totals['failed']} failed" if totals["failed"] else ""
    return [
        name + ("\\*" if _strained(run) else ""),
        _ms(ttfa.get("p50")),
        _ms(ttfa.get("p95")),
        f"{totals['stalled_turns'].get('0ms', 0)} of {totals['turns']}{failed}",
        f"{totals['frames_per_s']:,.0f}",
        f"{totals['audio_s_per_s']:,.0f}",
    ]


def _load(mode: str, level: float) -> str:
    one, many = UNITS[mode]
    return f"{level:g} {one if level == 1 else many}"


def _strained(run: Mapping[str, Any]) -> bool:
    return any(client["reasons"] for client in run["client"])


def _stepped(steps: Mapping[int, Mapping[str, Any]]) -> str:
    if not steps:
        return ""
    rows = [
        [
            str(batch),
            f"{row['step_ms']:.2f}",
            f"{row['with_codec_ms']:.2f}",
            f"{row['frames_per_s']:,}",
            CLAIMED_FRAMES_PER_S.get(batch, ""),
        ]
        for batch, row in sorted(steps.items())
    ]
    head = ["rows in a step", "step, ms", "with the codec beside it", "frames/s", "the article's"]
    text = _markdown(head, rows)
    if 1 in steps and 64 in steps:
        times = steps[64]["frames_per_s"] / steps[1]["frames_per_s"]
        text += f"\n\nFrom 1 row to 64: {times:.0f} times the frames/s; the article's: "
        text += f"{CLAIMED_SCALING} times."
    return text


def _spent(profiles: Sequence[Mapping[str, Any]]) -> str:
    """Where a step's time goes, a column for each number of rows."""
    if not profiles:
        return ""
    took = [{str(k["kernel"]): float(k["us"]) for k in p["kernels"]} for p in profiles]
    lines: list[tuple[str, list[float]]] = [
        (name, [sum(us.get(kernel, 0.0) for kernel in kernels) / 1e3 for us in took])
        for name, kernels in PARTS
    ]
    named = {kernel for _, kernels in PARTS for kernel in kernels}
    rest = [sum(v for kernel, v in us.items() if kernel not in named) / 1e3 for us in took]
    lines += [
        ("all else", rest),
        ("all kernels", [p["kernels_ms"] for p in profiles]),
        ("the step", [p["step_ms"] for p in profiles]),
        ("reading weights, keys and values once", [p["floor_ms"] for p in profiles]),
    ]
    rows = [[name, *(f"{ms:.2f}" for ms in line)] for name, line in lines]
    head = ["where a step's time goes, ms", *(_rows(p["batch"]) for p in profiles)]
    text = _markdown(head, rows)
    return text + "\n\nA kernel begins while the one before it ends, so all of them are more."


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count} rows"


def _published() -> str:
    head = ["what others publish", "load", "first audio, ms", "", "source"]
    return _markdown(head, [list(row) for row in OTHERS])


def _ms(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1e3:.0f}"


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table, or put it into a page."""
    parser = argparse.ArgumentParser(description="the table of what was measured, as Markdown")
    parser.add_argument("--write", type=Path, help="a page with the two marks to put it between")
    args = parser.parse_args(argv)
    page: Path | None = args.write
    if page is None:
        print(table())
    else:
        page.write_text(inserted(page.read_text("utf-8"), table()), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

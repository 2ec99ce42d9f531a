"""The one JSON file of a load test: written, read back, and looked into by name. Pure but for I/O
of the file itself.

Everything else (HTML, comparison, gates) works from this file, so a run can be judged later and
elsewhere. It holds no key, no text and no audio.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit, urlunsplit

from shoal.loadtest.drive.collector import Kept, Row
from shoal.loadtest.drive.load import WorkerPlan
from shoal.loadtest.drive.session import LevelResult
from shoal.loadtest.measure.knee import KneeSearch
from shoal.loadtest.measure.metrics import Rules, playout_of

from .documents import read_object
from .totals_json import as_json

FORMAT = "shoal-load"
VERSION = 1

Json = dict[str, Any]


class NotAResult(Exception):
    """The file is no result of this tool; the message says what is wrong with it."""


def run_name(mode: str, level: float) -> str:
    """ "closed@16": how a run is called in comparisons, baselines and the report."""
    return f"{mode}@{level:g}"


def build(
    plan: WorkerPlan,
    results: Sequence[LevelResult],
    search: KneeSearch | None,
    machine: Mapping[str, Any],
    kind: str,
    note: str,
    wavs: Mapping[tuple[int, int], str],
) -> Json:
    """The result as plain JSON values. ``wavs`` names the file of (run, its n-th worst turn)."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "kind": kind,
        "note": note,
        "machine": dict(machine),
        "target": _target(plan),
        "settings": _settings(plan),
        "knee": _knee(search, results),
        "runs": [_run(plan.rules, result, i, wavs) for i, result in enumerate(results)],
    }


def _target(plan: WorkerPlan) -> Json:
    options = plan.options
    parts = urlsplit(options.url)
    host = parts.netloc.rpartition("@")[2]
    return {
        "name": plan.target,
        "url": urlunsplit((parts.scheme, host, parts.path, "", "")),
        "model": options.model,
        "format": options.container,
        "rate": options.rate,
        "settings": dict(options.extra),
    }


def _settings(plan: WorkerPlan) -> Json:
    speech = plan.speech
    return {
        "load": _plain({**dataclasses.asdict(plan.load), "level": None}),
        "timing": _plain(dataclasses.asdict(plan.timing)),
        "slo": {**_plain(dataclasses.asdict(plan.slo)), "words": plan.slo.describe()},
        "rules": _plain(dataclasses.asdict(plan.rules)),
        "line": _plain(dataclasses.asdict(plan.line_rules)),
        "frame_s": plan.frame_s,
        "seed": plan.seed,
        "speech": {
            "sentences": list(speech.sentences),
            "corpus_lines": len(speech.corpus),
            "by_sentence": speech.by_sentence,
            "tokens_per_s": list(speech.tokens_per_s) if speech.tokens_per_s else None,
            "voices": len(speech.voices.voices),
            "zipf": speech.voices.exponent,
            "fresh_share": speech.voices.fresh_share,
            "barge_in_share": speech.barge_in_share,
            "barge_in_s": list(speech.barge_in_s),
        },
    }


def _knee(search: KneeSearch | None, results: Sequence[LevelResult]) -> Json | None:
    if search is None:
        return None
    return {
        "mode": results[0].mode.value if results else None,
        "best": search.best,
        "broken": search.lowest_broken,
        "known": search.next_level() is None,
        "tried": [{"level": t.level, "kept": t.kept} for t in search.tried],
    }


def _run(
    rules: Rules, result: LevelResult, number: int, wavs: Mapping[tuple[int, int], str]
) -> Json:
    columns = [field.name for field in dataclasses.fields(Row)]
    return {
        "name": run_name(result.mode.value, result.level),
        "mode": result.mode.value,
        "level": result.level,
        "complete": result.complete,
        "processes": result.processes,
        "totals": as_json(result.totals),
        "repeats": [_plain(dataclasses.asdict(repeat)) for repeat in result.repeats],
        "connections": _plain(dataclasses.asdict(result.counts)),
        "client": [_plain(dataclasses.asdict(s)) for s in result.saturations],
        "server_stages": [_plain(dataclasses.asdict(stage)) for stage in result.stages],
        "server_counters": result.growth,
        "server_problem": result.scrape_problem,
        "columns": columns,
        "rows": [
            [_rounded(_plain(getattr(row, column))) for column in columns] for row in result.rows
        ],
        "worst": [
            _worst(rules, kept, wavs.get((number, n), "")) for n, kept in enumerate(result.worst)
        ],
    }


def _worst(rules: Rules, kept: Kept, wav: str) -> Json:
    """One turn with its whole timeline; times relative to when it was due."""
    turn, figures = kept.turn, kept.figures
    zero_s = turn.scheduled_s
    playout = playout_of(turn, rules, 0.0)

    def relative(at_s: float | None) -> float | None:
        return None if at_s is None else round(at_s - zero_s, 6)

    return {
        "user": turn.user,
        "index": turn.index,
        "ending": turn.ending.value,
        "detail": turn.detail,
        "faults": sorted(fault.value for fault in figures.faults),
        "ttfa_s": _rounded(figures.ttfa_s),
        "audible_s": _rounded(figures.audible_s),
        "audio_s": _rounded(figures.audio_s),
        "speakable_s": relative(turn.speakable_s),
        "began_s": relative(turn.began_s),
        "text_done_s": relative(turn.text_done_s),
        "cut_s": relative(turn.cut_s),
        "ended_s": relative(turn.ended_s),
        "arrivals": [[relative(a.at_s), round(a.samples / turn.rate, 6)] for a in turn.arrivals],
        "play_start_s": relative(playout.start_s) if playout else None,
        "stalls": [
            [relative(stall.at_s), round(stall.length_s, 6)]
            for stall in (playout.stalls if playout else ())
        ],
        "pauses": [
            [relative(pause.at_s), round(pause.length_s, 6)]
            for pause in (playout.pauses if playout else ())
        ],
        "wav": wav,
    }


def _rounded(value: Any) -> Any:
    return round(value, 6) if isinstance(value, float) else value


def _plain(value: Any) -> Any:
    """Enums by value, tuples as lists, through containers."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in cast("dict[Any, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in cast("Sequence[Any]", value)]
    return value


def write(result: Json, path: Path) -> None:
    """As compact JSON with one run per line, so that diffs and greps stay bearable."""
    head = json.dumps({k: v for k, v in result.items() if k != "runs"}, indent=1)
    runs = ",\n".join(json.dumps(run, separators=(",", ":")) for run in result["runs"])
    path.write_text(f'{head[:-2]},\n "runs": [\n{runs}\n]\n}}\n', encoding="utf-8")


def read(path: Path) -> Json:
    """:raises NotAResult: when the file is missing, not JSON, or of another kind or version."""
    result = read_object(path, NotAResult, "not a result of this tool")
    if result.get("format") != FORMAT:
        raise NotAResult(f"{path}: not a result of this tool")
    if result.get("version") != VERSION:
        raise NotAResult(f"{path}: version {result.get('version')}, this tool reads {VERSION}")
    return result


def worst_turns(result: Mapping[str, Any]) -> list[tuple[Json, Json]]:
    """(run, turn) of every kept turn, the worst of each run before the second of any."""
    ranked = [
        (rank, number, run, turn)
        for number, run in enumerate(result["runs"])
        for rank, turn in enumerate(run["worst"])
    ]
    ranked.sort(key=lambda one: one[:2])
    return [(run, turn) for _, _, run, turn in ranked]


def metrics(run: Mapping[str, Any]) -> dict[str, float]:
    """All single figures of one run under flat names: "ttfa.p95", "stalled_share.0ms", ..."""
    totals = run["totals"]
    found: dict[str, float] = {}
    for name, percentiles in totals["percentiles"].items():
        for which, value in percentiles.items():
            if value is not None and which != "count":
                found[f"{name}.{which}"] = value
    for name in ("frames_per_s", "audio_s_per_s", "goodput", "good_turns_per_s"):
        if totals[name] is not None:
            found[name] = totals[name]
    turns = max(1, totals["turns"])
    found["failed_share"] = totals["failed"] / turns
    found["refused_share"] = totals["refused"] / turns
    for prebuffer, count in totals["stalled_turns"].items():
        found[f"stalled_share.{prebuffer}"] = count / turns
    for prebuffer, lead_s in totals["min_lead_s"].items():
        found[f"min_lead.{prebuffer}"] = lead_s
    for fault, count in totals["faults"].items():
        found[f"fault_share.{fault}"] = count / turns
    return found

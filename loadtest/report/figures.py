"""What a gate can judge: any file of a load test or a bench -> rows of figures. Reads files only.

A row is one level of load ("closed@64"), one batch of a decode step ("step fp8@64") or the token
gate's ("tokens"), with its figures by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from . import result
from .documents import read_object
from .result import NotAResult

Json = Mapping[str, Any]
Rows = dict[str, dict[str, float]]


@dataclass(frozen=True, slots=True)
class Source:
    """One file. ``machine`` is the kind that a load test was told, or the device that a bench
    found; empty where the file says neither. ``doubts`` are reasons not to believe its rows,
    ``strained`` those that lie in a client at its limit."""

    file: str
    machine: str
    made: str
    rows: Rows
    doubts: tuple[str, ...] = ()
    strained: tuple[str, ...] = ()


def read(path: Path) -> Source:
    """:raises NotAResult: the file is none that a gate can judge."""
    content = read_object(path, NotAResult, "not a result of this tool")
    if content.get("format") == result.FORMAT:
        return _of_load(path, result.read(path))
    try:
        if "candidate" in content and "findings" in content:
            return Source(path.name, "", "", {"tokens": _of_tokens(content)})
        rows = _of_steps(content)
        device = str(content["device"]) if rows else ""
    except (KeyError, TypeError, ValueError, AttributeError) as problem:
        raise NotAResult(f"{path}: {problem!r} is missing or not as it should be") from problem
    if not rows:
        raise NotAResult(f"{path}: neither a load test, a step's bench nor a token gate")
    return Source(path.name, device, str(content.get("torch", "")), rows)


def gather(sources: Sequence[Source]) -> Rows:
    """All rows together. :raises NotAResult: two files hold the same one."""
    rows: Rows = {}
    for source in sources:
        for name, figures in source.rows.items():
            if name in rows:
                raise NotAResult(f"{source.file}: {name} is in another file too")
            rows[name] = figures
    return rows


def _of_load(path: Path, found: Json) -> Source:
    doubts: list[str] = []
    strained: list[str] = []
    for run in found["runs"]:
        if not run["complete"]:
            doubts.append(f"{run['name']} was interrupted")
        if any(client["reasons"] for client in run["client"]):
            strained.append(f"{run['name']}: the client was saturated")
        if not run["totals"]["turns"]:
            doubts.append(f"{run['name']}: no turn was measured")
    rows: Rows = {}
    for run in found["runs"]:
        if run["name"] in rows:
            raise NotAResult(f"{path}: holds {run['name']} twice")
        rows[run["name"]] = result.metrics(run)
    return Source(path.name, found["kind"], found["created"], rows, tuple(doubts), tuple(strained))


def _of_steps(content: Json) -> Rows:
    """The decode step's bench: one part for each precision, with a row for each batch."""
    rows: Rows = {}
    for precision, part in content.items():
        if not isinstance(part, dict) or "rows" not in part:
            continue
        for row in cast("list[dict[str, Any]]", part["rows"]):
            rows[f"step {precision}@{int(row['batch'])}"] = {
                "frames_per_s": float(row["frames_per_s"]),
                "step_ms": float(row["step_ms"]),
                "allocations": float(row["allocations"]),
            }
    return rows


def _of_tokens(content: Json) -> dict[str, float]:
    """The token gate's own findings, and over how many tokens, so that it cannot shrink."""
    judged = content["candidate"]
    return {
        "tokens": float(judged["tokens"]),
        "sure_and_wrong": float(judged["sure_and_wrong"]),
        "failed_findings": float(sum(not finding["passed"] for finding in content["findings"])),
        "agreement": float(judged["agreement"]),
    }

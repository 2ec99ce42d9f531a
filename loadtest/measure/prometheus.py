"""A server's own account: two readings of its /metrics, and what happened between them. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

_LINE = re.compile(r"^([A-Za-z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_MAX_SERIES = 5000

Series = tuple[str, tuple[tuple[str, str], ...]]
Reading = Mapping[Series, float]


@dataclass(frozen=True, slots=True)
class Stage:
    """One duration as the server measured it between two readings. Seconds."""

    name: str
    count: int
    mean_s: float
    p50_s: float | None
    p95_s: float | None


def parse(text: str) -> dict[Series, float]:
    """The text exposition format -> values by name and sorted labels; junk lines are skipped."""
    found: dict[Series, float] = {}
    for line in text.splitlines():
        match = _LINE.match(line)
        if match is None or len(found) >= _MAX_SERIES:
            continue
        try:
            value = float(match.group(3))
        except ValueError:
            continue
        found[match.group(1), tuple(sorted(_LABEL.findall(match.group(2) or "")))] = value
    return found


def stages(before: Reading, after: Reading) -> list[Stage]:
    """Every histogram or summary of seconds that grew between the readings."""
    found: list[Stage] = []
    for (name, labels), total in after.items():
        if not name.endswith("_seconds_sum"):
            continue
        stem = name.removesuffix("_sum")
        count_key = (f"{stem}_count", labels)
        count = after.get(count_key, 0.0) - before.get(count_key, 0.0)
        if count < 1:
            continue
        mean_s = (total - before.get((name, labels), 0.0)) / count
        buckets = _buckets(before, after, stem, labels)
        what = ",".join(value for _, value in labels)
        short = stem.removesuffix("_seconds")
        found.append(
            Stage(
                f"{short} {what}".strip(),
                int(count),
                mean_s,
                _quantile(buckets, 0.5),
                _quantile(buckets, 0.95),
            )
        )
    return sorted(found, key=lambda stage: stage.name)


def growth(before: Reading, after: Reading) -> dict[str, float]:
    """Counters (``_total``) by how much they grew, all labels together."""
    grown: dict[str, float] = {}
    for (name, labels), value in after.items():
        if name.endswith("_total"):
            delta = value - before.get((name, labels), 0.0)
            if delta:
                grown[name] = grown.get(name, 0.0) + delta
    return grown


def _buckets(
    before: Reading, after: Reading, stem: str, labels: tuple[tuple[str, str], ...]
) -> list[tuple[float, float]]:
    """(upper edge, cumulative count between the readings), ascending."""
    edges: list[tuple[float, float]] = []
    for (name, with_edge), value in after.items():
        if name != f"{stem}_bucket":
            continue
        rest = tuple(label for label in with_edge if label[0] != "le")
        edge = dict(with_edge).get("le")
        if rest == labels and edge is not None:
            edges.append((float(edge), value - before.get((name, with_edge), 0.0)))
    return sorted(edges)


def _quantile(buckets: list[tuple[float, float]], share: float) -> float | None:
    """Interpolated inside its bucket; ``None`` when it lies beyond the last finite edge."""
    if not buckets or buckets[-1][1] <= 0:
        return None
    wanted = share * buckets[-1][1]
    low_edge, low_count = min(0.0, buckets[0][0]), 0.0
    for edge, count in buckets:
        if count >= wanted:
            if math.isinf(edge):
                return None
            inside = (wanted - low_count) / (count - low_count) if count > low_count else 1.0
            return low_edge + inside * (edge - low_edge)
        low_edge, low_count = edge, count
    return None

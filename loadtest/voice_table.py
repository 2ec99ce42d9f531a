"""The table of a voice's figures: each beside its target and its aim, with a verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """One figure. ``at_most`` or ``at_least`` is the target, ``aim`` what is hoped for beyond;
    a figure with neither is only told. ``value`` is None where it could not be measured."""

    what: str
    value: float | None
    unit: str
    at_most: float | None = None
    at_least: float | None = None
    aim: float | None = None
    note: str = ""

    @property
    def verdict(self) -> str:
        """``aim``, ``good``, ``missed``, ``not measured``, or nothing where nothing is wanted."""
        if self.value is None:
            return "not measured"
        if self.at_most is not None:
            if self.value > self.at_most:
                return "missed"
            return "aim" if self.aim is not None and self.value <= self.aim else "good"
        if self.at_least is not None:
            if self.value < self.at_least:
                return "missed"
            return "aim" if self.aim is not None and self.value >= self.aim else "good"
        return ""

    @property
    def target(self) -> str:
        if self.at_most is not None:
            return f"<= {_number(self.at_most, self.unit)}"
        return "" if self.at_least is None else f">= {_number(self.at_least, self.unit)}"


def table(rows: Sequence[Row]) -> str:
    lines = ["| what | measured | target | aim | |", "|---|---|---|---|---|"]
    for row in rows:
        value = "-" if row.value is None else _number(row.value, row.unit)
        aim = "" if row.aim is None else _number(row.aim, row.unit)
        lines.append(f"| {row.what} | {value} | {row.target} | {aim} | {row.verdict} |")
    lines += [f"{row.what}: {row.note}" for row in rows if row.note]
    return "\n".join(lines)


def _number(value: float, unit: str) -> str:
    shown = f"{value:.1f}" if unit in ("%", "MB", "dB") else f"{value:.3g}"
    return f"{shown} {unit}".rstrip()

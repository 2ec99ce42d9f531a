"""Just enough chart drawing for the report: axes, lines, bars and dots as inline SVG. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

Scale = Callable[[float], float]

LEFT, RIGHT, TOP, BOTTOM = 62, 14, 12, 40


def linear(low: float, high: float) -> Scale:
    """Maps low..high to 0..1."""
    span = (high - low) or 1.0
    return lambda value: (value - low) / span


def logarithmic(low: float, high: float) -> Scale:
    """Maps low..high (above 0) to 0..1 by ratio; what is lower sits at the low edge."""
    low, high = math.log10(low), math.log10(high)
    span = (high - low) or 1.0
    return lambda value: (math.log10(max(value, 1e-12)) - low) / span


def nice_ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers within low..high, about so many."""
    if high <= low:
        return [low]
    raw = (high - low) / about
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * m for m in (1, 2, 5, 10) if power * m >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(k * step, 10) for k in range(first, last + 1)]


@dataclass(frozen=True, slots=True)
class Tick:
    """A mark on an axis."""

    at: float
    text: str


def ticks(low: float, high: float, about: int = 5) -> list[Tick]:
    """Marks with plain numbers."""
    return [Tick(value, f"{value:g}") for value in nice_ticks(low, high, about)]


class Chart:
    """One chart in the making; coordinates are data values. :meth:`render` gives the SVG."""

    def __init__(self, width: int, height: int, x: Scale, y: Scale, title: str) -> None:
        self._width = width
        self._height = height
        self._x = x
        self._y = y
        self._title = title
        self._parts: list[str] = []

    def px(self, x: float) -> float:
        """Pixels from the left; what lies outside stays at the edge."""
        inner = self._width - LEFT - RIGHT
        return round(LEFT + min(1.0, max(0.0, self._x(x))) * inner, 1)

    def py(self, y: float) -> float:
        """Pixels from the top."""
        inner = self._height - TOP - BOTTOM
        return round(TOP + (1.0 - min(1.0, max(0.0, self._y(y)))) * inner, 1)

    def axes(
        self, x_ticks: Sequence[Tick], y_ticks: Sequence[Tick], x_label: str, y_label: str
    ) -> None:
        """Grid, marks and what the axes mean."""
        bottom, right = self._height - BOTTOM, self._width - RIGHT
        for tick in y_ticks:
            at = self.py(tick.at)
            self._parts.append(f'<line class="grid" x1="{LEFT}" y1="{at}" x2="{right}" y2="{at}"/>')
            self._text(LEFT - 6, at + 4, tick.text, "end")
        for tick in x_ticks:
            at = self.px(tick.at)
            self._parts.append(f'<line class="grid" x1="{at}" y1="{TOP}" x2="{at}" y2="{bottom}"/>')
            self._text(at, bottom + 15, tick.text, "middle")
        self._text((LEFT + right) / 2, self._height - 6, x_label, "middle")
        middle = (TOP + bottom) / 2
        self._parts.append(
            f'<text x="13" y="{middle}" text-anchor="middle"'
            f' transform="rotate(-90 13 {middle})">{escape(y_label)}</text>'
        )

    def line(self, points: Sequence[tuple[float, float]], css: str) -> None:
        """A polyline through ``points``."""
        if points:
            path = " ".join(f"{self.px(x)},{self.py(y)}" for x, y in points)
            self._parts.append(f'<polyline class="line {css}" points="{path}"/>')

    def dot(self, x: float, y: float, css: str, tip: str = "", radius: float = 3.0) -> None:
        """A point; ``tip`` shows when the mouse rests on it."""
        self._parts.append(
            f'<circle class="dot {css}" cx="{self.px(x)}" cy="{self.py(y)}" r="{radius}">'
            f"{_tip(tip)}</circle>"
        )

    def box(self, x0: float, x1: float, y0: float, y1: float, css: str, tip: str = "") -> None:
        """A filled rectangle between two corners; at least half a pixel wide."""
        left, right = sorted((self.px(x0), self.px(x1)))
        top, bottom = sorted((self.py(y0), self.py(y1)))
        self._parts.append(
            f'<rect class="box {css}" x="{left}" y="{top}" width="{max(0.5, right - left):.1f}"'
            f' height="{max(0.5, bottom - top):.1f}">{_tip(tip)}</rect>'
        )

    def rule(self, css: str, x: float | None = None, y: float | None = None, tip: str = "") -> None:
        """A line across the whole chart at ``x`` or at ``y``."""
        bottom, right = self._height - BOTTOM, self._width - RIGHT
        if x is not None:
            ends = f'x1="{self.px(x)}" y1="{TOP}" x2="{self.px(x)}" y2="{bottom}"'
            self._parts.append(f'<line class="rule {css}" {ends}>{_tip(tip)}</line>')
        if y is not None:
            ends = f'x1="{LEFT}" y1="{self.py(y)}" x2="{right}" y2="{self.py(y)}"'
            self._parts.append(f'<line class="rule {css}" {ends}>{_tip(tip)}</line>')

    def render(self) -> str:
        """The whole element."""
        return (
            f'<svg viewBox="0 0 {self._width} {self._height}" role="img"'
            f' aria-label="{escape(self._title, quote=True)}">{"".join(self._parts)}</svg>'
        )

    def _text(self, x: float, y: float, text: str, anchor: str) -> None:
        self._parts.append(
            f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
        )


def _tip(text: str) -> str:
    return f"<title>{escape(text)}</title>" if text else ""


def legend(entries: Sequence[tuple[str, str]]) -> str:
    """(css, text) pairs as a line of keys."""
    keys = "".join(
        f'<span class="key"><i class="{css}"></i>{escape(text)}</span>' for css, text in entries
    )
    return f'<p class="legend">{keys}</p>'

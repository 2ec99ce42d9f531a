"""Which level to try next when looking for the highest one that keeps the SLO. Pure."""

from __future__ import annotations

from dataclasses import dataclass

_DEEPEST = 64
"""Below a so-manieth of the start the search gives up: nothing there would be an answer."""


@dataclass(frozen=True, slots=True)
class Tried:
    """A level and whether it kept the SLO."""

    level: float
    kept: bool


class KneeSearch:
    """Doubles (or halves) until the promise breaks (or holds), then halves the interval.

    Ends when the lowest broken level is within ``resolution`` of the highest kept one, or one
    apart where levels are whole numbers. A broken level is taken for true: nothing above it is
    tried, so one unlucky run makes the answer lower, never higher.
    """

    def __init__(
        self, start: float, highest: float, resolution: float = 0.1, whole: bool = True
    ) -> None:
        if not 0 < start <= highest:
            raise ValueError("the search must start above 0 and not beyond its highest level")
        self._start = start
        self._highest = highest
        self._resolution = resolution
        self._whole = whole
        self.tried: list[Tried] = []

    @property
    def best(self) -> float | None:
        """The highest level that kept the SLO, below every one that did not."""
        broken = self.lowest_broken
        kept = [t.level for t in self.tried if t.kept and (broken is None or t.level < broken)]
        return max(kept, default=None)

    @property
    def lowest_broken(self) -> float | None:
        """The lowest level that did not: the answer is below it."""
        return min((t.level for t in self.tried if not t.kept), default=None)

    def next_level(self) -> float | None:
        """The level to try now, or ``None`` when the answer is known."""
        if not self.tried:
            return self._fit(self._start)
        best, broken = self.best, self.lowest_broken
        if broken is None:
            assert best is not None
            return self._fit(min(best * 2, self._highest)) if best < self._highest else None
        if best is None:
            lower = self._fit(broken / 2)
            return lower if self._start / _DEEPEST <= lower < broken and lower > 0 else None
        if broken - best <= max(1.0 if self._whole else 0.0, self._resolution * best):
            return None
        middle = self._fit((best + broken) / 2)
        return middle if best < middle < broken else None

    def record(self, level: float, kept: bool) -> None:
        """How ``level`` went."""
        self.tried.append(Tried(level, kept))

    def _fit(self, level: float) -> float:
        return float(round(level)) if self._whole else round(level, 3)

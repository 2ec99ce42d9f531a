"""Gathers the turns of one process: totals, rows for the plots, the worst with their audio.

Bounded: totals are histograms, rows and recordings are capped. No I/O, no clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from shoal.loadtest.measure.metrics import Figures, Rules, measure
from shoal.loadtest.measure.slo import Slo
from shoal.loadtest.measure.timeline import Kind, Turn
from shoal.loadtest.measure.totals import Totals

from .line import Spoken


@dataclass(frozen=True, slots=True)
class Window:
    """When load begins, when turns start to count, when they stop, when new ones stop."""

    start_s: float
    from_s: float
    to_s: float
    stop_s: float

    def holds(self, at_s: float) -> bool:
        return self.from_s <= at_s < self.to_s


@dataclass(frozen=True, slots=True)
class Row:
    """One measured turn, small enough to keep many. Times in seconds; ``at_s`` from the window."""

    at_s: float
    user: int
    index: int
    kind: Kind
    ending: str
    ttfa_s: float | None
    ttfa_sent_s: float | None
    audible_s: float | None
    send_lag_s: float | None
    audio_s: float
    stalls: int
    total_stall_s: float
    min_lead_s: float | None
    rtf: float | None
    voice: str
    faults: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Kept:
    """A turn kept whole for the report."""

    turn: Turn
    figures: Figures
    pcm: bytes = field(repr=False)


@dataclass(slots=True)
class Progress:
    """What happened since the last look; ``ttfa_s`` are the TTFAs of finished turns."""

    worker: int = 0
    open_turns: int = 0
    turns: int = 0
    failed: int = 0
    refused: int = 0
    stalled: int = 0
    audio_s: float = 0.0
    ttfa_s: list[float] = field(default_factory=list[float])
    worst_lag_s: float = 0.0


def _severities(kept: Kept, slo: Slo) -> tuple[float, float, float]:
    """How badly the turn broke, stalled, and was late; 0 where it did not."""
    figures = kept.figures
    playout = figures.playout(slo.prebuffer_s)
    broke = 0.0 if figures.complete else 1.0 + figures.audio_s
    return broke, playout.total_stall_s if playout else 0.0, figures.ttfa_s or 0.0


def pick_worst(kept: Iterable[Kept], slo: Slo, size: int) -> list[Kept]:
    """The ``size`` worst, in turn by each way of being bad, so that no kind hides the others."""
    scored = [(_severities(one, slo), one) for one in kept]
    orders: list[list[Kept]] = []
    for way in range(3):
        bad = [pair for pair in scored if pair[0][way] > 0]
        bad.sort(key=lambda pair, way=way: pair[0][way], reverse=True)
        orders.append([one for _, one in bad])
    picked: list[Kept] = []
    while len(picked) < size and any(orders):
        for order in orders:
            while order and any(order[0] is one for one in picked):
                order.pop(0)
            if order and len(picked) < size:
                picked.append(order.pop(0))
    return picked


class Collector:
    """Turns of the whole run come in; only those scheduled inside the window are counted."""

    def __init__(
        self, window: Window, rules: Rules, slo: Slo, frame_s: float, rows: int, worst: int
    ) -> None:
        self._window = window
        self._rules = rules
        self._slo = slo
        self.totals = Totals(slo, frame_s, window_s=window.to_s - window.from_s)
        self.rows: deque[Row] = deque(maxlen=rows)
        self._worst_size = worst
        self._candidates: list[Kept] = []
        self._progress = Progress()
        self.open_turns = 0

    @property
    def worst(self) -> list[Kept]:
        """See :func:`pick_worst`."""
        return pick_worst(self._candidates, self._slo, self._worst_size)

    def on_audio(self, at_s: float, seconds: float) -> None:
        """A playable arrival of any turn."""
        self._progress.audio_s += seconds
        if self._window.holds(at_s):
            self.totals.window_audio_s += seconds

    def add(self, spoken: Spoken) -> Figures:
        """Measure a turn that has ended and count it if it belongs to the window."""
        turn = spoken.turn
        figures = measure(turn, self._rules)
        playout = figures.playout(self._slo.prebuffer_s)
        progress = self._progress
        progress.turns += 1
        progress.failed += not figures.complete
        progress.refused += turn.ending.value == "refused"
        progress.stalled += bool(playout and playout.stalls)
        if figures.ttfa_s is not None and turn.kind is Kind.WARM:
            progress.ttfa_s.append(figures.ttfa_s)
        if not self._window.holds(turn.scheduled_s):
            return figures
        self.totals.add(figures, turn.stages, turn.detail)
        self.rows.append(
            Row(
                turn.scheduled_s - self._window.from_s,
                turn.user,
                turn.index,
                turn.kind,
                turn.ending.value,
                figures.ttfa_s,
                figures.ttfa_sent_s,
                figures.audible_s,
                figures.send_lag_s,
                figures.audio_s,
                playout.stalls if playout else 0,
                playout.total_stall_s if playout else 0.0,
                playout.min_lead_s if playout else None,
                figures.rtf,
                turn.voice,
                tuple(sorted(fault.value for fault in figures.faults)),
            )
        )
        if turn.kind is Kind.WARM:
            self._keep(Kept(turn, figures, spoken.pcm))
        return figures

    def take_progress(self) -> Progress:
        """The news since the last call."""
        progress, self._progress = self._progress, Progress()
        progress.open_turns = self.open_turns
        return progress

    def _keep(self, kept: Kept) -> None:
        """Keep it while it may be among the worst; sorted out now and then, so it stays bounded."""
        if self._worst_size > 0:
            self._candidates.append(kept)
        if len(self._candidates) >= 4 * self._worst_size:
            self._candidates = pick_worst(self._candidates, self._slo, self._worst_size)

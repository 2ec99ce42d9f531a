"""Many turns -> one set of totals that can be merged across processes and seeds. Pure.

Histograms are merged, percentiles never averaged. Memory is bounded whatever the run's length.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from .histogram import Histogram
from .metrics import Figures
from .slo import Slo, Verdict, judge
from .timeline import Ending, Kind

PERCENTILES = (50.0, 90.0, 95.0, 99.0, 99.9, 100.0)

DURATIONS = (
    "ttfa",
    "ttfa_sent",
    "ttfa_text",
    "ttfb",
    "audible",
    "playable",
    "send_lag",
    "connect",
    "prepare",
    "gap",
    "jitter",
    "text_pause",
    "resume",
    "worst_gap",
    "cut_tail",
    "cold_ttfa",
    "cold_audible",
)
"""Histograms in seconds; "rtf" and "length_ratio" stand beside them without a unit."""

_RATIOS = ("rtf", "length_ratio")


def percentile_name(percent: float) -> str:
    """50.0 -> "p50", 99.9 -> "p99.9", 100.0 -> "max"."""
    return "max" if percent == 100.0 else f"p{percent:g}"


def _histograms() -> dict[str, Histogram]:
    return {name: Histogram() for name in (*DURATIONS, *_RATIOS)}


@dataclass(slots=True)
class Totals:
    """Sums, counts and histograms of the turns added; what concerns stalls is kept by prebuffer.

    ``failed`` are turns offered that neither finished with audio nor were cut by us.
    ``window_audio_s`` is the audio that arrived inside the measuring window, whichever turn it
    belonged to: the base of frames/s. ``window_s`` is that window's length; merging processes
    keeps the longest (they ran side by side), :meth:`append` adds (they ran one after another).
    """

    slo: Slo
    frame_s: float
    window_s: float = 0.0
    window_audio_s: float = 0.0
    turns: int = 0
    cold_turns: int = 0
    good: int = 0
    failed: int = 0
    early: int = 0
    audio_s: float = 0.0
    stale_audio_s: float = 0.0
    endings: Counter[str] = field(default_factory=Counter[str])
    cold_endings: Counter[str] = field(default_factory=Counter[str])
    faults: Counter[str] = field(default_factory=Counter[str])
    errors: Counter[str] = field(default_factory=Counter[str])
    stalled: Counter[str] = field(default_factory=Counter[str])
    stalls: Counter[str] = field(default_factory=Counter[str])
    total_stall_s: dict[str, float] = field(default_factory=dict[str, float])
    worst_stall_s: dict[str, float] = field(default_factory=dict[str, float])
    min_lead_s: dict[str, float] = field(default_factory=dict[str, float])
    stages: dict[str, Histogram] = field(default_factory=dict[str, Histogram])
    histograms: dict[str, Histogram] = field(default_factory=_histograms)

    def add(self, figures: Figures, stages: Mapping[str, float], detail: str = "") -> None:
        """Count one turn. Cold turns fill only their own histograms."""
        if figures.kind is Kind.COLD:
            self.cold_turns += 1
            self.cold_endings[figures.ending.value] += 1
            if not figures.complete:
                self._count_error(f"cold turn: {detail or figures.ending.value}")
            self._record("cold_ttfa", figures.ttfa_s)
            self._record("cold_audible", figures.audible_s)
            self._record("connect", figures.connect_s)
            self._record("prepare", figures.prepare_s)
            return
        self.turns += 1
        self.good += self.slo.good(figures)
        self.early += figures.early
        self.audio_s += figures.audio_s
        self.stale_audio_s += figures.stale_audio_s
        self.endings[figures.ending.value] += 1
        self.faults.update(fault.value for fault in figures.faults)
        if not figures.complete:
            self.failed += 1
            silent = figures.ending is Ending.FINISHED
            self._count_error("no audio" if silent else detail or figures.ending.value)
        self._count_playouts(figures)
        self._record("ttfa", figures.ttfa_s)
        self._record("ttfa_sent", figures.ttfa_sent_s)
        self._record("ttfa_text", figures.ttfa_text_s)
        self._record("ttfb", figures.ttfb_s)
        self._record("audible", figures.audible_s)
        self._record("playable", figures.playable_s)
        self._record("send_lag", figures.send_lag_s)
        self._record("connect", figures.connect_s)
        self._record("prepare", figures.prepare_s)
        self._record("jitter", figures.jitter_s)
        self._record("cut_tail", figures.cut_tail_s)
        self._record("rtf", figures.rtf)
        self._record("length_ratio", figures.length_ratio)
        self._record("worst_gap", max(figures.gaps_s, default=None))
        for name, values in (
            ("gap", figures.gaps_s),
            ("text_pause", figures.pauses_s),
            ("resume", figures.resumes_s),
        ):
            for value in values:
                self._record(name, value)
        for name, seconds in stages.items():
            if name in self.stages or len(self.stages) < _MAX_STAGES:
                self.stages.setdefault(name, Histogram()).record(seconds)

    def merge(self, other: Totals) -> None:
        """Take in what another process measured during the same window."""
        window_s = max(self.window_s, other.window_s)
        self._take(other)
        self.window_s = window_s

    def append(self, other: Totals) -> None:
        """Take in a repetition: another window, measured before or after this one."""
        window_s = self.window_s + other.window_s
        self._take(other)
        self.window_s = window_s

    @property
    def refused(self) -> int:
        return self.endings[Ending.REFUSED.value]

    @property
    def frames_per_s(self) -> float | None:
        """Audio frames received a second in the window, all streams together."""
        return self.window_audio_s / self.frame_s / self.window_s if self.window_s else None

    @property
    def audio_s_per_s(self) -> float | None:
        """Seconds of audio received a second: how many listeners could be served in real time."""
        return self.window_audio_s / self.window_s if self.window_s else None

    @property
    def goodput(self) -> float | None:
        """Share of the turns offered that came in time and without a stall."""
        return self.good / self.turns if self.turns else None

    @property
    def good_turns_per_s(self) -> float | None:
        return self.good / self.window_s if self.window_s else None

    def verdict(self) -> Verdict:
        """Whether these totals keep the SLO they were collected for."""
        return judge(
            self.slo,
            self.histograms["ttfa"].percentile(self.slo.percentile),
            self.turns,
            self.stalled[prebuffer_name(self.slo.prebuffer_s)],
            self.failed,
        )

    def percentiles(self, name: str) -> dict[str, float | None]:
        """p50 to max of one histogram, by name ("p50", ..., "max")."""
        values = self.histograms[name].percentiles(PERCENTILES)
        return {percentile_name(p): value for p, value in zip(PERCENTILES, values, strict=True)}

    def _take(self, other: Totals) -> None:
        self.window_audio_s += other.window_audio_s
        self.turns += other.turns
        self.cold_turns += other.cold_turns
        self.good += other.good
        self.failed += other.failed
        self.early += other.early
        self.audio_s += other.audio_s
        self.stale_audio_s += other.stale_audio_s
        for mine, theirs in (
            (self.endings, other.endings),
            (self.cold_endings, other.cold_endings),
            (self.faults, other.faults),
            (self.errors, other.errors),
            (self.stalled, other.stalled),
            (self.stalls, other.stalls),
        ):
            mine.update(theirs)
        for key, seconds in other.total_stall_s.items():
            self.total_stall_s[key] = self.total_stall_s.get(key, 0.0) + seconds
        for key, seconds in other.worst_stall_s.items():
            self.worst_stall_s[key] = max(self.worst_stall_s.get(key, 0.0), seconds)
        for key, seconds in other.min_lead_s.items():
            self.min_lead_s[key] = min(self.min_lead_s.get(key, seconds), seconds)
        for name, histogram in other.histograms.items():
            self.histograms[name].add(histogram)
        for name, histogram in other.stages.items():
            self.stages.setdefault(name, Histogram()).add(histogram)

    def _record(self, name: str, value: float | None) -> None:
        if value is not None:
            self.histograms[name].record(value)

    def _count_error(self, detail: str) -> None:
        known = detail in self.errors or len(self.errors) < _MAX_ERRORS
        self.errors[detail if known else "other"] += 1

    def _count_playouts(self, figures: Figures) -> None:
        for playout in figures.playouts:
            key = prebuffer_name(playout.prebuffer_s)
            self.stalled[key] += playout.stalls > 0
            self.stalls[key] += playout.stalls
            self.total_stall_s[key] = self.total_stall_s.get(key, 0.0) + playout.total_stall_s
            self.worst_stall_s[key] = max(self.worst_stall_s.get(key, 0.0), playout.worst_stall_s)
            if playout.min_lead_s is not None:
                least_s = self.min_lead_s.get(key, playout.min_lead_s)
                self.min_lead_s[key] = min(least_s, playout.min_lead_s)


_MAX_ERRORS = 50
_MAX_STAGES = 40


def prebuffer_name(prebuffer_s: float) -> str:
    """0.1 -> "100ms": the key under which stalls with this prebuffer are counted."""
    return f"{prebuffer_s * 1e3:g}ms"

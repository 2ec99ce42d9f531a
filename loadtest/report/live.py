"""The view while a run goes on: redrawn in a terminal, a line now and then elsewhere."""

from __future__ import annotations

import shutil
import sys
import time
from collections import deque
from typing import TextIO

from shoal.loadtest.drive.collector import Progress, Window
from shoal.loadtest.drive.fleet import Watcher
from shoal.loadtest.drive.load import WorkerPlan
from shoal.loadtest.measure.histogram import Histogram

from .result import run_name

_REDRAW_S = 0.25
_LINE_EVERY_S = 5.0
_RECENT_S = 5.0


class LiveView(Watcher):
    """Counts since the beginning of the run, warm-up included; the result counts the window."""

    def __init__(self, plan: WorkerPlan, label: str, stream: TextIO | None = None) -> None:
        self._plan = plan
        self._label = label
        self._out = stream or sys.stderr
        self._tty = self._out.isatty()
        self._window: Window | None = None
        self._ttfa = Histogram()
        self._open: dict[int, int] = {}
        self._turns = self._failed = self._refused = self._stalled = 0
        self._worst_lag_s = 0.0
        self._recent: deque[tuple[float, float]] = deque()
        self._drawn_s = 0.0
        self._lines = 0

    def began(self, window: Window) -> None:
        self._window = window
        self._drawn_s = time.monotonic() if not self._tty else 0.0

    def progress(self, news: Progress) -> None:
        self._open[news.worker] = news.open_turns
        self._turns += news.turns
        self._failed += news.failed
        self._refused += news.refused
        self._stalled += news.stalled
        self._worst_lag_s = max(self._worst_lag_s, news.worst_lag_s)
        self._recent.append((time.monotonic(), news.audio_s))
        for ttfa_s in news.ttfa_s:
            self._ttfa.record(ttfa_s)

    def tick(self) -> None:
        now_s = time.monotonic()
        if now_s - self._drawn_s < (_REDRAW_S if self._tty else _LINE_EVERY_S):
            return
        self._drawn_s = now_s
        if self._tty:
            self._redraw(self.lines(now_s, shutil.get_terminal_size().columns))
        else:
            self._out.write(self.one_line(now_s) + "\n")
        self._out.flush()

    def close(self) -> None:
        """The last state stays on the screen."""
        if self._tty:
            self._redraw(self.lines(time.monotonic(), shutil.get_terminal_size().columns))
            self._out.flush()

    def one_line(self, now_s: float) -> str:
        """For a log."""
        phase, share = self._phase(now_s)
        return (
            f"{self._name()} {phase} {share:4.0%}  turns {self._turns} open {self._now_open()}"
            f"  TTFA p50 {self._ms(50)} p95 {self._ms(95)}  stalled {self._stalled}"
            f"  failed {self._failed}  audio {self._audio_rate(now_s):.1f} s/s"
        )

    def lines(self, now_s: float, width: int) -> list[str]:
        """For a terminal ``width`` columns wide."""
        phase, share = self._phase(now_s)
        bar_width = max(10, min(40, width - 50))
        filled = round(share * bar_width)
        audio_rate = self._audio_rate(now_s)
        lines = [
            f"{self._name()}  [{'█' * filled}{'·' * (bar_width - filled)}] {phase} {share:4.0%}",
            f"  turns {self._turns:>7}   open {self._now_open():>5}   failed {self._failed:>5}"
            f"   refused {self._refused:>5}   stalled {self._stalled:>5}",
            f"  TTFA ms  p50 {self._ms(50):>7}  p95 {self._ms(95):>7}  p99 {self._ms(99):>7}"
            f"  max {self._ms(100):>7}",
            f"  audio {audio_rate:>7.1f} s/s   frames {audio_rate / self._plan.frame_s:>8.0f}/s"
            f"   own loop {self._worst_lag_s * 1e3:.0f} ms late at worst",
        ]
        return [line[: width - 1] for line in lines]

    def _name(self) -> str:
        return f"{run_name(self._plan.load.mode.value, self._plan.load.level)}{self._label}"

    def _phase(self, now_s: float) -> tuple[str, float]:
        window = self._window
        if window is None:
            return "starting", 0.0
        for phase, start_s, end_s in (
            ("warm-up", window.start_s, window.from_s),
            ("measuring", window.from_s, window.to_s),
            ("cool-down", window.to_s, window.stop_s),
        ):
            if now_s < end_s:
                return phase, max(0.0, (now_s - start_s) / max(1e-9, end_s - start_s))
        return "last turns", 1.0

    def _now_open(self) -> int:
        return sum(self._open.values())

    def _ms(self, percent: float) -> str:
        seconds = self._ttfa.percentile(percent)
        return "-" if seconds is None else f"{seconds * 1e3:.1f}"

    def _audio_rate(self, now_s: float) -> float:
        while self._recent and self._recent[0][0] < now_s - _RECENT_S:
            self._recent.popleft()
        return sum(seconds for _, seconds in self._recent) / _RECENT_S

    def _redraw(self, lines: list[str]) -> None:
        if self._lines:
            self._out.write(f"\x1b[{self._lines}F")
        for line in lines:
            self._out.write(f"\x1b[2K{line}\n")
        self._lines = len(lines)

"""Reads a server's /metrics at the window's edges, on a thread of its own so that nothing waits."""

from __future__ import annotations

import threading
import time
import urllib.request

from shoal.loadtest.measure.prometheus import Stage, growth, parse, stages

from .collector import Window

_TIMEOUT_S = 2.0
_MAX_BYTES = 4 * 2**20


class Scrape:
    """``stages`` and ``growth`` are filled once both readings succeeded; else ``problem`` is."""

    def __init__(self, url: str, window: Window) -> None:
        self._url = url
        self._window = window
        self._ended = threading.Event()
        self.stages: list[Stage] = []
        self.growth: dict[str, float] = {}
        self.problem = ""
        self._thread = threading.Thread(target=self._run, name="scrape", daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Wait for the second reading; when the run was cut short, take it now."""
        self._ended.set()
        self._thread.join(2 * _TIMEOUT_S + 1.0)

    def _run(self) -> None:
        try:
            self._ended.wait(max(0.0, self._window.from_s - time.monotonic()))
            before = parse(self._read())
            self._ended.wait(max(0.0, self._window.to_s - time.monotonic()))
            after = parse(self._read())
        except (OSError, ValueError) as failure:
            self.problem = f"{type(failure).__name__} reading {self._url}"
            return
        self.stages = stages(before, after)
        self.growth = growth(before, after)

    def _read(self) -> str:
        with urllib.request.urlopen(self._url, timeout=_TIMEOUT_S) as answer:
            return answer.read(_MAX_BYTES).decode("utf-8", "replace")

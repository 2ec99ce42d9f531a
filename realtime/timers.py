"""``Timers``: what a connection will do later unless something comes first. On the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Timers:
    """Each by a name; starting one again puts it off."""

    def __init__(self) -> None:
        self._handles: dict[str, asyncio.TimerHandle] = {}

    def start(self, name: str, seconds: float, step: Callable[[], None]) -> None:
        self.stop(name)
        self._handles[name] = asyncio.get_running_loop().call_later(seconds, step)

    def stop(self, name: str) -> None:
        handle = self._handles.pop(name, None)
        if handle is not None:
            handle.cancel()

    def stop_all(self) -> None:
        for name in list(self._handles):
            self.stop(name)

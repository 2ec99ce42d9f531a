"""What replicas say of their turns to whoever has to give way for them, many times a second.

Serve hears of a replica once a second and thinks in means; a batch worker has to be gone sooner.
``Board`` is an actor that exists while backfill runs; ``Reporting`` wraps a replica's app and tells
it. A cluster without backfill has no board, and nobody is told. The actor has a process of its own,
the rest is on the replica's loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final, cast

import ray
from ray.exceptions import RayError
from starlette.types import ASGIApp, Receive, Scope, Send

from .cluster import SERVE_NAMESPACE

NAME: Final = "shoal-board"
TELL_S: Final = 0.1
"""As often as this, when it changed."""
REPEAT_S: Final = 1.0
LOOK_S: Final = 1.0
"""How often a replica looks whether there is a board."""
FORGET_S: Final = 3.0


class BoardState:
    """Live turns and capacity by replica, as long as they are news. Pure but for its clock."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._said: dict[str, tuple[float, float, float]] = {}

    def note(self, replica: str, live_turns: float, capacity: float) -> None:
        """A replica says so."""
        self._said[replica] = (self._clock(), live_turns, capacity)

    def seen(self) -> dict[str, tuple[float, float]]:
        """(live turns, capacity) by replica; who was silent for long is gone."""
        oldest_s = self._clock() - FORGET_S
        self._said = {name: said for name, said in self._said.items() if said[0] > oldest_s}
        return {name: (live, capacity) for name, (_, live, capacity) in self._said.items()}


def put_up() -> Any:
    """A board, which is gone when this driver is.

    :raises ValueError: there is one.
    """
    board = cast("Any", ray).remote(BoardState)
    return board.options(name=NAME, namespace=SERVE_NAMESPACE, num_cpus=0).remote()


class Reporting:
    """``app``, and beside it a task that tells the board. ``live_turns`` is asked on the loop."""

    def __init__(
        self, app: ASGIApp, name: str, live_turns: Callable[[], float], capacity: float
    ) -> None:
        self._app = app
        self._name = name
        self._live_turns = live_turns
        self._capacity = capacity

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan":
            await self._app(scope, receive, send)
            return
        telling = asyncio.create_task(self._tell())
        try:
            await self._app(scope, receive, send)
        finally:
            telling.cancel()

    async def _tell(self) -> None:
        board: Any = None
        looked_s = told_s = -LOOK_S
        said = -1.0
        while True:
            now_s = time.monotonic()
            if now_s - looked_s >= LOOK_S:
                board, looked_s = await asyncio.to_thread(_find), now_s
            live = self._live_turns()
            if board is not None and (live != said or now_s - told_s >= REPEAT_S):
                try:
                    board.note.remote(self._name, live, self._capacity)
                    said, told_s = live, now_s
                except RayError:  # it went with its driver
                    board = None
            await asyncio.sleep(TELL_S)


def _find() -> Any:
    try:
        return cast("Any", ray).get_actor(NAME, namespace=SERVE_NAMESPACE)
    except (ValueError, RayError):
        return None

"""``/metrics/targets``: where every replica of a cluster is, as Prometheus' HTTP discovery asks.

What comes in through HAProxy gets the figures of one replica, another one each time. So one of them
says where all of them listen, which Serve's controller knows. On a replica's loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, cast

import ray
from ray.exceptions import RayError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from shoal.realtime.answers import error_response
from shoal.realtime.gateway import Refusal

from .cluster import SERVE_NAMESPACE

PATH: Final = "/metrics/targets"
CONTROLLER: Final = "SERVE_CONTROLLER_ACTOR"
ASK_S: Final = 2.0
FRESH_S: Final = 2.0
"""The controller has its own work: however many ask, it is asked this often."""

Ask = Callable[[], Awaitable[Sequence[str]]]
"""The replicas that take turns, as ``host:port``. Raises RayError, ValueError or TimeoutError."""


class Targets:
    def __init__(self, ask: Ask, clock: Callable[[], float] = time.monotonic) -> None:
        self._ask = ask
        self._clock = clock
        self._asked_s = float("-inf")
        self._answer: asyncio.Future[Sequence[str]] | None = None

    @property
    def route(self) -> Route:
        return Route(PATH, self._serve)

    async def _serve(self, _: Request) -> Response:
        try:
            targets = await self._fresh()
        except (RayError, ValueError, TimeoutError):  # Prometheus keeps what it knew
            return error_response(Refusal(503, "The replicas are not known now"))
        return JSONResponse([{"targets": sorted(targets)}])

    async def _fresh(self) -> Sequence[str]:
        if self._answer is None or self._clock() - self._asked_s >= FRESH_S:
            self._asked_s = self._clock()
            self._answer = asyncio.ensure_future(self._ask())
        return await asyncio.shield(self._answer)


async def asked_of_serve() -> Sequence[str]:
    """See ``Ask``. As Ray's own HAProxy asks; there is no public function for it."""
    async with asyncio.timeout(ASK_S):
        controller = await asyncio.to_thread(
            cast("Any", ray).get_actor, CONTROLLER, namespace=SERVE_NAMESPACE
        )
        groups = await controller.get_target_groups.remote(None, True)
    return [
        f"{target.ip}:{target.port}"
        for group in groups
        if str(getattr(group.protocol, "value", group.protocol)) == "HTTP"
        for target in group.targets
    ]

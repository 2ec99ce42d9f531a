"""``Door``: the ASGI app between a load balancer and the gateway. Runs on the event loop.

It says no before the gateway has to: a replica with no room for another turn answers 503 at once,
and the balancer asks the next one. It holds the replica back until a first turn would be fast, and
begins the gateway's drain when the balancer is told to send nobody any more. Knows no Ray: how the
replica learns that it is to leave is a function it is given.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shoal.realtime.answers import error_response
from shoal.realtime.gateway import Gateway, Refusal

PENDING_S: Final = 2.0
"""A socket that has sent nothing for this long after its upgrade no longer counts as a turn that is
about to start: it is a pooled one."""
LEAVING_POLL_S: Final = 0.25
SPEAKING_PATHS: Final = (
    "/v1/tts",
    "/v1/audio/speech",
    "/compat/v1/audio/speech",
    "/v1/text-to-speech/",
    "/v1/speak",
    "/tts/",
)
RETRY_AFTER_S: Final = 1
NAME_HEADER: Final = b"x-shoal-replica"

Leaving = Callable[[str, int], Awaitable[bool]]
"""Asked with the address that a client came to: whether this replica has been told to go."""


class Door:
    """``capacity`` is the turns that may speak at once; ``name`` tells clients who answered;
    for ``leave_s`` after it was told to leave it takes who still comes."""

    def __init__(
        self,
        app: ASGIApp,
        gateway: Gateway,
        capacity: int,
        leaving: Leaving,
        name: str = "",
        leave_s: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
        poll_s: float = LEAVING_POLL_S,
    ) -> None:
        self._app = app
        self._gateway = gateway
        self._capacity = capacity
        self._leaving = leaving
        self._name = name.encode("latin-1", "replace")
        self._leave_s = leave_s
        self._clock = clock
        self._poll_s = poll_s
        self._pending: dict[int, float] = {}
        self._watch: asyncio.Task[None] | None = None
        self.refused = 0

    @property
    def live_turns(self) -> int:
        """Turns that speak or are about to."""
        oldest_s = self._clock() - PENDING_S
        for key in [key for key, since_s in self._pending.items() if since_s < oldest_s]:
            del self._pending[key]
        return self._gateway.hub.streams + len(self._pending)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        match scope["type"]:
            case "lifespan":
                await self._app(scope, receive, self._when_ready(send))
                if self._watch is not None:
                    self._watch.cancel()
            case "websocket":
                await self._socket(scope, receive, send)
            case _:
                await self._request(scope, receive, send)

    async def _socket(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._look_out(scope)
        if (refusal := self._full()) is not None:
            assert (await receive())["type"] == "websocket.connect"
            await error_response(refusal)(scope, receive, send)
            return
        key = id(scope)
        self._pending[key] = self._clock()

        async def first_heard() -> Message:
            message = await receive()
            if message["type"] != "websocket.connect":
                self._pending.pop(key, None)
            return message

        async def named(message: Message) -> None:
            if message["type"] == "websocket.accept":
                message["headers"] = [*message.get("headers", ()), (NAME_HEADER, self._name)]
            await send(message)

        try:
            await self._app(scope, first_heard, named)
        finally:
            self._pending.pop(key, None)

    async def _request(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._look_out(scope)
        speaks = scope["method"] == "POST" and scope["path"].startswith(SPEAKING_PATHS)
        if speaks and (refusal := self._full()) is not None:
            await error_response(refusal)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _full(self) -> Refusal | None:
        if self.live_turns < self._capacity:
            return None
        self.refused += 1
        self._gateway.metrics.refusals.labels("capacity").inc()
        return Refusal(503, "Concurrency limit exceeded", RETRY_AFTER_S)

    def _when_ready(self, send: Send) -> Send:
        async def held(message: Message) -> None:
            if message["type"] == "lifespan.startup.complete":
                ready = asyncio.Event()
                self._gateway.on_ready = self._gateway.request_exit = ready.set
                if not (self._gateway.ready or self._gateway.failed):
                    await ready.wait()
                if self._gateway.failed:
                    message = {"type": "lifespan.startup.failed", "message": "the engine failed"}
            await send(message)

        return held

    def _look_out(self, scope: Scope) -> None:
        if self._watch is None:
            host, port = scope["server"]
            self._watch = asyncio.create_task(self._drain_when_leaving(host, port))

    async def _drain_when_leaving(self, host: str, port: int) -> None:
        while True:
            with suppress(OSError):
                if await self._leaving(host, port):
                    break
            await asyncio.sleep(self._poll_s)
        await asyncio.sleep(self._leave_s)
        await self._gateway.drain()

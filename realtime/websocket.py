"""One WebSocket as the gateway needs it: frames in, frames out, and how much is on its way.

``LiveProtocol`` is uvicorn's WebSocket protocol (the ``websockets`` library without its I/O) with
what a server of live audio adds: a peer that hangs up without a close frame is noticed at once
even while our bytes wait for it, and nothing lingers for a peer that does not read. Runs on the
event loop's thread.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from starlette.websockets import WebSocket, WebSocketDisconnect
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from .link import Disconnected, Payload
from .wire import STATE_KEY, Wire

LINGER_S: Final = 5.0
MAX_REASON_BYTES: Final = 120  # a close frame holds 125, two of them the code


class LiveProtocol(WebSocketsSansIOProtocol):
    """Give this class to uvicorn as its ``ws``."""

    _linger: asyncio.TimerHandle | None = None

    async def run_asgi(self) -> None:
        self.scope.setdefault("state", {})[STATE_KEY] = self.transport
        try:
            await super().run_asgi()
        finally:
            if not self.disconnected:
                self._linger = self.loop.call_later(LINGER_S, self._abort)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._linger is not None:  # it would keep all that a socket had
            self._linger.cancel()

    async def send(self, message: Any) -> None:
        await super().send(message)
        if message["type"] == "websocket.http.response.body" and not message.get("more_body"):
            # A handshake that was refused is over too; uvicorn logs an error for each.
            self.handshake_complete = True

    def eof_received(self) -> None:
        # The peer will send no more. uvicorn would close only after all bytes are flushed, which
        # a peer that is gone never lets happen.
        if not self.transport.is_closing():
            self.queue.put_nowait({"type": "websocket.disconnect", "code": 1006})
            self.transport.abort()

    def keepalive_timeout(self) -> None:
        super().keepalive_timeout()
        self._abort()

    def _abort(self) -> None:
        self.transport.abort()


class Socket:
    """An accepted WebSocket: a ``Link``."""

    def __init__(self, websocket: WebSocket) -> None:
        self._websocket = websocket
        self._wire = Wire(websocket.scope)

    async def receive(self) -> bytes | str:
        """The next frame.

        :raises Disconnected: there will be none.
        """
        message = await self._websocket.receive()
        if message["type"] == "websocket.disconnect":
            raise Disconnected
        data = message.get("bytes")
        return data if data is not None else message["text"]

    async def send(self, payload: Payload) -> None:
        """Bytes as a binary frame, a string as a text frame.

        :raises Disconnected: the peer is gone.
        """
        assert isinstance(payload, (bytes, str)), "a WebSocket's dialect encodes"
        name = "text" if isinstance(payload, str) else "bytes"
        try:
            await self._websocket.send({"type": "websocket.send", name: payload})
        except (WebSocketDisconnect, RuntimeError) as error:  # starlette: after a disconnect
            raise Disconnected from error

    async def close(self, code: int, reason: str) -> None:
        """:raises Disconnected: the peer is gone."""
        short = reason.encode("utf-8", "replace")[:MAX_REASON_BYTES].decode("utf-8", "ignore")
        try:
            await self._websocket.close(code, short)
        except (WebSocketDisconnect, RuntimeError) as error:
            raise Disconnected from error

    def abort(self) -> None:
        """Hang up now; what waits is lost."""
        self._wire.abort()

    @property
    def backlogged(self) -> bool:
        """Bytes wait in this process because the kernel takes no more."""
        return self._wire.backlogged

    def unacknowledged_bytes(self) -> int:
        """Bytes given to ``send`` that the peer's machine has not acknowledged."""
        return self._wire.unacknowledged_bytes()

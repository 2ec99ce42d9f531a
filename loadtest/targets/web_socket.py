"""A client WebSocket whose every failure is a :class:`TurnOver` with a countable reason."""

from __future__ import annotations

import ssl
from collections.abc import Mapping

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus
from websockets.protocol import State

from shoal.loadtest.measure.timeline import Ending

from .target import TurnOver

_OVERLOAD_STATUS = (429, 503)
_OVERLOAD_CLOSE = 1013
_CLOSE_TIMEOUT_S = 1.0
_MAX_MESSAGE_BYTES = 16 * 2**20


class WebSocket:
    """Text out as str, binary out as bytes; the same coming in."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket

    @classmethod
    async def open(cls, url: str, headers: Mapping[str, str], timeout_s: float) -> WebSocket:
        """Connect without compression: audio does not compress, and it costs latency."""
        try:
            socket = await connect(
                url,
                additional_headers=dict(headers),
                compression=None,
                open_timeout=timeout_s,
                close_timeout=_CLOSE_TIMEOUT_S,
                ping_interval=20,
                ping_timeout=60,
                max_size=_MAX_MESSAGE_BYTES,
                max_queue=64,
                proxy=None,
            )
        except InvalidStatus as refusal:
            status = refusal.response.status_code
            ending = Ending.REFUSED if status in _OVERLOAD_STATUS else Ending.FAILED
            raise TurnOver(ending, f"HTTP {status} at the handshake") from refusal
        except TimeoutError as slow:
            raise TurnOver(Ending.TIMEOUT, "connect timed out") from slow
        except (OSError, InvalidHandshake, ssl.SSLError) as failure:
            raise TurnOver(Ending.FAILED, f"connect: {type(failure).__name__}") from failure
        return cls(socket)

    @property
    def usable(self) -> bool:
        return self._socket.state is State.OPEN

    async def send(self, message: str | bytes) -> None:
        try:
            await self._socket.send(message)
        except ConnectionClosed as closed:
            raise _over(closed) from closed

    async def receive(self) -> str | bytes:
        try:
            return await self._socket.recv()
        except ConnectionClosed as closed:
            raise _over(closed) from closed

    async def close(self) -> None:
        await self._socket.close()


def as_websocket(url: str) -> str:
    """ws(s):// for http(s)://; what is a WebSocket address already stays."""
    return url.replace("http", "ws", 1) if url.startswith("http") else url


def _over(closed: ConnectionClosed) -> TurnOver:
    code = closed.rcvd.code if closed.rcvd else None
    if code == _OVERLOAD_CLOSE:
        return TurnOver(Ending.REFUSED, f"closed with {code}")
    return TurnOver(Ending.BROKEN, f"closed with {code}" if code else "connection lost")

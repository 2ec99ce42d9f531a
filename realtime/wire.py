"""``Wire``: the TCP connection under an ASGI connection, for what ASGI does not tell or allow.

How much of what was sent is still on its way, and hanging up at once. The protocols that the
server gives uvicorn put the transport into the scope's state; under another server there is
none, and a ``Wire`` then knows of nothing that waits. Runs on the event loop's thread.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import socket
import struct
import sys
import termios
from collections.abc import MutableMapping
from typing import Any, Final, cast

from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

STATE_KEY: Final = "transport"


class HttpProtocol(H11Protocol):
    """Give this class to uvicorn as its ``http``."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        super().connection_made(transport)
        app = cast(ASGIApp, self.app)

        async def with_transport(scope: Scope, receive: Receive, send: Send) -> None:
            scope["state"][STATE_KEY] = transport
            await app(scope, receive, send)

        self.app = cast(Any, with_transport)


class Wire:
    """See the module."""

    def __init__(self, scope: MutableMapping[str, Any]) -> None:
        state = cast("dict[str, object]", scope.get("state", {}))
        self._transport = cast("asyncio.Transport | None", state.get(STATE_KEY))
        raw = self._transport.get_extra_info("socket") if self._transport else None
        self._fileno: int | None = raw.fileno() if raw is not None else None
        if not sys.platform.startswith("linux"):
            self._fileno = None

    def abort(self, reset: bool = False) -> bool:
        """Hang up now; what waits is lost. False: there is no transport to do it with.

        ``reset``: as an error, not as an end of what was sent.
        """
        if self._transport is None:
            return False
        if reset and self._fileno is not None and not self._transport.is_closing():
            with socket.socket(fileno=os.dup(self._fileno)) as same:
                same.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._transport.abort()
        return True

    @property
    def backlogged(self) -> bool:
        """Bytes wait in this process because the kernel takes no more."""
        return self._transport is not None and self._transport.get_write_buffer_size() > 0

    def unacknowledged_bytes(self) -> int:
        """Bytes sent that the peer's machine has not acknowledged."""
        if self._transport is None or self._transport.is_closing():
            return 0
        waiting = self._transport.get_write_buffer_size()
        if self._fileno is None:
            return waiting
        try:
            answer = fcntl.ioctl(self._fileno, termios.TIOCOUTQ, bytes(4))
        except OSError:  # closed meanwhile
            return waiting
        return waiting + struct.unpack("i", answer)[0]

"""``Guard``: who may call ``shoal mcp --http`` when it listens beyond this machine.

A web page can make its visitor's browser talk to any address, and with a name of its own that
resolves to that address even read the answers. So a name that is not this machine's is refused,
and so is a page of another origin. Where the shoal server has a key, a caller must know it, too.
Runs on the event loop.
"""

from __future__ import annotations

import hmac
import ipaddress
import socket
from collections.abc import MutableMapping
from typing import Any, Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")
"""Addresses to listen at that no other machine reaches; there the ``mcp`` package guards."""


class Guard:
    """An ASGI app around another."""

    def __init__(self, app: ASGIApp, host: str, key: str | None) -> None:
        """``host``: what it listens at, perhaps a name. ``key``: what callers must bear."""
        self._app = app
        self._key = key
        own = socket.gethostname().lower()
        self._names = frozenset({host.lower(), own, f"{own}.local", "localhost"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._refusal(scope) if scope["type"] == "http" else None
        if refusal is None:
            await self._app(scope, receive, send)
        else:
            status, reason = refusal
            await PlainTextResponse(reason, status)(scope, receive, send)

    def _refusal(self, scope: MutableMapping[str, Any]) -> tuple[int, str] | None:
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if not self._known(_name_of(f"//{host}")):
            return 421, "this name is not this server's: use its address"
        origin = headers.get("origin")
        if origin is not None and urlsplit(origin).netloc.lower() != host.lower():
            return 403, "a web page of another origin may not call this"
        if self._key is not None:
            scheme, _, given = headers.get("authorization", "").partition(" ")
            same = hmac.compare_digest(given.strip().encode(), self._key.encode())
            if scheme.lower() != "bearer" or not same:
                return 401, "give the shoal server's key as Authorization: Bearer"
        return None

    def _known(self, name: str) -> bool:
        if name in self._names:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True  # no name that somebody else could make resolve to it


def _name_of(url: str) -> str:
    try:
        return (urlsplit(url).hostname or "").lower()
    except ValueError:
        return ""

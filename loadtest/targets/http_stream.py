"""One kept-alive HTTP/1.1 connection whose response body is read as it comes.

Written on h11 rather than a client library so that connect time, refusals and a body that
breaks off are each seen for what they are.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Mapping
from urllib.parse import urlsplit

import h11

from shoal.loadtest.measure.timeline import Ending

from .target import TurnOver

_READ_BYTES = 65536
_OVERLOAD_STATUS = (429, 503)
_MAX_ERROR_BODY = 65536


class HttpStream:
    """One request at a time; the connection is reusable while both sides keep it alive."""

    def __init__(
        self, host: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._host = host
        self._reader = reader
        self._writer = writer
        self._http = h11.Connection(h11.CLIENT)
        self._dirty = False

    @classmethod
    async def open(cls, url: str, timeout_s: float) -> HttpStream:
        """Connect to the host of ``url``, with TLS for https."""
        parts = urlsplit(url)
        secure = parts.scheme in ("https", "wss")
        port = parts.port or (443 if secure else 80)
        try:
            async with asyncio.timeout(timeout_s):
                reader, writer = await asyncio.open_connection(
                    parts.hostname, port, ssl=ssl.create_default_context() if secure else None
                )
        except TimeoutError as slow:
            raise TurnOver(Ending.TIMEOUT, "connect timed out") from slow
        except OSError as failure:
            raise TurnOver(Ending.FAILED, f"connect: {type(failure).__name__}") from failure
        return cls(parts.netloc, reader, writer)

    @property
    def usable(self) -> bool:
        return not self._dirty and not self._writer.is_closing() and not self._reader.at_eof()

    async def post(self, path: str, headers: Mapping[str, str], body: bytes) -> None:
        """Send a request; its answer comes from :meth:`head` and :meth:`body`."""
        all_headers = {"host": self._host, **headers, "content-length": str(len(body))}
        request = h11.Request(method="POST", target=path, headers=list(all_headers.items()))
        self._dirty = True
        try:
            self._writer.write(self._http.send(request) or b"")
            self._writer.write(self._http.send(h11.Data(data=body)) or b"")
            self._writer.write(self._http.send(h11.EndOfMessage()) or b"")
            await self._writer.drain()
        except (OSError, h11.LocalProtocolError) as failure:
            raise TurnOver(Ending.BROKEN, "connection lost") from failure

    async def head(self) -> dict[str, str]:
        """Headers of a 200, names in lower case; any other status ends the turn."""
        while True:
            event = await self._next()
            if isinstance(event, h11.Response):
                break
        if event.status_code != 200:
            await self._discard()
            over = event.status_code in _OVERLOAD_STATUS
            raise TurnOver(Ending.REFUSED if over else Ending.FAILED, f"HTTP {event.status_code}")
        return {name.decode("latin-1").lower(): v.decode("latin-1") for name, v in event.headers}

    async def body(self) -> bytes | None:
        """The next piece of the body as it arrived; ``None`` after the last."""
        while True:
            event = await self._next()
            if isinstance(event, h11.Data):
                if event.data:
                    return bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                if self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
                    self._http.start_next_cycle()
                    self._dirty = False
                return None

    async def close(self) -> None:
        self._writer.close()
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(1.0):
                await self._writer.wait_closed()

    async def _discard(self) -> None:
        """Read a short error body, so that the connection stays usable."""
        size = 0
        with contextlib.suppress(TurnOver):
            while size < _MAX_ERROR_BODY and (piece := await self.body()) is not None:
                size += len(piece)

    async def _next(self) -> h11.Event:
        try:
            while True:
                event = self._http.next_event()
                if isinstance(event, h11.Event) and not isinstance(event, h11.ConnectionClosed):
                    return event
                if event is not h11.NEED_DATA:
                    raise TurnOver(Ending.BROKEN, "connection lost")
                self._http.receive_data(await self._reader.read(_READ_BYTES))
        except (OSError, h11.RemoteProtocolError) as failure:
            raise TurnOver(Ending.BROKEN, "the response broke off") from failure

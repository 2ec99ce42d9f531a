"""The stand-in on its ports: WebSockets on one, HTTP on another. One event loop, any process."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from http import HTTPStatus

from websockets.asyncio.server import ServerConnection, serve
from websockets.http11 import Request, Response

from .fish_wire import FishWire
from .http_wire import HttpWire
from .json_wires import DeepgramWire, ElevenLabsWire
from .lie import Lie
from .truth import Ledger, Truth, now_s


@dataclass(frozen=True, slots=True)
class StandIn:
    """A running stand-in. The path of a WebSocket chooses the dialect."""

    ws_url: str
    http_url: str
    ledger: Ledger


@contextlib.asynccontextmanager
async def standing_in(
    lies: Sequence[Lie] = (),
    host: str = "127.0.0.1",
    port: int = 0,
    http_port: int = 0,
    room: int = 1_000_000,
) -> AsyncGenerator[StandIn]:
    """Serve until the block ends; port 0 takes a free one.

    Beyond ``room`` open WebSockets the next is refused with 429, whatever the lies say.
    """
    ledger = Ledger(lies)
    firsts: dict[int, Truth] = {}
    busy: set[int] = set()

    async def at_handshake(socket: ServerConnection, request: Request) -> Response | None:
        asked_s = now_s()
        if len(busy) >= room:
            return socket.respond(HTTPStatus.TOO_MANY_REQUESTS, "full\n")
        busy.add(id(socket))
        truth = ledger.begin()
        truth.asked_s = asked_s
        await asyncio.sleep(truth.lie.accept_delay_s)
        truth.accepted_s = now_s()
        if truth.lie.refuse_status:
            busy.discard(id(socket))
            return socket.respond(HTTPStatus(truth.lie.refuse_status), "refused\n")
        firsts[id(socket)] = truth
        return None

    async def handle(socket: ServerConnection) -> None:
        truth = firsts.pop(id(socket))
        path = socket.request.path if socket.request else ""
        try:
            await speak_with(socket, path, truth)
        finally:
            busy.discard(id(socket))

    async def speak_with(socket: ServerConnection, path: str, truth: Truth) -> None:
        if "/text-to-speech/" in path:
            await ElevenLabsWire(socket, ledger, truth).run()
        elif path.startswith("/v1/speak"):
            await DeepgramWire(socket, ledger, truth).run()
        else:
            await FishWire(socket, ledger, truth).run()

    async def handle_http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await HttpWire(reader, writer, ledger).run()

    async with serve(
        handle, host, port, process_request=at_handshake, compression=None, close_timeout=1.0
    ) as sockets:
        http = await asyncio.start_server(handle_http, host, http_port)
        async with http:
            ws_port = next(iter(sockets.sockets)).getsockname()[1]
            web_port = http.sockets[0].getsockname()[1]
            yield StandIn(f"ws://{host}:{ws_port}", f"http://{host}:{web_port}", ledger)

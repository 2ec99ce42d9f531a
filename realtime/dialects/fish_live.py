"""``/v1/tts/live`` and ``/v1/tts/live/with-timestamp``: Fish Audio's live endpoints.

The handshake is answered at once, or refused with an HTTP status before the upgrade. How a socket
writes is chosen there: MessagePack, or JSON with ``?protocol=json`` or the subprotocol
``fish.v1.json``. Runs on the event loop.
"""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.websockets import WebSocket

from shoal.proto.request import is_voice_id
from shoal.realtime.answers import error_response, gateway_of, header_text
from shoal.realtime.auth import subprotocols
from shoal.realtime.gateway import POOLING_AGENTS, Refusal
from shoal.realtime.websocket import Socket

from .fish_json import FishJson
from .fish_timestamps import FishTimestamps
from .fish_wire import FishWire

PATH: Final = "/v1/tts/live"
TIMESTAMP_PATH: Final = "/v1/tts/live/with-timestamp"
SUBPROTOCOL: Final = "fish.v1"
JSON_SUBPROTOCOL: Final = "fish.v1.json"


def routes() -> list[BaseRoute]:
    return [
        WebSocketRoute(PATH, _live),
        WebSocketRoute(TIMESTAMP_PATH, _with_timestamp),
        Route(PATH, _not_websocket),
        Route(TIMESTAMP_PATH, _not_websocket),
    ]


async def _live(websocket: WebSocket) -> None:
    timestamps = _asks(websocket, "timestamps")
    if _speaks_json(websocket):
        await _serve(websocket, FishJson(timestamps))
    else:
        await _serve(websocket, FishWire(_asks(websocket, "ready"), timestamps))


async def _with_timestamp(websocket: WebSocket) -> None:
    if _speaks_json(websocket):
        await _serve(websocket, FishJson(timestamps=True))
    else:
        await _serve(websocket, FishTimestamps(_asks(websocket, "ready")))


def _asks(websocket: WebSocket, name: str) -> bool:
    return websocket.query_params.get(name) in ("1", "true")


def _speaks_json(websocket: WebSocket) -> bool:
    asked = websocket.query_params.get("protocol") == "json"
    return asked or _subprotocol(websocket) == JSON_SUBPROTOCOL


async def _serve(websocket: WebSocket, wire: FishWire) -> None:
    gateway = gateway_of(websocket)
    headers, query = websocket.headers, websocket.query_params
    refusal = gateway.refusal(headers, query, takes_token=True)
    if refusal is not None:
        await websocket.send_denial_response(error_response(refusal))
        return
    pools = headers.get("user-agent", "").startswith(POOLING_AGENTS) or "pool" in query
    gateway.occupy()
    try:
        if (refusal := await gateway.claim(headers, query)) is not None:
            await websocket.send_denial_response(error_response(refusal))
            return
        await websocket.accept(
            _subprotocol(websocket),
            [(b"x-shoal-model", header_text(gateway.engine.info.model).encode("latin-1"))],
        )
        await gateway.serve(Socket(websocket), wire.dialect(), reference_id(websocket), pools)
    finally:
        gateway.vacate()


async def _not_websocket(_: Request) -> Response:
    return error_response(Refusal(426, "This endpoint speaks WebSocket"))


def _subprotocol(websocket: WebSocket) -> str | None:
    """The one to confirm: never the one that carries a key."""
    offered = subprotocols(websocket.headers)
    return next((name for name in (JSON_SUBPROTOCOL, SUBPROTOCOL) if name in offered), None)


def reference_id(websocket: WebSocket) -> str | None:
    """The voice that the handshake names, to be prefilled before the first start."""
    named = websocket.query_params.get("reference_id", "")
    return named if is_voice_id(named) else None

"""``/v1/tts/live``: Fish Audio's MessagePack frames over the session's messages.

The handshake is answered at once, or refused with an HTTP status before the upgrade. Runs on the
event loop.
"""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.websockets import WebSocket

from shoal.proto.codec import decode_client, encode_server
from shoal.proto.errors import Code, ProtocolError
from shoal.proto.messages import ClientMessage, ServerMessage
from shoal.proto.request import is_voice_id
from shoal.realtime.answers import error_response, gateway_of
from shoal.realtime.gateway import POOLING_AGENTS, Refusal
from shoal.realtime.link import Dialect, Frame, Payload
from shoal.realtime.websocket import Socket

NAME: Final = "fish_live"
PATH: Final = "/v1/tts/live"


def routes() -> list[BaseRoute]:
    return [WebSocketRoute(PATH, _live), Route(PATH, _not_websocket)]


async def _live(websocket: WebSocket) -> None:
    gateway = gateway_of(websocket)
    headers, query = websocket.headers, websocket.query_params
    refusal = gateway.refusal(headers, query)
    if refusal is not None:
        await websocket.send_denial_response(error_response(refusal))
        return
    pools = headers.get("user-agent", "").startswith(POOLING_AGENTS) or "pool" in query
    gateway.occupy()
    try:
        await websocket.accept(
            headers=[(b"x-shoal-model", gateway.engine.info.model.encode("latin-1", "replace"))]
        )
        dialect = Dialect(NAME, decode, encode)
        await gateway.serve(Socket(websocket), dialect, reference_id(websocket), pools)
    finally:
        gateway.vacate()


async def _not_websocket(_: Request) -> Response:
    return error_response(Refusal(426, "This endpoint speaks WebSocket"))


def decode(frame: Frame) -> ClientMessage:
    """:raises ProtocolError: a text frame, or bytes that are no message."""
    if not isinstance(frame, bytes):
        raise ProtocolError(Code.MALFORMED, "text frames are not used here: send MessagePack")
    return decode_client(frame)


def encode(message: ServerMessage, time_ms: int | None) -> list[Payload]:
    return [encode_server(message, time_ms)]


def reference_id(websocket: WebSocket) -> str | None:
    """The voice that the handshake names, to be prefilled before the first start."""
    named = websocket.query_params.get("reference_id", "")
    return named if is_voice_id(named) else None

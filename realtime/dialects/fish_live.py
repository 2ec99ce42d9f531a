"""``/v1/tts/live``: Fish Audio's MessagePack frames over the session's messages.

The handshake is answered at once, or refused with an HTTP status before the upgrade. Runs on the
event loop.
"""

from __future__ import annotations

from typing import Final

from starlette.websockets import WebSocket

from shoal.proto.codec import decode_client, encode_server
from shoal.proto.errors import Code, ProtocolError
from shoal.proto.messages import ClientMessage, ServerMessage
from shoal.proto.request import is_voice_id

NAME: Final = "fish_live"
PATH: Final = "/v1/tts/live"


def decode(frame: bytes | str) -> ClientMessage:
    """:raises ProtocolError: a text frame, or bytes that are no message."""
    if isinstance(frame, str):
        raise ProtocolError(Code.MALFORMED, "text frames are not used here: send MessagePack")
    return decode_client(frame)


def encode(message: ServerMessage, time_ms: int | None) -> bytes:
    return encode_server(message, time_ms)


def reference_id(websocket: WebSocket) -> str | None:
    """The voice that the handshake names, to be prefilled before the first start."""
    named = websocket.query_params.get("reference_id", "")
    return named if is_voice_id(named) else None

"""What the dialects of other vendors share: keys, sockets let in, JSON read, a voice's name.

Every vendor has a header of its own for the key; here it becomes the ``authorization`` that the
gateway asks for. Knows no vendor's messages. Runs on the event loop.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from typing import Final, TypeVar, cast

from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.websockets import WebSocket

from shoal.proto.errors import Code, ProtocolError
from shoal.proto.messages import MAX_ID_CHARS
from shoal.proto.request import is_voice_id
from shoal.realtime.answers import gateway_of, refusal_for
from shoal.realtime.bodies import json_map
from shoal.realtime.gateway import Gateway, Refusal
from shoal.realtime.link import Frame
from shoal.realtime.parsing import Parsing
from shoal.realtime.websocket import Socket

SENTENCE_ENDS: Final = (".", "!", "?", "…", ":", ";", "。", "！", "？")
CLOSERS: Final = "\"')]}”’»"
_MARKUP: Final = (("<", ">"), ("[", "]"))

Fields = Mapping[str, object]
Options = TypeVar("Options")


def keyed(connection: HTTPConnection, *names: str) -> Mapping[str, str]:
    """The request's headers with the key where the gateway looks for it.

    ``names`` are the headers, then query parameters, that may hold it. ``Authorization: Token``
    counts like ``Bearer``.
    """
    headers = dict(connection.headers)
    scheme, _, credential = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "token":
        headers["authorization"] = f"Bearer {credential.strip()}"
    for name in names:
        if key := headers.get(name) or connection.query_params.get(name):
            headers["authorization"] = f"Bearer {key}"
            break
    return headers


@asynccontextmanager
async def admitted(
    websocket: WebSocket,
    headers: Mapping[str, str],
    options_of: Callable[[HTTPConnection], Options],
    refuse: Callable[[Refusal], Response],
    subprotocol: str | None = None,
) -> AsyncGenerator[tuple[Socket, Options] | None]:
    """The accepted socket, counted while the block runs, and what its handshake asked for;
    ``None`` when it was refused. ``options_of`` may raise ``ProtocolError``; ``subprotocol`` is
    the one of those offered that is spoken."""
    gateway = gateway_of(websocket)
    refusal = gateway.refusal(headers, websocket.query_params, takes_token=True)
    try:
        options = None if refusal is not None else options_of(websocket)
    except ProtocolError as error:
        refusal, options = refusal_for(error), None
    if refusal is not None or options is None:
        await websocket.send_denial_response(refuse(refusal or Refusal(500, "no options")))
        yield None
        return
    gateway.occupy()
    try:
        if (refusal := await gateway.claim(headers, websocket.query_params)) is not None:
            await websocket.send_denial_response(refuse(refusal))
            yield None
            return
        await websocket.accept(subprotocol)
        yield Socket(websocket), options
    finally:
        gateway.vacate()


async def read_json(parsing: Parsing, frame: Frame) -> Fields:
    """:raises ProtocolError: not a JSON object in a text frame."""
    if not isinstance(frame, str):
        raise ProtocolError(Code.MALFORMED, "send JSON in text frames")
    return await parsing.run(len(frame), lambda: json_map(frame.encode("utf-8", "replace")))


def text_of(fields: Fields, key: str) -> str:
    """A string, or an empty one where there is none.

    :raises ProtocolError: ``BAD_REQUEST``: something else.
    """
    value = fields.get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise ProtocolError(Code.BAD_REQUEST, f"{key} must be a string")
    return value


def id_of(fields: Fields, key: str) -> str:
    """A client's own name for something, or an empty one; it comes back in every answer.

    :raises ProtocolError: ``BAD_REQUEST``: no string, or a long one.
    """
    name = text_of(fields, key)
    if len(name) > MAX_ID_CHARS:
        raise ProtocolError(Code.BAD_REQUEST, f"{key} has over {MAX_ID_CHARS} characters")
    return name


def map_of(fields: Fields, key: str) -> Fields:
    """An object, or an empty one where there is none."""
    value = fields.get(key)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ProtocolError(Code.BAD_REQUEST, f"{key} must be an object")
    return cast("Fields", value)


def speed_of(fields: Fields, key: str = "speed") -> float:
    """A factor within what the server can do; 1.0 where there is none, or it is a word."""
    value = fields.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return 1.0
    # Clamped first: JSON can write an integer that no float holds.
    return float(min(max(value, 0.5), 2.0)) if value == value else 1.0


def voice_of(gateway: Gateway, named: str, presets: Collection[str]) -> str | None:
    """The ``reference_id`` for a voice that a vendor's client names.

    A vendor's own preset voice becomes the fallback that is configured, else the model's default,
    unless the server has a voice or an alias of that name: its own win.

    :raises ProtocolError: ``BAD_REQUEST``: no voice can be called so.
    """
    if not named or gateway.names.has(named):
        return named or None
    if named in presets:
        return gateway.names.preset()
    if not is_voice_id(named):
        raise ProtocolError(Code.BAD_REQUEST, "Reference not found")
    return named


def joined(before: str, text: str) -> str:
    """``text`` with a space in front where two sentences would stick together.

    Clients send pieces of a text, which belong together as they are, or whole sentences, which
    do not. "3." and "14" stay together, "Yes." and "It is." are parted.
    """
    ends = before.rstrip(CLOSERS).endswith(SENTENCE_ENDS)
    begins = text[:1].isalpha() and not text[:1].islower()
    return f" {text}" if ends and begins else text


def is_sentence(text: str) -> bool:
    """Whether it ends like one, outside of markup that the next message may close."""
    if any(text.rfind(begin) > text.rfind(end) for begin, end in _MARKUP):
        return False
    return text.rstrip().rstrip(CLOSERS).endswith(SENTENCE_ENDS)


def to_json(fields: Fields) -> str:
    return json.dumps(fields, separators=(",", ":"))


def retry_after(refusal: Refusal) -> Mapping[str, str] | None:
    """The header that a refusal for lack of room has."""
    if refusal.retry_after_s is None:
        return None
    return {"Retry-After": str(refusal.retry_after_s)}


def nearest(value: int, choices: Collection[int]) -> int:
    return min(choices, key=lambda choice: abs(choice - value))

"""Deepgram's ``/v1/speak`` over the session's messages: a WebSocket of bare audio, and HTTP.

The socket has one session at a time: ``Clear`` ends it, and the next ``Speak`` begins another.
Runs on the event loop.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.websockets import WebSocket

from shoal.proto.errors import Code, ProtocolError
from shoal.proto.messages import (
    Audio,
    Cancel,
    Cancelled,
    Error,
    Finish,
    Flush,
    Flushed,
    Prosody,
    ServerMessage,
    Start,
    Text,
    TtsRequest,
)
from shoal.proto.request import MP3_BITRATES, RATES, default_rate, parse_request
from shoal.realtime.admission import endpoint
from shoal.realtime.answers import gateway_of
from shoal.realtime.auth import subprotocols
from shoal.realtime.bodies import read_json_body
from shoal.realtime.contexts import Context, ContextRefused, Contexts
from shoal.realtime.gateway import Gateway, Refusal
from shoal.realtime.link import Frame
from shoal.realtime.speaking import SpokenResponse, audio_only, speak
from shoal.realtime.websocket import Socket

from .vendor import (
    Fields,
    admitted,
    joined,
    keyed,
    nearest,
    read_json,
    retry_after,
    speed_of,
    text_of,
    to_json,
    voice_of,
)

NAME: Final = "deepgram"
PATH: Final = "/v1/speak"
PRESET_PREFIX: Final = "aura-"
FORMATS: Final = {"linear16": "pcm", "mulaw": "ulaw", "alaw": "alaw", "mp3": "mp3", "opus": "opus"}
STREAMED: Final = ("linear16", "mulaw", "alaw")
DEFAULT_RATE: Final = 24_000
_KEY: Final = ""


def routes() -> list[BaseRoute]:
    http = endpoint(_speak, refuse=_refuse, headers=keyed)
    return [WebSocketRoute(PATH, _socket), Route(PATH, http, methods=["POST"])]


def _refuse(refusal: Refusal) -> JSONResponse:
    body = {
        "err_code": {400: "INVALID_QUERY_PARAMETER", 401: "INVALID_AUTH"}.get(
            refusal.status, "ERROR"
        ),
        "err_msg": refusal.message,
        "request_id": str(uuid.uuid4()),
    }
    return JSONResponse(body, refusal.status, retry_after(refusal))


def _request_of(connection: HTTPConnection, encodings: Sequence[str], default: str) -> TtsRequest:
    """What the query asks for.

    :raises ProtocolError: ``BAD_REQUEST``: an encoding or a rate that does not exist here.
    """
    query = connection.query_params
    encoding = query.get("encoding") or default
    if encoding not in encodings:
        raise ProtocolError(Code.BAD_REQUEST, f"encoding must be one of {', '.join(encodings)}")
    kind = FORMATS[encoding]
    numbers: dict[str, int] = {}
    for name in ("sample_rate", "bit_rate"):
        value = query.get(name, "")
        if value and not (value.isdecimal() and len(value) < 8):
            raise ProtocolError(Code.BAD_REQUEST, f"{name} must be a number")
        if value:
            numbers[name] = int(value)
    fields: dict[str, object] = {"format": kind, "sample_rate": numbers.get("sample_rate")}
    if kind == "pcm":
        fields["sample_rate"] = numbers.get("sample_rate", DEFAULT_RATE)
        if query.get("container", "none" if encodings is STREAMED else "wav") == "wav":
            fields["format"] = "wav"
    if kind == "mp3":
        fields["sample_rate"] = nearest(numbers.get("sample_rate", 44_100), RATES["mp3"])
        fields["mp3_bitrate"] = nearest(numbers.get("bit_rate", 64_000) // 1000, MP3_BITRATES)
    if kind == "opus":
        fields["sample_rate"] = default_rate("opus")
    request = replace(
        parse_request(fields),
        latency="balanced",
        reference_id=_voice(gateway_of(connection), query.get("model") or "aura"),
    )
    speed = query.get("speed", "")
    try:
        factor = speed_of({"speed": float(speed)}) if speed else 1.0
    except ValueError:
        raise ProtocolError(Code.BAD_REQUEST, "speed must be a number") from None
    return request if factor == 1.0 else replace(request, prosody=Prosody(speed=factor))


def _voice(gateway: Gateway, model: str) -> str | None:
    presets = {model} if model == "aura" or model.startswith(PRESET_PREFIX) else set[str]()
    return voice_of(gateway, model, presets)


# HTTP -------------------------------------------------------------------------------------------


async def _speak(request: Request) -> Response:
    tts = _request_of(request, tuple(FORMATS), "mp3")
    text = text_of(await read_json_body(request), "text")
    spoken = await speak(request, replace(tts, text=text), dialect=NAME)
    return SpokenResponse(spoken, audio_only, spoken.content_type)


# WebSocket --------------------------------------------------------------------------------------


async def _socket(websocket: WebSocket) -> None:
    def options(connection: HTTPConnection) -> TtsRequest:
        return _request_of(connection, STREAMED, "linear16")

    headers, subprotocol = dict(keyed(websocket)), None
    match subprotocols(websocket.headers):
        case ["token" | "bearer" as subprotocol, key]:  # a browser can set no header
            headers["authorization"] = f"Bearer {key}"
        case _:
            pass
    async with admitted(websocket, headers, options, _refuse, subprotocol) as client:
        if client is not None:
            socket, request = client
            contexts = Contexts(socket, gateway_of(websocket), NAME)
            reader = _Reader(socket, contexts, request)
            await reader.greet(gateway_of(websocket).engine.info.model)
            await contexts.run(reader.take, _warning("internal error", "INTERNAL"))


class _Reader:
    """What one socket's client says, and what its sessions answer."""

    def __init__(self, socket: Socket, contexts: Contexts, request: TtsRequest) -> None:
        self._socket = socket
        self._contexts = contexts
        self._request = request
        self._flushes = 0
        self._said = ""

    async def greet(self, model: str) -> None:
        fields = {
            "type": "Metadata",
            "request_id": str(uuid.uuid4()),
            "model_name": model,
            "model_version": "1",
            "model_uuid": str(uuid.uuid5(uuid.NAMESPACE_URL, model)),
        }
        await self._socket.send(to_json(fields))

    async def take(self, frame: Frame) -> None:
        try:
            fields = await read_json(self._contexts.parsing, frame)
            match fields.get("type"):
                case "Speak":
                    await self._speak(fields)
                case "Flush":
                    await self._flush()
                case "Clear":
                    await self._clear()
                case "Close":
                    self._contexts.finish()
                case _:
                    await self._warn("unknown type of message", "UNKNOWN_TYPE")
        except ContextRefused as refused:
            await self._warn(str(refused), "REFUSED")
        except ProtocolError as error:
            await self._warn(error.message, "INVALID_MESSAGE")

    async def _speak(self, fields: Fields) -> None:
        text = text_of(fields, "text")
        if not text:
            return
        context = self._contexts.get(_KEY)
        if context is None:
            self._said = ""
            context = self._open()
        context.say(Text(joined(self._said, text)))
        self._said = text
        await context.room()

    async def _flush(self) -> None:
        self._flushes += 1
        context = self._contexts.get(_KEY)
        if context is None:
            await self._socket.send(_flushed(self._flushes))
            return
        self._said = ""
        context.say(Flush(self._flushes))
        await context.room()

    async def _clear(self) -> None:
        context = self._contexts.get(_KEY)
        if context is None:
            await self._socket.send(self._cleared())
        else:
            self._contexts.close(context, Cancel())

    def _open(self) -> Context:
        start = Start(self._request)
        return self._contexts.open(_KEY, start, self._write, (Finish, Cancelled))

    async def _warn(self, description: str, code: str) -> None:
        await self._socket.send(_warning(description, code))

    def _write(self, message: ServerMessage) -> Sequence[bytes | str]:
        match message:
            case Audio(audio=audio):
                return [audio] if audio else []
            case Flushed(id=number):
                return [_flushed(number)]
            case Cancelled():
                return [self._cleared()]
            case Error(error=error):
                fields = {"type": "Error", "description": error, "err_msg": error}
                return [to_json(fields)]
            case _:
                return []

    def _cleared(self) -> str:
        return to_json({"type": "Cleared", "sequence_id": self._flushes})


def _flushed(number: str | int) -> str:
    return to_json({"type": "Flushed", "sequence_id": number})


def _warning(description: str, code: str) -> str:
    fields = {"type": "Warning", "description": description, "code": code}
    return to_json({**fields, "warn_msg": description, "warn_code": code})

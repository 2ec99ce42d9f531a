"""Cartesia's ``/tts/websocket`` over the session's messages, and ``/tts/bytes``, ``/tts/sse``.

A context of the WebSocket is a session: its first request says how it sounds, ``continue: false``
is its end, ``cancel`` ends it at once. Words come with their times. Runs on the event loop.
"""

from __future__ import annotations

import base64
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final
from weakref import WeakKeyDictionary

from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.websockets import WebSocket

from shoal.proto.errors import Code, ProtocolError
from shoal.proto.messages import (
    Aligned,
    Audio,
    Cancel,
    Cancelled,
    ClientMessage,
    Error,
    Finish,
    Flush,
    Flushed,
    Prosody,
    ServerMessage,
    Start,
    Stop,
    Text,
    TtsRequest,
)
from shoal.proto.request import MP3_BITRATES, RATES, parse_request
from shoal.realtime.admission import endpoint
from shoal.realtime.answers import gateway_of
from shoal.realtime.bodies import read_json_body
from shoal.realtime.contexts import Context, ContextRefused, Contexts
from shoal.realtime.gateway import Gateway, Refusal
from shoal.realtime.link import Frame
from shoal.realtime.speaking import SpokenResponse, audio_only, speak
from shoal.realtime.websocket import Socket

from .timeline import Timeline
from .vendor import (
    Fields,
    admitted,
    id_of,
    keyed,
    map_of,
    nearest,
    read_json,
    retry_after,
    speed_of,
    text_of,
    to_json,
    voice_of,
)

NAME: Final = "cartesia"
PATH: Final = "/tts/websocket"
BYTES_PATH: Final = "/tts/bytes"
SSE_PATH: Final = "/tts/sse"
KEYS: Final = ("x-api-key", "api_key", "access_token")
PRESETS: Final = frozenset(
    {
        "71a7ad14-091c-4e8e-a314-022ece01c121",
        "794f9389-aac1-45b6-b726-9d9369183238",
        "6ccbfb76-1fc6-48f7-b71d-91ac6298247b",
        "a0e99841-438c-4a64-b679-ae501e7d6091",
        "f786b574-daa5-4673-aa0c-cbe3e8534c02",
    }
)
"""Voices of the vendor that its clients and guides name by default."""
ENCODINGS: Final = ("pcm_s16le", "pcm_f32le", "pcm_mulaw", "pcm_alaw")


def routes() -> list[BaseRoute]:
    return [
        WebSocketRoute(PATH, _socket),
        Route(BYTES_PATH, endpoint(_bytes, refuse=_refuse, headers=_headers), methods=["POST"]),
        Route(SSE_PATH, endpoint(_sse, refuse=_refuse, headers=_headers), methods=["POST"]),
    ]


def _headers(connection: HTTPConnection) -> Mapping[str, str]:
    return keyed(connection, *KEYS)


def _refuse(refusal: Refusal) -> JSONResponse:
    body = {
        "error_code": "request_refused",
        "title": "Refused",
        "message": refusal.message,
        "status_code": refusal.status,
        "request_id": str(uuid.uuid4()),
    }
    return JSONResponse(body, refusal.status, retry_after(refusal))


def _request_of(gateway: Gateway, fields: Fields) -> TtsRequest:
    """How a request shall sound; without its text.

    :raises ProtocolError: ``BAD_REQUEST``: a format or a voice that does not exist here.
    """
    voice = map_of(fields, "voice")
    if voice.get("mode", "id") != "id":
        raise ProtocolError(Code.BAD_REQUEST, "voice must be named by its id")
    request = replace(
        _formatted(map_of(fields, "output_format")),
        latency="balanced",
        reference_id=voice_of(gateway, text_of(voice, "id"), PRESETS),
    )
    speed = speed_of(map_of(fields, "generation_config"))
    return request if speed == 1.0 else replace(request, prosody=Prosody(speed=speed))


def _formatted(output: Fields) -> TtsRequest:
    container, encoding = output.get("container", "raw"), output.get("encoding", "pcm_s16le")
    rate, bits = output.get("sample_rate"), output.get("bit_rate")
    match container:
        case "raw" if encoding in ENCODINGS:
            return parse_request({"format": encoding, "sample_rate": rate})
        case "wav" if encoding == "pcm_s16le":
            return parse_request({"format": "wav", "sample_rate": rate})
        case "mp3":
            wanted = rate if isinstance(rate, int) else 44_100
            kbps = bits // 1000 if isinstance(bits, int) else 128
            return parse_request(
                {
                    "format": "mp3",
                    "sample_rate": nearest(wanted, RATES["mp3"]),
                    "mp3_bitrate": nearest(kbps, MP3_BITRATES),
                }
            )
        case _:
            raise ProtocolError(Code.BAD_REQUEST, "output_format is not one that this server has")


# HTTP -------------------------------------------------------------------------------------------


async def _bytes(request: Request) -> Response:
    fields = await read_json_body(request)
    tts = replace(_request_of(gateway_of(request), fields), text=text_of(fields, "transcript"))
    spoken = await speak(request, tts, dialect=NAME)
    return SpokenResponse(spoken, audio_only, spoken.content_type)


async def _sse(request: Request) -> Response:
    fields = await read_json_body(request)
    tts = replace(_request_of(gateway_of(request), fields), text=text_of(fields, "transcript"))
    timestamps = fields.get("add_timestamps") is True
    spoken = await speak(request, tts, timestamps=timestamps, dialect=NAME)
    writer = _Writer(id_of(fields, "context_id") or str(uuid.uuid4()))

    def event(message: ServerMessage) -> bytes:
        parts = [
            f"event: {kind}\ndata: {to_json(data)}\n\n" for kind, data in writer.events(message)
        ]
        return "".join(parts).encode()

    return SpokenResponse(spoken, event, "text/event-stream")


# WebSocket --------------------------------------------------------------------------------------


async def _socket(websocket: WebSocket) -> None:
    async with admitted(websocket, _headers(websocket), gateway_of, _refuse) as client:
        if client is not None:
            socket, gateway = client
            contexts = Contexts(socket, gateway, NAME)
            apology = _error("", "internal error", 500)
            await contexts.run(_Reader(socket, gateway, contexts).take, apology)


class _Reader:
    """What one socket's client says."""

    def __init__(self, socket: Socket, gateway: Gateway, contexts: Contexts) -> None:
        self._socket = socket
        self._gateway = gateway
        self._contexts = contexts
        self._flushes: WeakKeyDictionary[Context, int] = WeakKeyDictionary()

    async def take(self, frame: Frame) -> None:
        key = ""
        try:
            fields = await read_json(self._contexts.parsing, frame)
            key = id_of(fields, "context_id")
            if fields.get("cancel") is True:
                self._cancel(key)
            else:
                key = key or str(uuid.uuid4())
                await self._request(key, fields)
        except ContextRefused as refused:
            await self._socket.send(_error(key, str(refused), 429))
        except ProtocolError as error:
            await self._socket.send(_error(key, error.message, 400))

    def _cancel(self, key: str) -> None:
        if (context := self._contexts.get(key)) is not None:
            self._contexts.close(context, Cancel())
        for closing in self._contexts.closing(key):
            closing.say(Cancel())

    async def _request(self, key: str, fields: Fields) -> None:
        text, goes_on = text_of(fields, "transcript"), fields.get("continue") is True
        flush = fields.get("flush") is True
        if fields.get("max_buffer_delay_ms") == 0:
            flush = flush or bool(text.strip())  # the client buffers: all it sends is to be spoken
        context = self._contexts.get(key)
        if context is None and not text:
            if not goes_on:
                await self._socket.send(_done(key))
            return
        if context is None:
            context = self._open(key, fields)
        messages: list[ClientMessage] = []
        if text:
            at_once = flush and goes_on and not text[-1].isspace()
            messages.append(Text(f"{text} " if at_once else text))
        if flush:
            number = self._flushes[context] = self._flushes.get(context, 0) + 1
            messages.append(Flush(number))
        if goes_on:
            context.say(*messages)
            await context.room()
        else:
            self._contexts.close(context, *messages, Stop())

    def _open(self, key: str, fields: Fields) -> Context:
        start = Start(
            _request_of(self._gateway, fields), timestamps=fields.get("add_timestamps") is True
        )
        return self._contexts.open(key, start, _Writer(key).write, (Finish, Cancelled))


class _Writer:
    """What one context's session answers."""

    def __init__(self, key: str) -> None:
        self._key = key
        self._timeline = Timeline()
        self._first_s: float | None = None

    def write(self, message: ServerMessage) -> Sequence[str]:
        return [to_json(fields) for _, fields in self.events(message)]

    def events(self, message: ServerMessage) -> Sequence[tuple[str, Fields]]:
        """The kind of each event, and the event."""
        match message:
            case Audio(audio=audio) if audio:
                if self._first_s is None:
                    self._first_s = time.monotonic()
                data = base64.b64encode(audio).decode("ascii")
                return [self._event("chunk", data=data, step_time=0.0)]
            case Aligned():
                played_s = 0.0 if self._first_s is None else time.monotonic() - self._first_s
                piece = self._timeline.take(message, played_s)
                if piece is None or not piece.words:
                    return []
                times = {
                    "words": [word.text for word in piece.words],
                    "start": [round(word.start_s, 3) for word in piece.words],
                    "end": [round(word.end_s, 3) for word in piece.words],
                }
                return [self._event("timestamps", word_timestamps=times)]
            case Flushed(id=number):
                return [self._event("flush_done", flush_done=True, flush_id=number)]
            case Finish(reason="stop") | Cancelled():
                return [("done", _done_fields(self._key))]
            case Error(error=error):
                return [("error", _error_fields(self._key, error, 500))]
            case _:
                return []

    def _event(self, kind: str, **fields: object) -> tuple[str, Fields]:
        shared = {"type": kind, "context_id": self._key, "done": False, "status_code": 206}
        return kind, {**shared, **fields}


def _done_fields(key: str) -> Fields:
    return {"type": "done", "context_id": key, "done": True, "status_code": 200}


def _done(key: str) -> str:
    return to_json(_done_fields(key))


def _error_fields(key: str, message: str, status: int) -> Fields:
    """``done`` is false although nothing follows: a client of the field takes any message that is
    done for a good end."""
    return {
        "type": "error",
        "context_id": key,
        "done": False,
        "status_code": status,
        "error_code": "request_failed",
        "title": "Error",
        "message": message,
        "error": message,
    }


def _error(key: str, message: str, status: int) -> str:
    return to_json(_error_fields(key, message, status))

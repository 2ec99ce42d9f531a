"""ElevenLabs' WebSockets over the session's messages: ``multi-stream-input``, ``stream-input``.

A context of the first is a session; the second is a socket with one. Characters come with their
times. ``close_context`` ends what was not flushed at once and lets the rest be heard; a second one
ends that, too. The HTTP endpoints are in ``elevenlabs_http.py``. Runs on the event loop.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final
from weakref import WeakSet

from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse
from starlette.routing import BaseRoute, WebSocketRoute
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
    Prosody,
    ServerMessage,
    Start,
    Stop,
    Text,
    TtsRequest,
)
from shoal.proto.request import MP3_BITRATES, OPUS_BITRATES, RATES, parse_request
from shoal.realtime.answers import gateway_of
from shoal.realtime.contexts import Context, ContextRefused, Contexts
from shoal.realtime.gateway import Refusal
from shoal.realtime.link import Frame
from shoal.realtime.websocket import Socket

from .timeline import Piece, Timeline, milliseconds
from .vendor import (
    Fields,
    admitted,
    id_of,
    is_sentence,
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

NAME: Final = "elevenlabs"
MULTI_PATH: Final = "/v1/text-to-speech/{voice}/multi-stream-input"
SINGLE_PATH: Final = "/v1/text-to-speech/{voice}/stream-input"
DEFAULT_FORMAT: Final = "mp3_44100_128"
DEFAULT_INACTIVITY_S: Final = 20.0
MOST_INACTIVITY_S: Final = 180.0
PRESETS: Final = frozenset(
    """
    21m00Tcm4TlvDq8ikWAM 9BWtsMINqrJLrRacOk9x CwhRBWXzGAHq8TQ4Fs17 EXAVITQu4vr4xnSDxMaL
    FGY2WhTYpPnrIDTdsKH5 IKne3meq5aSn9XLyUdCD JBFqnCBsd6RMkjVDRZzb N2lVS1w4EtoT3dr4eOWO
    SAz9YHcvj6GT2YYXdXww TX3LPaxmHKxFdv7VOQHJ XB0fDUnXU5powFXDhCwa Xb7hH8MSUJpSbSDYk0k2
    XrExE9yKIg1WjnnlVkGX bIHbv24MWmeRgasZH58o cgSgspJ2msm6clMCkdW9 cjVigY5qzO86Huf0OWal
    hpp4J3VqNfWAUOO0d1Us iP95p4xoKVk53GoZ742B nPczCjzI2devNBz1zQrb onwK4e9ZLuTAKqWW03F9
    pFZP5JQG7iQjIQuC4Bku pNInz6obpgDQGcFmaJgB pqHfZKP75CvOlQylNhV4
    """.split()
)
"""The premade voices of the vendor: its clients and guides name one of them by default."""


def routes() -> list[BaseRoute]:
    return [WebSocketRoute(MULTI_PATH, _multi), WebSocketRoute(SINGLE_PATH, _single)]


def refuse(refusal: Refusal) -> JSONResponse:
    """The vendor's shape of an error."""
    detail = {"status": str(refusal.status), "message": refusal.message}
    return JSONResponse({"detail": detail}, refusal.status, retry_after(refusal))


def key_headers(connection: HTTPConnection) -> dict[str, str]:
    return dict(keyed(connection, "xi-api-key", "xi_api_key", "single_use_token"))


def request_of(connection: HTTPConnection) -> TtsRequest:
    """What the path and the query ask for; no text yet.

    :raises ProtocolError: ``BAD_REQUEST``: a format that does not exist here, or a voice that
        cannot.
    """
    query = connection.query_params
    request = formatted(query.get("output_format") or DEFAULT_FORMAT)
    voice = voice_of(gateway_of(connection), str(connection.path_params["voice"]), PRESETS)
    seed = query.get("seed", "")
    return replace(
        request,
        latency="balanced",
        reference_id=voice,
        normalize=query.get("apply_text_normalization") != "off",
        seed=int(seed) if seed.isdecimal() and len(seed) < 19 else None,
    )


def formatted(name: str) -> TtsRequest:
    """``pcm_24000``, ``ulaw_8000``, ``mp3_44100_128``, ``opus_48000_64``, ``wav_44100``.

    Compressed audio says its own rate, so there the nearest rate and bit rate will do.
    """
    kind, *numbers = name.split("_")
    if kind not in RATES or not numbers or not all(n.isdecimal() and len(n) < 8 for n in numbers):
        raise ProtocolError(Code.BAD_REQUEST, "output_format is not one that this server has")
    rate, kbps = int(numbers[0]), int(numbers[1]) if len(numbers) > 1 else 128
    fields: dict[str, object] = {"format": kind, "sample_rate": rate}
    if kind == "mp3":
        fields["sample_rate"] = nearest(rate, RATES["mp3"])
        fields["mp3_bitrate"] = nearest(kbps, MP3_BITRATES)
    if kind == "opus":
        fields["opus_bitrate"] = nearest(1000 * kbps, OPUS_BITRATES[1:])
    return parse_request(fields)


def with_settings(request: TtsRequest, fields: Fields) -> TtsRequest:
    """``voice_settings``: of them, only ``speed`` means something here."""
    speed = speed_of(map_of(fields, "voice_settings"))
    return request if speed == 1.0 else replace(request, prosody=Prosody(speed=speed))


async def _multi(websocket: WebSocket) -> None:
    await _serve(websocket, multiple=True)


async def _single(websocket: WebSocket) -> None:
    await _serve(websocket, multiple=False)


async def _serve(websocket: WebSocket, multiple: bool) -> None:
    async with admitted(websocket, key_headers(websocket), _options, refuse) as client:
        if client is not None:
            socket, options = client
            idle_s = options.inactivity_s
            contexts = Contexts(socket, gateway_of(websocket), NAME, idle_s=idle_s)
            reader = _Reader(socket, contexts, options, multiple)
            await contexts.run(reader.take, to_json(_error("internal error")))


@dataclass(frozen=True, slots=True)
class _Options:
    request: TtsRequest
    auto_mode: bool
    inactivity_s: float
    absolute: bool
    """Times count from the begin of the context and not of the message: clients that ask for
    ``sync_alignment`` read them so, the others add up the messages' spans."""


def _options(connection: HTTPConnection) -> _Options:
    query = connection.query_params
    try:
        asked_s = float(query.get("inactivity_timeout", DEFAULT_INACTIVITY_S))
    except ValueError:
        asked_s = DEFAULT_INACTIVITY_S
    inactivity_s = min(max(asked_s, 1.0), MOST_INACTIVITY_S) if asked_s == asked_s else 1.0
    return _Options(
        request_of(connection),
        auto_mode=query.get("auto_mode") == "true",
        inactivity_s=inactivity_s,
        absolute=query.get("sync_alignment") == "true",
    )


class _Reader:
    """What one socket's client says."""

    def __init__(
        self, socket: Socket, contexts: Contexts, options: _Options, multiple: bool
    ) -> None:
        self._socket = socket
        self._contexts = contexts
        self._options = options
        self._multiple = multiple
        self._flushed: WeakSet[Context] = WeakSet()  # whose clients flushed what they said

    async def take(self, frame: Frame) -> None:
        key = ""
        try:
            fields = await read_json(self._contexts.parsing, frame)
            key = self._key(fields)
            if fields.get("close_socket") is True:
                self._contexts.finish()
            elif fields.get("close_context") is True and self._multiple:
                self._close(key)
            else:
                await self._text(key, fields)
        except ContextRefused as refused:
            await self._refuse(key, str(refused))
        except ProtocolError as error:
            await self._refuse(key, error.message)

    def _key(self, fields: Fields) -> str:
        if not self._multiple:
            return ""
        return id_of(fields, "context_id") or id_of(fields, "contextId") or "default"

    async def _refuse(self, key: str, message: str) -> None:
        await self._socket.send(to_json(self._named(key, _error(message))))

    def _named(self, key: str, fields: dict[str, object]) -> dict[str, object]:
        return {**fields, "contextId": key} if self._multiple else fields

    def _close(self, key: str) -> None:
        context = self._contexts.get(key)
        if context is not None and context in self._flushed:
            self._contexts.close(context, Stop())
            return
        if context is not None:
            self._contexts.close(context, Cancel())
        for closing in self._contexts.closing(key):
            closing.say(Cancel())

    async def _text(self, key: str, fields: Fields) -> None:
        text, flush = text_of(fields, "text"), fields.get("flush") is True
        context = self._contexts.get(key)
        if context is None:
            if not text:
                return  # a flush or a sign of life for what was never opened
            context = self._open(key, fields)
            if text.isspace():
                text = ""  # it stands for the opening
        elif not text and not flush and not self._multiple and "text" in fields:
            self._contexts.finish()
            return
        auto = self._options.auto_mode
        at_once = auto and is_sentence(text)
        if at_once and not text[-1].isspace():
            text += " "
        messages: list[ClientMessage] = [Text(text)] if text else []
        if flush or at_once:
            messages.append(Flush())
        if text.strip():
            self._flushed.discard(context)
        if flush and not (auto and text.strip()):
            # In auto mode every sentence is flushed; only a flush of its own ends what is said.
            self._flushed.add(context)
        context.say(*messages)
        await context.room()

    def _open(self, key: str, fields: Fields) -> Context:
        request = with_settings(self._options.request, fields)
        writer = _Writer(key if self._multiple else None, self._options.absolute)
        return self._contexts.open(key, Start(request, True), writer.write, (Finish, Cancelled))


def _error(message: str) -> dict[str, object]:
    return {"error": message, "message": message}


class _Writer:
    """What one context's session answers."""

    def __init__(self, key: str | None, absolute: bool) -> None:
        self._absolute = absolute
        self._named = {} if key is None else {"contextId": key}
        self._timeline = Timeline()
        self._told_s = 0.0
        self._first_s: float | None = None

    def write(self, message: ServerMessage) -> Sequence[str]:
        match message:
            case Audio(audio=audio):
                if self._first_s is None:
                    self._first_s = time.monotonic()
                return [self._output(base64.b64encode(audio).decode("ascii"), None)]
            case Aligned():
                played_s = 0.0 if self._first_s is None else time.monotonic() - self._first_s
                piece = self._timeline.take(message, played_s)
                return [] if piece is None else [self._output("", piece)]
            case Finish() | Cancelled():
                return [to_json({"isFinal": True, **self._named})]
            case Error(error=error):
                return [to_json({**_error(error), **self._named})]
            case _:
                return []

    def _output(self, audio: str, piece: Piece | None) -> str:
        alignment = None
        if piece is not None:
            since_s = 0.0 if self._absolute else self._told_s
            starts, durations = milliseconds(piece.characters, since_s)
            self._told_s = piece.characters[-1].end_s
            alignment = {
                "chars": [c.text for c in piece.characters],
                "charStartTimesMs": starts,
                "charDurationsMs": durations,
            }
        return to_json(
            {
                "audio": audio,
                "isFinal": False,
                "alignment": alignment,
                "normalizedAlignment": alignment,
                **self._named,
            }
        )

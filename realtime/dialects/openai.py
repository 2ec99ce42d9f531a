"""OpenAI's ``/v1/audio/speech``, also under ``/compat/v1``, and the list of models.

Runs on the event loop.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from shoal.proto.errors import Code, ProtocolError
from shoal.proto.messages import Audio, Finish, Prosody, ServerMessage, TtsRequest
from shoal.proto.request import parse_request
from shoal.realtime.admission import endpoint, open_endpoint
from shoal.realtime.answers import gateway_of
from shoal.realtime.bodies import read_json_body
from shoal.realtime.gateway import Gateway, Refusal
from shoal.realtime.speaking import SpokenResponse, audio_only, speak

from .vendor import Fields, keyed, map_of, retry_after, text_of, to_json, voice_of

NAME: Final = "openai"
PREFIXES: Final = ("/v1", "/compat/v1")
PRESETS: Final = frozenset(
    {
        "alloy",
        "ash",
        "ballad",
        "cedar",
        "coral",
        "echo",
        "fable",
        "marin",
        "nova",
        "onyx",
        "sage",
        "shimmer",
        "verse",
    }
)
RATES: Final = {"mp3": 44_100, "opus": 48_000, "flac": 24_000, "wav": 24_000, "pcm": 24_000}
"""The response formats and the rate that each is answered with; pcm's is fixed by the vendor."""
_TYPES: Final = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
_CODES: Final = {401: "invalid_api_key", 429: "rate_limit_exceeded"}


def routes() -> list[BaseRoute]:
    speech = endpoint(_speech, refuse=_refuse, headers=keyed)
    models = open_endpoint(_models, refuse=_refuse, headers=keyed)
    return [
        *(Route(f"{prefix}/audio/speech", speech, methods=["POST"]) for prefix in PREFIXES),
        *(Route(f"{prefix}/models", models, methods=["GET"]) for prefix in PREFIXES),
    ]


def _refuse(refusal: Refusal) -> JSONResponse:
    kind = "server_error" if refusal.status >= 500 else "invalid_request_error"
    error = {
        "message": refusal.message,
        "type": _TYPES.get(refusal.status, kind),
        "param": None,
        "code": _CODES.get(refusal.status),
    }
    return JSONResponse({"error": error}, refusal.status, retry_after(refusal))


async def _models(request: Request) -> Response:
    model = {
        "id": gateway_of(request).engine.info.model,
        "object": "model",
        "created": 0,
        "owned_by": "shoal",
    }
    return JSONResponse({"object": "list", "data": [model]})


async def _speech(request: Request) -> Response:
    fields = await read_json_body(request)
    tts = _request_of(gateway_of(request), fields)
    stream_format = text_of(fields, "stream_format") or "audio"
    if stream_format not in ("audio", "sse"):
        raise ProtocolError(Code.BAD_REQUEST, "stream_format must be audio or sse")
    spoken = await speak(request, tts, dialect=NAME)
    if stream_format == "audio":
        return SpokenResponse(spoken, audio_only, spoken.content_type)
    return SpokenResponse(spoken, _Events(len(tts.text)), "text/event-stream")


def _request_of(gateway: Gateway, fields: Fields) -> TtsRequest:
    """:raises ProtocolError: ``BAD_REQUEST``: a value that cannot be used."""
    text = text_of(fields, "input")
    if not text:
        raise ProtocolError(Code.BAD_REQUEST, "input is required")
    kind = text_of(fields, "response_format") or "mp3"
    if kind not in RATES:
        choices = ", ".join(RATES)
        raise ProtocolError(Code.BAD_REQUEST, f"response_format must be one of {choices}")
    by_id = isinstance(fields.get("voice"), Mapping)
    named = text_of(map_of(fields, "voice"), "id") if by_id else text_of(fields, "voice")
    request = replace(
        parse_request({"text": text, "format": kind, "sample_rate": RATES[kind]}),
        reference_id=voice_of(gateway, named, PRESETS),
    )
    speed = fields.get("speed")
    if speed is None:
        return request
    if isinstance(speed, bool) or not isinstance(speed, (int, float)) or not 0.25 <= speed <= 4.0:
        raise ProtocolError(Code.BAD_REQUEST, "speed must be between 0.25 and 4.0")
    return replace(request, prosody=Prosody(speed=min(max(float(speed), 0.5), 2.0)))


class _Events:
    """The answer as server-sent events."""

    def __init__(self, text_chars: int) -> None:
        self._text_chars = text_chars
        self._chunks = 0

    def __call__(self, message: ServerMessage) -> bytes:
        match message:
            case Audio(audio=audio) if audio:
                self._chunks += 1
                data = base64.b64encode(audio).decode("ascii")
                return _event({"type": "speech.audio.delta", "audio": data})
            case Finish():
                usage = {
                    "input_tokens": self._text_chars,
                    "output_tokens": self._chunks,
                    "total_tokens": self._text_chars + self._chunks,
                }
                return _event({"type": "speech.audio.done", "usage": usage})
            case _:
                return b""


def _event(fields: Fields) -> bytes:
    return f"data: {to_json(fields)}\n\n".encode()

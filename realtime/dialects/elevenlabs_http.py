"""ElevenLabs' HTTP endpoints: ``/v1/text-to-speech/{voice}`` and its streams, ``/v1/voices``.

Runs on the event loop.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from shoal.proto.errors import Code, ProtocolError
from shoal.proto.messages import Aligned, Audio, ServerMessage, TtsRequest
from shoal.realtime.admission import endpoint, open_endpoint
from shoal.realtime.answers import gateway_of
from shoal.realtime.bodies import read_json_body
from shoal.realtime.config import PUBLIC_DEFAULT_VOICES
from shoal.realtime.speaking import SpokenResponse, audio_only, speak

from .elevenlabs import NAME, key_headers, refuse, request_of, with_settings
from .timeline import Timed, Timeline
from .vendor import Fields, text_of, to_json

PATH: Final = "/v1/text-to-speech/{voice}"


def routes() -> list[BaseRoute]:
    audio = endpoint(_audio, refuse=refuse, headers=key_headers)
    timed = endpoint(_timed, refuse=refuse, headers=key_headers)
    voices = open_endpoint(_voices, refuse=refuse, headers=key_headers)
    return [
        Route(PATH, audio, methods=["POST"]),
        Route(f"{PATH}/stream", audio, methods=["POST"]),
        Route(f"{PATH}/stream/with-timestamps", timed, methods=["POST"]),
        Route("/v1/voices", voices, methods=["GET"]),
    ]


async def _audio(request: Request) -> Response:
    spoken = await speak(request, await _request_of(request), dialect=NAME)
    return SpokenResponse(spoken, audio_only, spoken.content_type)


async def _timed(request: Request) -> Response:
    tts = await _request_of(request)
    spoken = await speak(request, tts, timestamps=True, dialect=NAME)
    return SpokenResponse(spoken, _Lines(), "application/json")


async def _request_of(request: Request) -> TtsRequest:
    """:raises ProtocolError: ``BAD_REQUEST``: a value that cannot be used."""
    tts = request_of(request)
    fields = await read_json_body(request)
    text = text_of(fields, "text")
    if not text:
        raise ProtocolError(Code.BAD_REQUEST, "text is required")
    if fields.get("apply_text_normalization") == "off":
        tts = replace(tts, normalize=False)
    seed = fields.get("seed")
    if isinstance(seed, int) and not isinstance(seed, bool) and 0 <= seed < 1 << 63:
        tts = replace(tts, seed=seed)
    return replace(with_settings(tts, fields), text=text)


class _Lines:
    """One JSON object a line: audio, or the characters whose times became known, in seconds of
    the whole answer."""

    def __init__(self) -> None:
        self._timeline = Timeline()

    def __call__(self, message: ServerMessage) -> bytes:
        match message:
            case Audio(audio=audio) if audio:
                return self._line(base64.b64encode(audio).decode("ascii"), None)
            case Aligned():
                piece = self._timeline.take(message, 0.0)
                return b"" if piece is None else self._line("", _spelled(piece.characters))
            case _:
                return b""

    def _line(self, audio: str, alignment: Fields | None) -> bytes:
        fields = {
            "audio_base64": audio,
            "alignment": alignment,
            "normalized_alignment": alignment,
        }
        return f"{to_json(fields)}\n".encode()


def _spelled(characters: Sequence[Timed]) -> Fields:
    return {
        "characters": [c.text for c in characters],
        "character_start_times_seconds": [round(c.start_s, 3) for c in characters],
        "character_end_times_seconds": [round(c.end_s, 3) for c in characters],
    }


async def _voices(request: Request) -> Response:
    gateway = gateway_of(request)
    stored = await asyncio.to_thread(gateway.engine.voices)
    aliases = (*PUBLIC_DEFAULT_VOICES, *gateway.config.voice_aliases)
    names = [*aliases, *(voice.voice_id for voice in stored)]
    voices: list[Fields] = [
        {
            "voice_id": name,
            "name": name,
            "category": "generated",
            "labels": {},
            "available_for_tiers": [],
            "high_quality_base_model_ids": [],
        }
        for name in dict.fromkeys(names)
    ]
    return JSONResponse({"voices": voices})

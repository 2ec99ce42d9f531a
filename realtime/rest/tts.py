"""``POST /v1/tts``: one text in, its audio out while it is spoken; and the same with timestamps.

``/v1/tts/stream/with-timestamp`` answers with server-sent events. Runs on the event loop.
"""

from __future__ import annotations

import binascii
import json
from collections.abc import Mapping
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from shoal.proto.errors import Code, ProtocolError
from shoal.proto.messages import Aligned, Audio, Finish, TtsRequest
from shoal.proto.request import parse_request
from shoal.realtime.admission import endpoint
from shoal.realtime.answers import Refused, gateway_of, header_text
from shoal.realtime.bodies import Form, content_type, off_loop, read_fields, read_form
from shoal.realtime.dialects.fish_timestamps import timestamp_fields
from shoal.realtime.gateway import Refusal
from shoal.realtime.speaking import SpokenResponse, audio_only, speak

PATH: Final = "/v1/tts"
TIMESTAMP_PATH: Final = "/v1/tts/stream/with-timestamp"
MULTIPART: Final = "multipart/form-data"
STRINGS: Final = ("text", "format", "latency", "reference_id")
"""Fields whose value in a form is text as it stands; the others' are written as in JSON."""


def routes() -> list[BaseRoute]:
    return [
        Route(PATH, endpoint(_tts), methods=["POST"]),
        Route(TIMESTAMP_PATH, endpoint(_with_timestamp), methods=["POST"]),
    ]


async def _tts(request: Request) -> Response:
    tts = await read_request(request)
    spoken = await speak(request, tts)
    return SpokenResponse(spoken, audio_only, spoken.content_type, _model(request))


async def _with_timestamp(request: Request) -> Response:
    tts = await read_request(request)
    spoken = await speak(request, tts, timestamps=True, dialect="fish_sse")
    return SpokenResponse(spoken, TimestampEvents(), "text/event-stream", _model(request))


def _model(request: Request) -> dict[str, str]:
    """The ``model`` header of a request is not obeyed: this is what speaks."""
    return {"x-shoal-model": header_text(gateway_of(request).engine.info.model)}


async def read_request(request: Request) -> TtsRequest:
    """:raises Refused: 408, 413, 415.
    :raises ProtocolError: a value cannot be used.
    """
    if content_type(request) == MULTIPART:
        fields = form_fields(await read_form(request))
    else:
        fields = await read_fields(request)
    if fields.get("text") is None:
        raise ProtocolError(Code.BAD_REQUEST, "text is required")
    return await off_loop(request, lambda: parse_request(fields))  # recordings may be base64


def form_fields(form: Form) -> Mapping[str, object]:
    """The fields of a request as a form has them: recordings are files called ``references``,
    what is said in them comes in as many ``texts``."""
    fields: dict[str, object] = {}
    for name, values in form.values.items():
        if name == "texts":
            continue
        try:
            fields[name] = values[-1] if name in STRINGS else json.loads(values[-1])
        except (ValueError, RecursionError):
            fields[name] = values[-1]
    recordings = form.files.get("references", [])
    if recordings:
        texts = form.values.get("texts", [])
        if len(texts) != len(recordings):
            raise Refused(Refusal(400, "as many texts as references are required"))
        fields["references"] = [
            {"audio": audio, "text": text} for audio, text in zip(recordings, texts, strict=True)
        ]
    return fields


class TimestampEvents:
    """Writes messages as events, each with the audio since the last and the news of its segment.

    A snapshot waits for the next audio, as on the live endpoint; a segment's last goes at once.
    """

    def __init__(self) -> None:
        self._news: Aligned | None = None
        self._segment: Aligned | None = None

    def __call__(self, message: Audio | Aligned | Finish) -> bytes:
        match message:
            case Audio(audio=audio):
                return self._event(audio)
            case Aligned(final=final):
                self._news = self._segment = message
                return self._event(b"") if final else b""
            case Finish():
                return self._event(b"") if self._news is not None else b""

    def _event(self, audio: bytes) -> bytes:
        event = {
            "audio_base64": binascii.b2a_base64(audio, newline=False).decode(),
            **timestamp_fields(self._segment, self._news),
        }
        self._news = None
        return b"data: " + json.dumps(event, ensure_ascii=False).encode() + b"\n\n"

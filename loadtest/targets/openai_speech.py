"""OpenAI's ``POST /v1/audio/speech``: one request a turn, the whole text at once.

The protocol takes no text piece by piece, so a turn whose text is paced waits for its last
piece: that wait is part of the figure, as it is for the user.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, ClassVar
from urllib.parse import urlsplit

from shoal.loadtest.plan.voices import Voice

from .http_stream import HttpStream
from .target import Audio, Done, Note, TargetOptions, TurnEvent

_RATE = re.compile(r"rate=(\d+)")


class OpenAiSpeech:
    """Also fits the many servers that copy this endpoint. Its pcm is 24 kHz."""

    voice_at_connect: ClassVar[bool] = False
    settings: ClassVar[Mapping[str, str]] = {
        "path": "path of the endpoint when the URL has none (/v1/audio/speech)",
        "voice": "voice when the mix names none (alloy)",
        "request": "JSON merged into the request",
    }

    def __init__(self, options: TargetOptions) -> None:
        self._options = options

    async def connect(self, voice: Voice) -> OpenAiConnection:
        options = self._options
        stream = await HttpStream.open(options.url, options.connect_timeout_s)
        path = urlsplit(options.url).path.rstrip("/")
        request: dict[str, Any] = {
            "model": options.model or "tts-1",
            "voice": options.flag("voice", "alloy"),
            "response_format": options.container,
            **json.loads(options.flag("request", "{}")),
        }
        headers = {
            "authorization": f"Bearer {options.api_key or 'none'}",
            "content-type": "application/json",
        }
        path = path or options.flag("path", "/v1/audio/speech")
        return OpenAiConnection(stream, path, headers, request)


class OpenAiConnection:
    """A kept-alive connection; prepared means connected, there is nothing else to prepare."""

    def __init__(
        self, stream: HttpStream, path: str, headers: Mapping[str, str], request: dict[str, Any]
    ) -> None:
        self._stream = stream
        self._path = path
        self._headers = headers
        self._request = request
        self._text: list[str] = []
        self._reading = False

    @property
    def usable(self) -> bool:
        return self._stream.usable

    async def prepare(self, voice: Voice) -> None:
        if voice.voice_id:
            self._request["voice"] = voice.voice_id
        self._text.clear()
        self._reading = False

    async def send_text(self, text: str) -> None:
        self._text.append(text)

    async def end_text(self) -> None:
        body = json.dumps({**self._request, "input": "".join(self._text)}).encode()
        await self._stream.post(self._path, self._headers, body)

    async def receive(self) -> TurnEvent:
        if not self._reading:
            headers = await self._stream.head()
            self._reading = True
            rate = _RATE.search(headers.get("content-type", ""))
            named = rate.group(1) if rate else headers.get("x-sample-rate", "")
            if named.isdigit():
                return Note(rate=int(named))
        data = await self._stream.body()
        return Done() if data is None else Audio(data)

    async def cut(self) -> bool:
        await self.close()
        return False

    async def close(self) -> None:
        await self._stream.close()

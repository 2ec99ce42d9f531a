"""Other vendors' wires by hand: paths, messages, a socket, and engines that notice more."""

from __future__ import annotations

import asyncio
import base64
import json
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from shoal.engine import api
from shoal.engine.fake import FakeEngine
from shoal.engine.fake_tone import tone

TIMEOUT_S = 30.0
HUGE = 10**400
"""A number that JSON can write and no float holds."""
MULTI = "/v1/text-to-speech/alice/multi-stream-input?output_format=pcm_24000"
SINGLE = "/v1/text-to-speech/alice/stream-input?output_format=pcm_24000"
SPEAK = "/v1/speak?encoding=linear16&sample_rate=24000&model=aura-2-thalia-en"
CARTESIA = "/tts/websocket"
SOUND = {
    "model_id": "sonic-3",
    "voice": {"mode": "id", "id": "alice"},
    "output_format": {"container": "raw", "encoding": "pcm_s16le", "sample_rate": 24_000},
}


class LatinEngine(FakeEngine):
    """Says that its voice reads Latin letters only."""

    @property
    def info(self) -> api.EngineInfo:
        return replace(super().info, latin_only=True)


class RecordingEngine(FakeEngine):
    """Keeps what it was told."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands: list[api.Command] = []

    def submit(self, command: api.Command) -> None:
        self.commands.append(command)
        super().submit(command)

    def said(self) -> list[str]:
        """The text of every stretch between flushes, in order."""
        stretches = [""]
        for command in self.commands:
            match command:
                case api.PushText(text=text):
                    stretches[-1] += text
                case api.Flush() | api.EndText() | api.Cancel() if stretches[-1]:
                    stretches.append("")
                case _:
                    pass
        return [text for text in stretches if text]


class Wire:
    """A socket, its JSON messages, and the pcm among them."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket

    async def send(self, *messages: dict[str, Any]) -> None:
        for message in messages:
            await self.socket.send(json.dumps(message))

    async def next(self) -> dict[str, Any]:
        frame = await asyncio.wait_for(self.socket.recv(), TIMEOUT_S)
        return {"raw": frame} if isinstance(frame, bytes) else json.loads(frame)

    async def until(self, key: str, value: object = True) -> list[dict[str, Any]]:
        """Messages up to the first whose ``key`` is ``value``."""
        messages: list[dict[str, Any]] = []
        while not messages or messages[-1].get(key) != value:
            messages.append(await self.next())
        return messages

    async def close_code(self) -> int:
        try:
            while True:
                await self.next()
        except ConnectionClosed as closed:
            return closed.rcvd.code if closed.rcvd else 1006


@asynccontextmanager
async def wire(server: Any, path: str, **options: Any) -> AsyncIterator[Wire]:
    address = server.http.replace("http", "ws", 1) + path
    async with connect(address, compression=None, close_timeout=1, **options) as socket:
        yield Wire(socket)


def seconds(messages: list[dict[str, Any]], context: str | None = None) -> float:
    """Of the pcm in them, of one context or of all."""
    total = 0
    for message in messages:
        if context in (None, message.get("contextId"), message.get("context_id")):
            data = message.get("audio") or message.get("data") or ""
            total += len(message.get("raw", b"")) + len(base64.b64decode(data))
    return total / 48_000


def spoken_s(*segments: str) -> float:
    return sum(len(tone(text, "", 0, 24_000, 1_200)) for text in segments) / 48_000


def post(server: Any, path: str, body: object, **headers: str) -> tuple[int, Any, bytes]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(server.http + path, data, headers)
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            return answer.status, answer.headers, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers, error.read()


def words(text: str, context: str = "a", **more: object) -> dict[str, object]:
    return {"text": text, "context_id": context, **more}


def request(text: str, context: str = "a", **more: object) -> dict[str, object]:
    return {**SOUND, "transcript": text, "context_id": context, "continue": True, **more}

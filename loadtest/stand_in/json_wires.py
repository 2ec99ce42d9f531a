"""The stand-in behind the two JSON WebSockets: ElevenLabs' and Deepgram's."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from typing import Any
from urllib.parse import parse_qs, urlsplit

from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed

from shoal.loadtest.plan.text import speech_chars

from .lie import End
from .speaking import speak
from .truth import Ledger, Truth, now_s


class JsonWire:
    """Shared by both: text gathers, one turn is spoken at a time, a cut stops it."""

    def __init__(self, socket: ServerConnection, ledger: Ledger, first: Truth) -> None:
        self._socket = socket
        self._ledger = ledger
        self._truth: Truth | None = first
        self._text = ""
        self._speaking: asyncio.Task[None] | None = None
        request = socket.request
        self._query = parse_qs(urlsplit(request.path if request else "").query)

    async def run(self) -> None:
        """Until the client leaves, or a lie ends the connection."""
        try:
            async for message in self._socket:
                await self._take(json.loads(message))
        except ConnectionClosed:
            pass
        finally:
            await self._cut()

    async def _take(self, message: dict[str, Any]) -> None:
        raise NotImplementedError

    async def _send_audio(self, audio: bytes) -> None:
        raise NotImplementedError

    async def _finish(self) -> None:
        raise NotImplementedError

    @property
    def _rate(self) -> int:
        raise NotImplementedError

    def _hear(self, text: str) -> None:
        if self._truth is None:
            self._truth = self._ledger.begin()
        if text.strip() and self._truth.text_s is None:
            self._truth.text_s = now_s()
        self._text += text

    def _begin(self) -> None:
        truth, self._truth = self._truth or self._ledger.begin(), None
        text, self._text = self._text, ""
        self._speaking = asyncio.create_task(self._speak(truth, text))

    async def _cut(self) -> None:
        if self._speaking is not None:
            self._speaking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._speaking

    async def _speak(self, truth: Truth, text: str) -> None:
        with contextlib.suppress(ConnectionClosed):
            await speak(truth, speech_chars(text), "pcm", self._rate, self._send_audio)
            truth.end_s = now_s()
            if truth.lie.end is End.FINISH:
                await self._finish()
            elif truth.lie.end is End.CLOSE:
                await self._socket.close(1011)


class ElevenLabsWire(JsonWire):
    """``multi-stream-input`` and ``stream-input``; a context is a turn."""

    _context = ""

    @property
    def _rate(self) -> int:
        return int(self._query.get("output_format", ["pcm_24000"])[0].rpartition("_")[2])

    async def _take(self, message: dict[str, Any]) -> None:
        self._context = str(message.get("context_id", ""))
        text = str(message.get("text", ""))
        if message.get("close_context") or message.get("text") == "":
            if self._speaking is not None and not self._speaking.done():
                self._ledger.turns[-1].cut_s = now_s()
                await self._cut()
            elif self._text.strip():
                self._begin()
        else:
            self._hear(text)

    async def _send_audio(self, audio: bytes) -> None:
        await self._send({"audio": base64.b64encode(audio).decode("ascii")})

    async def _finish(self) -> None:
        await self._send({"isFinal": True})

    async def _send(self, message: dict[str, Any]) -> None:
        if self._context:
            message["contextId"] = self._context
        await self._socket.send(json.dumps(message))


class DeepgramWire(JsonWire):
    """Speak..., Flush; Clear cuts."""

    @property
    def _rate(self) -> int:
        return int(self._query.get("sample_rate", ["24000"])[0])

    async def _take(self, message: dict[str, Any]) -> None:
        match message.get("type"):
            case "Speak":
                self._hear(str(message["text"]))
            case "Flush":
                self._begin()
            case "Clear":
                self._ledger.turns[-1].cut_s = now_s()
                await self._cut()
                await self._socket.send(json.dumps({"type": "Cleared"}))
            case _:
                pass

    async def _send_audio(self, audio: bytes) -> None:
        await self._socket.send(audio)

    async def _finish(self) -> None:
        await self._socket.send(json.dumps({"type": "Flushed", "sequence_id": 0}))

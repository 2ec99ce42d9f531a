"""The stand-in behind Fish's live protocol: start, text..., stop; then the next start."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any, cast

import msgpack  # pyright: ignore[reportMissingTypeStubs]
from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed

from shoal.loadtest.plan.text import speech_chars

from .lie import End
from .speaking import speak
from .truth import Ledger, Truth, now_s


class FishWire:
    """One connection. The first turn's truth was begun at the handshake."""

    def __init__(self, socket: ServerConnection, ledger: Ledger, first: Truth) -> None:
        self._socket = socket
        self._ledger = ledger
        self._truth: Truth | None = first
        self._request: Mapping[str, Any] = {}
        self._text = ""
        self._speaking: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Until the client leaves, or a lie ends the connection."""
        try:
            async for frame in self._socket:
                event = cast("dict[str, Any]", msgpack.unpackb(cast("bytes", frame)))  # pyright: ignore[reportUnknownMemberType]
                await self._take(event)
        except ConnectionClosed:
            pass
        finally:
            await self._stop_speaking()

    async def _take(self, event: Mapping[str, Any]) -> None:
        match event.get("event"):
            case "start":
                await self._cut()
                self._request = event["request"]
                self._text = ""
            case "text":
                self._hear(str(event["text"]))
            case "stop":
                truth, self._truth = self._truth or self._ledger.begin(), None
                self._speaking = asyncio.create_task(self._speak(truth))
            case _:
                pass

    def _hear(self, text: str) -> None:
        if self._truth is None:
            self._truth = self._ledger.begin()
        if self._truth.text_s is None:
            self._truth.text_s = now_s()
        self._text += text

    async def _cut(self) -> None:
        """A start while speaking: stop, unless this turn's lie is to be deaf for a while."""
        task = self._speaking
        if task is None or task.done():
            return
        truth = self._ledger.turns[-1]
        truth.cut_s = now_s()
        if truth.lie.deaf_s:
            asyncio.get_running_loop().call_later(truth.lie.deaf_s, task.cancel)
        else:
            await self._stop_speaking()

    async def _stop_speaking(self) -> None:
        if self._speaking is not None:
            self._speaking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._speaking

    async def _speak(self, truth: Truth) -> None:
        try:
            await self._speak_turn(truth)
        except ConnectionClosed:
            pass

    async def _speak_turn(self, truth: Truth) -> None:
        lie, request = truth.lie, self._request
        if lie.end is not End.BUSY:
            await speak(
                truth,
                speech_chars(self._text),
                str(request.get("format", "pcm")),
                int(request.get("sample_rate") or 44100),
                self._send_audio,
                int(request.get("max_new_tokens") or 0),
            )
        truth.end_s = now_s()
        match lie.end:
            case End.FINISH:
                finish: dict[str, Any] = {"event": "finish", "reason": "stop"}
                if lie.declare_length:
                    finish["audio_ms"] = truth.declared_s * 1000
                if lie.stages:
                    finish["stages"] = dict(lie.stages)
                await self._send(finish)
            case End.ERROR:
                await self._send({"event": "error", "error": "planted failure"})
                await self._send({"event": "finish", "reason": "error"})
            case End.BUSY:
                await self._send({"event": "error", "error": "no room", "max_concurrency": 1})
                await self._send({"event": "finish", "reason": "error"})
                await self._socket.close(1013)
            case End.CLOSE:
                await self._socket.close(1011)
            case End.HANG:
                pass

    async def _send_audio(self, audio: bytes) -> None:
        await self._send({"event": "audio", "audio": audio})

    async def _send(self, event: Mapping[str, Any]) -> None:
        await self._socket.send(cast("bytes", msgpack.packb(event)))  # pyright: ignore[reportUnknownMemberType]

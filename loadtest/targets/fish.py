"""Fish Audio's live protocol, which shoal speaks too: MessagePack maps over a WebSocket.

The frames are written here by hand, so that measuring another server does not depend on ours.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Mapping
from typing import Any, ClassVar, cast

import msgpack  # pyright: ignore[reportMissingTypeStubs]

from shoal.loadtest.measure.timeline import Ending
from shoal.loadtest.plan.voices import Voice

from .target import Audio, Done, Note, TargetOptions, TurnEvent, TurnOver
from .web_socket import WebSocket, as_websocket

_CLOSE_AFTER_ERROR_S = 0.5
_BUSY_WORDS = ("capacity", "concurren", "overload", "busy", "slot")


class Fish:
    """``GET /v1/tts/live``. Where the server closes after a turn, the next one reconnects."""

    voice_at_connect: ClassVar[bool] = False
    settings: ClassVar[Mapping[str, str]] = {
        "path": "path of the endpoint when the URL has none (/v1/tts/live)",
        "latency": "low, balanced or normal (low)",
        "flush": "none, end (before the stop), or piece (after every text sent) (none)",
        "cut": "barge-in by 'close' (reconnects), or by a new 'start' on the socket (close)",
        "max_new_tokens": "most frames for a sentence, as --max-frames (no limit)",
        "request": "JSON merged into start.request",
    }
    cut_default: ClassVar[str] = "close"

    def __init__(self, options: TargetOptions) -> None:
        self._options = options
        self._url = _with_path(options.url, options.flag("path", "/v1/tts/live"))
        self._request: dict[str, Any] = {
            "text": "",
            "format": options.container,
            "sample_rate": options.rate,
            "latency": options.flag("latency", "low"),
            **_capped(options.flag("max_new_tokens", "")),
            **json.loads(options.flag("request", "{}")),
        }

    async def connect(self, voice: Voice) -> FishConnection:
        options = self._options
        headers = {"Authorization": f"Bearer {options.api_key or 'none'}"}
        if options.model:
            headers["model"] = options.model
        socket = await WebSocket.open(self._url, headers, options.connect_timeout_s)
        return FishConnection(
            socket,
            self._request,
            flush=options.flag("flush", "none"),
            cut_by_start=options.flag("cut", self.cut_default) == "start",
        )


class Shoal(Fish):
    """The same wire; a barge-in keeps the socket, since shoal takes a new start at any time."""

    cut_default: ClassVar[str] = "start"


class FishConnection:
    """One live socket: start, text..., stop, then finish, and the next start."""

    def __init__(
        self, socket: WebSocket, request: Mapping[str, Any], flush: str, cut_by_start: bool
    ) -> None:
        self._socket = socket
        self._request = dict(request)
        self._flush = flush
        self._cut_by_start = cut_by_start
        self._error = ""
        self._full = False
        self._heard: deque[TurnEvent] = deque()

    @property
    def usable(self) -> bool:
        return self._socket.usable

    async def prepare(self, voice: Voice) -> None:
        self._error, self._full = "", False
        self._heard.clear()
        request = dict(self._request)
        if voice.voice_id:
            request["reference_id"] = voice.voice_id
        elif voice.reference_audio:
            request["references"] = [{"audio": voice.reference_audio, "text": voice.reference_text}]
        await self._send({"event": "start", "request": request})

    async def send_text(self, text: str) -> None:
        await self._send({"event": "text", "text": text})
        if self._flush == "piece":
            await self._send({"event": "flush"})

    async def end_text(self) -> None:
        if self._flush == "end":
            await self._send({"event": "flush"})
        await self._send({"event": "stop"})

    async def receive(self) -> TurnEvent:
        while not self._heard:
            event = await self._event()
            note = _note(event)
            match event.get("event"):
                case "audio":
                    if data := event.get("audio"):
                        self._heard.append(Audio(data))
                case "finish" if event.get("reason") == "error":
                    raise await self._failure(str(event.get("message", "")))
                case "finish":
                    self._heard.extend((note, Done()) if note else (Done(),))
                    continue
                case "error":
                    self._error = str(event.get("error", ""))
                    self._full = self._full or "max_concurrency" in event
                case _:
                    pass
            if note is not None:
                self._heard.append(note)
        return self._heard.popleft()

    async def cut(self) -> bool:
        if self._cut_by_start:
            await self._send({"event": "start", "request": self._request})
            return True
        await self._send({"event": "stop"})
        await self.close()
        return False

    async def close(self) -> None:
        await self._socket.close()

    async def _send(self, event: dict[str, Any]) -> None:
        packed = cast("bytes", msgpack.packb(event))  # pyright: ignore[reportUnknownMemberType]
        await self._socket.send(packed)

    async def _event(self) -> dict[str, Any]:
        frame = await self._socket.receive()
        if isinstance(frame, str):
            raise TurnOver(Ending.FAILED, "a text frame, where MessagePack is due")
        try:
            event = cast("object", msgpack.unpackb(frame))  # pyright: ignore[reportUnknownMemberType]
        except ValueError as bad:
            raise TurnOver(Ending.FAILED, "a frame that is not MessagePack") from bad
        if not isinstance(event, dict):
            raise TurnOver(Ending.FAILED, "a frame that is not a map")
        return cast("dict[str, Any]", event)

    async def _failure(self, message: str) -> TurnOver:
        """Refused or failed? The words may tell; so may the close that follows an overload."""
        reason = self._error or message or "no reason given"
        if self._full or any(word in reason.lower() for word in _BUSY_WORDS):
            return TurnOver(Ending.REFUSED, "finish with error: busy")
        try:
            async with asyncio.timeout(_CLOSE_AFTER_ERROR_S):
                while True:
                    await self._socket.receive()
        except TimeoutError:
            return TurnOver(Ending.FAILED, "finish with error")
        except TurnOver as over:
            ending = over.ending if over.ending is Ending.REFUSED else Ending.FAILED
            return TurnOver(ending, "finish with error")


def _capped(frames: str) -> dict[str, int]:
    """:raises ValueError: in words, when it is no number of frames."""
    if not frames:
        return {}
    if not frames.isdecimal() or not int(frames):
        raise ValueError(f"max_new_tokens={frames}: write a whole number of frames")
    return {"max_new_tokens": int(frames)}


def _note(event: Mapping[str, Any]) -> Note | None:
    """Timestamps and lengths that a server may put on any event, under these names."""
    stages: dict[str, float] = {}
    if isinstance(event.get("stages"), dict):
        for name, value in cast("dict[str, Any]", event["stages"]).items():
            if isinstance(value, int | float):
                stages[str(name)] = float(value)
    rate = event.get("sample_rate")
    rate = rate if isinstance(rate, int) else None
    audio_s = _declared_s(event)
    return Note(stages, rate, audio_s) if stages or rate or audio_s is not None else None


def _declared_s(event: Mapping[str, Any]) -> float | None:
    """Audio so far, by the server's count: ``audio_ms``, or the end of the last alignment."""
    if isinstance(audio_ms := event.get("audio_ms"), int | float):
        return audio_ms / 1000
    if isinstance(alignment := event.get("alignment"), dict):
        length_s = cast("dict[str, Any]", alignment).get("audio_duration")
        offset_s = event.get("chunk_audio_offset_sec", 0.0)
        if isinstance(length_s, int | float) and isinstance(offset_s, int | float):
            return float(length_s + offset_s)
    return None


def _with_path(url: str, path: str) -> str:
    url = as_websocket(url)
    host = url.split("://", 1)[-1]
    return url if "/" in host.rstrip("/") else url.rstrip("/") + path

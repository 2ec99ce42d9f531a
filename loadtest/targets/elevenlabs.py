"""ElevenLabs' WebSockets: ``multi-stream-input`` (a context a turn) and ``stream-input``."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from typing import Any, ClassVar, cast
from urllib.parse import urlencode

from shoal.loadtest.measure.timeline import Ending
from shoal.loadtest.plan.voices import Voice

from .target import Audio, Done, TargetOptions, TurnEvent, TurnOver
from .web_socket import WebSocket, as_websocket

_BUSY_WORDS = ("concurren", "too_many", "busy", "rate_limit", "quota")


class ElevenLabs:
    """The voice is part of the path; with multi-stream-input turns share the socket."""

    voice_at_connect: ClassVar[bool] = True
    settings: ClassVar[Mapping[str, str]] = {
        "mode": "multi-stream-input or stream-input (multi-stream-input)",
        "voice": "voice id when the mix names none",
        "auto_mode": "true or false (true)",
    }

    def __init__(self, options: TargetOptions) -> None:
        self._options = options
        self._mode = options.flag("mode", "multi-stream-input")

    async def connect(self, voice: Voice) -> ElevenLabsConnection:
        options = self._options
        container = "mp3_44100_128" if options.container == "mp3" else f"pcm_{options.rate}"
        query = {
            "output_format": container,
            "auto_mode": options.flag("auto_mode", "true"),
            **({"model_id": options.model} if options.model else {}),
        }
        base = as_websocket(options.url)
        voice_id = voice.voice_id or options.flag("voice", "21m00Tcm4TlvDq8ikWAM")
        url = f"{base.rstrip('/')}/v1/text-to-speech/{voice_id}/{self._mode}?{urlencode(query)}"
        headers = {"xi-api-key": options.api_key} if options.api_key else {}
        socket = await WebSocket.open(url, headers, options.connect_timeout_s)
        return ElevenLabsConnection(socket, multi=self._mode == "multi-stream-input")


class ElevenLabsConnection:
    """In multi mode each turn is a context; in single mode the socket ends with its turn."""

    def __init__(self, socket: WebSocket, multi: bool) -> None:
        self._socket = socket
        self._multi = multi
        self._turns = 0
        self._spent = False
        self._heard: list[TurnEvent] = []

    @property
    def usable(self) -> bool:
        return self._socket.usable and not self._spent

    async def prepare(self, voice: Voice) -> None:
        self._turns += 1
        self._heard.clear()
        await self._send({"text": " "})

    async def send_text(self, text: str) -> None:
        await self._send({"text": text if text.endswith(" ") else text + " "})

    async def end_text(self) -> None:
        if not self._multi:
            self._spent = True
            await self._send({"text": ""})
            return
        await self._send({"flush": True})
        await self._send({"close_context": True})

    async def receive(self) -> TurnEvent:
        while not self._heard:
            event = await self._event()
            if "error" in event or "code" in event:
                reason = str(event.get("error", event.get("code")))
                busy = any(word in reason.lower() for word in _BUSY_WORDS)
                raise TurnOver(Ending.REFUSED if busy else Ending.FAILED, "error message")
            if self._multi and event.get("contextId", event.get("context_id")) != self._context:
                continue
            if data := event.get("audio"):
                self._heard.append(Audio(_decoded(data)))
            if event.get("isFinal") or event.get("is_final"):
                self._heard.append(Done())
        return self._heard.pop(0)

    async def cut(self) -> bool:
        if not self._multi:
            await self.close()
            return False
        await self._send({"close_context": True})
        return True

    async def close(self) -> None:
        await self._socket.close()

    @property
    def _context(self) -> str:
        return f"turn-{self._turns}"

    async def _send(self, message: dict[str, Any]) -> None:
        if self._multi:
            message["context_id"] = self._context
        await self._socket.send(json.dumps(message))

    async def _event(self) -> dict[str, Any]:
        try:
            event: object = json.loads(await self._socket.receive())
        except ValueError as bad:
            raise TurnOver(Ending.FAILED, "a message that is not JSON") from bad
        if not isinstance(event, dict):
            raise TurnOver(Ending.FAILED, "a message that is not an object")
        return cast("dict[str, Any]", event)


def _decoded(data: object) -> bytes:
    try:
        return base64.b64decode(str(data), validate=True)
    except binascii.Error as bad:
        raise TurnOver(Ending.FAILED, "audio that is not base64") from bad

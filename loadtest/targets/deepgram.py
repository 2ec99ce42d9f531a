"""Deepgram's ``/v1/speak`` WebSocket: JSON control messages, raw binary audio."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, ClassVar, cast
from urllib.parse import urlencode

from shoal.loadtest.measure.timeline import Ending
from shoal.loadtest.plan.voices import Voice

from .target import Audio, Done, TargetOptions, TurnEvent, TurnOver
from .web_socket import WebSocket, as_websocket


class Deepgram:
    """The voice is the model of the query, so it is chosen at connect. Audio is linear16."""

    voice_at_connect: ClassVar[bool] = True
    settings: ClassVar[Mapping[str, str]] = {
        "path": "path of the endpoint (/v1/speak)",
    }

    def __init__(self, options: TargetOptions) -> None:
        if options.container != "pcm":
            raise ValueError("deepgram streams raw audio only: use --format pcm")
        self._options = options

    async def connect(self, voice: Voice) -> DeepgramConnection:
        options = self._options
        query = {
            "model": voice.voice_id or options.model or "aura-2-thalia-en",
            "encoding": "linear16",
            "sample_rate": options.rate,
        }
        base = as_websocket(options.url)
        url = f"{base.rstrip('/')}{options.flag('path', '/v1/speak')}?{urlencode(query)}"
        headers = {"Authorization": f"Token {options.api_key}"} if options.api_key else {}
        return DeepgramConnection(await WebSocket.open(url, headers, options.connect_timeout_s))


class DeepgramConnection:
    """Speak..., Flush, then Flushed ends the turn; the socket serves the next one."""

    def __init__(self, socket: WebSocket) -> None:
        self._socket = socket
        self._clearing = False
        self._skipping = False

    @property
    def usable(self) -> bool:
        return self._socket.usable

    async def prepare(self, voice: Voice) -> None:
        """Nothing to say before there is text; what a cut turn still sends will be skipped."""
        self._skipping = self._clearing

    async def send_text(self, text: str) -> None:
        await self._send({"type": "Speak", "text": text})

    async def end_text(self) -> None:
        await self._send({"type": "Flush"})

    async def receive(self) -> TurnEvent:
        while True:
            message = await self._socket.receive()
            if isinstance(message, bytes):
                if self._skipping:
                    continue
                return Audio(message)
            match _parsed(message).get("type"):
                case "Cleared":
                    skipped = self._skipping
                    self._clearing = self._skipping = False
                    if not skipped:
                        return Done()
                case "Flushed" if not self._skipping:
                    return Done()
                case "Error":
                    raise TurnOver(Ending.FAILED, "error message")
                case _:
                    pass

    async def cut(self) -> bool:
        self._clearing = True
        await self._send({"type": "Clear"})
        return True

    async def close(self) -> None:
        await self._socket.close()

    async def _send(self, message: dict[str, Any]) -> None:
        await self._socket.send(json.dumps(message))


def _parsed(message: str) -> dict[str, Any]:
    try:
        parsed: object = json.loads(message)
    except ValueError as bad:
        raise TurnOver(Ending.FAILED, "a text message that is not JSON") from bad
    if not isinstance(parsed, dict):
        raise TurnOver(Ending.FAILED, "a text message that is not an object")
    return cast("dict[str, Any]", parsed)

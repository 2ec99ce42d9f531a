"""Fish's live protocol for browsers: the same events as JSON in text frames, audio in binary ones.

A binary frame from the server is the next bytes of the turn's audio and nothing else; one from
the client is a MessagePack event, as on a socket that did not choose JSON. Pure; any thread.
"""

from __future__ import annotations

import json
from typing import Final

from shoal.proto.codec import server_fields
from shoal.proto.messages import Audio, ServerMessage
from shoal.realtime.link import Payload

from .fish_wire import FishWire

NAME: Final = "fish_json"


class FishJson(FishWire):
    """One session's. It always says what it is ready to send: raw audio has no label."""

    name = NAME

    def __init__(self, timestamps: bool = False) -> None:
        super().__init__(ready=True, timestamps=timestamps)

    def encode(self, message: ServerMessage, time_ms: int | None) -> list[Payload]:
        if isinstance(message, Audio):
            return [message.audio]
        return [json.dumps(server_fields(message, time_ms, self.context_id), ensure_ascii=False)]

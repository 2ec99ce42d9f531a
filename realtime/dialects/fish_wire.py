"""``FishWire``: what the variants of Fish's live protocol share. Pure; any thread.

The events are the same in MessagePack and in JSON, whichever the client sends; what differs is
how the server writes. Remembers the id that the client gave its turn.
"""

from __future__ import annotations

from dataclasses import replace

from shoal.proto.codec import decode_client, decode_client_json, encode_server
from shoal.proto.messages import ClientId, ClientMessage, ServerMessage, Start
from shoal.realtime.link import Dialect, Frame, Payload


class FishWire:
    """``/v1/tts/live``: answers in MessagePack. One session's.

    ``ready``, ``timestamps``: every start asks for them, whether it says so or not.
    """

    name = "fish_live"

    def __init__(self, ready: bool = False, timestamps: bool = False) -> None:
        self.context_id: ClientId | None = None
        self._ready = ready
        self._timestamps = timestamps

    def dialect(self) -> Dialect:
        return Dialect(self.name, self.decode, self.encode, parse)

    def decode(self, frame: Frame) -> ClientMessage:
        """:raises ProtocolError: it is no message."""
        message = parse(frame)
        if isinstance(message, Start):
            self.begin()
            self.context_id = message.context_id
            message = replace(
                message,
                ready=message.ready or self._ready,
                timestamps=message.timestamps or self._timestamps,
            )
        return message

    def begin(self) -> None:
        """A turn starts: what was remembered of the last one is void."""

    def encode(self, message: ServerMessage, time_ms: int | None) -> list[Payload]:
        return [encode_server(message, time_ms, self.context_id)]


def parse(frame: Frame) -> ClientMessage:
    """Bytes are MessagePack, text is JSON.

    :raises ProtocolError: it is no message.
    """
    match frame:
        case bytes():
            return decode_client(frame)
        case str():
            return decode_client_json(frame)
        case _:
            return frame

"""Fish Audio's live wire: MessagePack maps <-> messages. Pure; any thread.

Decoding arbitrary bytes gives a message or a ``ProtocolError`` and nothing else. Text that is not
UTF-8 (a lone surrogate, a torn character) becomes U+FFFD rather than an error. Containers are
counted and bounded while they are read, so that no small message expands into a large object.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, cast

import msgpack  # pyright: ignore[reportMissingTypeStubs]

from .errors import Code, ProtocolError
from .messages import (
    MAX_MESSAGE_BYTES,
    MAX_TEXT_CHARS,
    Aligned,
    Audio,
    Cancelled,
    ClientMessage,
    Error,
    Finish,
    Flush,
    Flushed,
    Log,
    ServerMessage,
    Start,
    Stop,
    Text,
    Unknown,
)
from .request import parse_request

MAX_CONTAINERS: Final = 1024
MAX_CONTAINER_LENGTH: Final = 256
MAX_TEXT_BYTES: Final = 4 * MAX_TEXT_CHARS


class _Containers:
    """Counts what one message unpacks to. Keys that are not strings are dropped."""

    def __init__(self) -> None:
        self._left = MAX_CONTAINERS

    def list(self, items: list[object]) -> list[object]:
        self._count()
        return items

    def map(self, pairs: Iterable[tuple[object, object]]) -> dict[str, object]:
        self._count()
        return {key: value for key, value in pairs if isinstance(key, str)}

    def _count(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise ValueError("too many containers")


def _unpack(data: bytes) -> object:
    """:raises ProtocolError: ``TOO_BIG`` or ``UNDECODABLE``."""
    if len(data) > MAX_MESSAGE_BYTES:
        raise ProtocolError(Code.TOO_BIG, f"message over {MAX_MESSAGE_BYTES >> 20} MiB")
    containers = _Containers()
    try:
        return cast(
            object,
            msgpack.unpackb(  # pyright: ignore[reportUnknownMemberType]
                data,
                raw=False,
                unicode_errors="replace",
                strict_map_key=False,
                list_hook=containers.list,
                object_pairs_hook=containers.map,
                max_str_len=MAX_MESSAGE_BYTES,
                max_bin_len=MAX_MESSAGE_BYTES,
                max_array_len=MAX_CONTAINER_LENGTH,
                max_map_len=MAX_CONTAINER_LENGTH,
                max_ext_len=MAX_CONTAINER_LENGTH,
            ),
        )
    # All of msgpack's own are ValueErrors; odd keys and timestamps raise the other two.
    except (ValueError, TypeError, OverflowError):
        raise ProtocolError(Code.UNDECODABLE, "message is not valid MessagePack") from None


def decode_client(data: bytes) -> ClientMessage:
    """One binary frame from a client.

    :raises ProtocolError: ``UNDECODABLE``, ``TOO_BIG``, ``MALFORMED`` or ``BAD_REQUEST``.
    """
    unpacked = _unpack(data)
    if not isinstance(unpacked, dict):
        raise ProtocolError(Code.MALFORMED, "message must be a map")
    return client_message(cast("dict[str, object]", unpacked))


def client_message(fields: Mapping[str, object]) -> ClientMessage:
    """A decoded map, from whatever encoding, as a message.

    :raises ProtocolError: ``TOO_BIG``, ``MALFORMED`` or ``BAD_REQUEST``.
    """
    match fields.get("event"):
        case "start":
            request = fields.get("request")
            if request is None:
                request = {}
            if not isinstance(request, dict):
                raise ProtocolError(Code.BAD_REQUEST, "request must be a map")
            return Start(parse_request(cast("dict[str, object]", request)))
        case "text":
            text = fields.get("text")
            if text is None:
                text = ""
            if not isinstance(text, str):
                raise ProtocolError(Code.MALFORMED, "text must be a string")
            if len(text) > MAX_TEXT_CHARS:
                raise ProtocolError(
                    Code.TOO_BIG, f"text is longer than {MAX_TEXT_CHARS} characters"
                )
            return Text(text)
        case "flush":
            return Flush()
        case "stop":
            return Stop()
        case str():
            return Unknown()
        case _:
            raise ProtocolError(Code.MALFORMED, "message has no event")


def encode_server(message: ServerMessage, time_ms: int | None = None) -> bytes:
    """``time_ms`` is the time since the turn's start, on ``audio`` and ``finish``."""
    fields: dict[str, object]
    match message:
        case Audio(audio=audio):
            fields = {"event": "audio", "audio": audio}
        case Finish(reason=reason, message=text):
            fields = {"event": "finish", "reason": reason}
            if text:
                fields["message"] = text
        case Error(error=text, max_concurrency=most):
            fields = {"event": "error", "error": text}
            if most is not None:
                fields["max_concurrency"] = most
        case Log(message=text):
            fields = {"event": "log", "message": text}
        case Flushed(id=mark, audio_s=audio_s):
            fields = {"event": "flushed", "id": mark, "audio_ms": round(1000 * audio_s)}
        case Cancelled(audio_s=audio_s):
            fields = {"event": "cancelled", "audio_ms": round(1000 * audio_s)}
        case Aligned():
            raise ValueError("alignments travel on the with-timestamp endpoint only")
    if time_ms is not None and isinstance(message, (Audio, Finish)):
        fields["time"] = time_ms
    return _pack(fields)


def encode_start(request: Mapping[str, object]) -> bytes:
    """A client's ``start``; ``request`` is sent as it is."""
    return _pack({"event": "start", "request": dict(request)})


def encode_text(text: str) -> bytes:
    return _pack({"event": "text", "text": text})


def encode_flush() -> bytes:
    return _pack({"event": "flush"})


def encode_stop() -> bytes:
    return _pack({"event": "stop"})


def decode_server(data: bytes) -> ServerMessage | None:
    """One binary frame from a server; ``None`` for an event that this version does not know.

    :raises ProtocolError: ``UNDECODABLE``, ``TOO_BIG`` or ``MALFORMED``.
    """
    unpacked = _unpack(data)
    if not isinstance(unpacked, dict):
        raise ProtocolError(Code.MALFORMED, "message must be a map")
    fields = cast("dict[str, object]", unpacked)
    event, audio, reason = fields.get("event"), fields.get("audio"), fields.get("reason")
    if event == "audio" and isinstance(audio, bytes):
        return Audio(audio)
    if event == "finish" and isinstance(reason, str):
        return Finish("error" if reason == "error" else "stop", _string(fields, "message"))
    if event == "error":
        most = fields.get("max_concurrency")
        return Error(_string(fields, "error"), most if isinstance(most, int) else None)
    if event == "log":
        return Log(_string(fields, "message"))
    if isinstance(event, str) and event not in ("audio", "finish"):
        return None
    raise ProtocolError(Code.MALFORMED, "message lacks its event or the event's field")


def _string(fields: Mapping[str, object], key: str) -> str:
    value = fields.get(key)
    return value if isinstance(value, str) else ""


def _pack(fields: Mapping[str, object]) -> bytes:
    return cast(
        bytes,
        msgpack.packb(fields, unicode_errors="replace"),  # pyright: ignore[reportUnknownMemberType]
    )

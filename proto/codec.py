"""Fish Audio's live wire: MessagePack (or JSON) maps <-> messages. Pure; any thread.

Decoding arbitrary bytes gives a message or a ``ProtocolError`` and nothing else. Text that is not
UTF-8 (a lone surrogate, a torn character) becomes U+FFFD rather than an error. Containers are
counted and bounded while they are read, so that no small message expands into a large object.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Final, cast

import msgpack  # pyright: ignore[reportMissingTypeStubs]

from .errors import Code, ProtocolError
from .json_text import TooMuchJson, loads
from .messages import (
    MAX_ID_CHARS,
    MAX_MESSAGE_BYTES,
    MAX_TEXT_CHARS,
    Aligned,
    Audio,
    Cancel,
    Cancelled,
    ClientId,
    ClientMessage,
    Error,
    Finish,
    Flush,
    Flushed,
    Heard,
    Log,
    Played,
    Ready,
    ServerMessage,
    Start,
    Stop,
    Text,
    Unknown,
)
from .request import parse_request

MAX_CONTAINERS: Final = 1024
MAX_CONTAINER_LENGTH: Final = 256
MAX_ID_NUMBER: Final = 1 << 53


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
    return client_message(decode_map(data))


def decode_map(data: bytes) -> dict[str, object]:
    """One message from a client as a plain map, its size and its containers bounded.

    :raises ProtocolError: ``UNDECODABLE``, ``TOO_BIG`` or ``MALFORMED``.
    """
    unpacked = _unpack(data)
    if not isinstance(unpacked, dict):
        raise ProtocolError(Code.MALFORMED, "message must be a map")
    return cast("dict[str, object]", unpacked)


def decode_client_json(frame: str) -> ClientMessage:
    """One text frame from a client: the same map as JSON.

    :raises ProtocolError: ``TOO_BIG``, ``MALFORMED`` or ``BAD_REQUEST``.
    """
    if len(frame) > MAX_MESSAGE_BYTES:
        raise ProtocolError(Code.TOO_BIG, "message is too big")
    try:
        fields = loads(frame.encode("utf-8", "replace"))
    except TooMuchJson:
        raise ProtocolError(Code.TOO_BIG, "message is too big") from None
    except ValueError:
        raise ProtocolError(Code.MALFORMED, "text frame is not valid JSON") from None
    if not isinstance(fields, dict):
        raise ProtocolError(Code.MALFORMED, "message must be a map")
    return client_message(cast("dict[str, object]", fields))


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
            return Start(
                parse_request(cast("dict[str, object]", request)),
                timestamps=fields.get("timestamps") is True,
                ready=fields.get("ready") is True,
                context_id=_id(fields, "context_id", Code.BAD_REQUEST),
            )
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
            return Flush(_id(fields, "id", Code.MALFORMED))
        case "stop":
            return Stop()
        case "cancel":
            return Cancel(_seconds(fields, "audio_ms"))
        case "played":
            played_s = _seconds(fields, "audio_ms")
            if played_s is None:
                raise ProtocolError(Code.MALFORMED, "played has no audio_ms")
            return Played(played_s)
        case str():
            return Unknown()
        case _:
            raise ProtocolError(Code.MALFORMED, "message has no event")


def _id(fields: Mapping[str, object], key: str, code: Code) -> ClientId | None:
    value = fields.get(key)
    if value is None or (isinstance(value, str) and len(value) <= MAX_ID_CHARS):
        return value
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) <= MAX_ID_NUMBER:
        return value
    raise ProtocolError(code, f"{key} must be a string of at most {MAX_ID_CHARS} or an integer")


def _seconds(fields: Mapping[str, object], key: str) -> float | None:
    """A time in milliseconds, as seconds."""
    value = fields.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
        raise ProtocolError(Code.MALFORMED, f"{key} must be a number of milliseconds")
    return min(value, MAX_ID_NUMBER) / 1000


def server_fields(
    message: ServerMessage, time_ms: int | None = None, context_id: ClientId | None = None
) -> dict[str, object]:
    """The map of a message. ``time_ms`` is the time since the turn's start, on ``audio`` and
    ``finish``; ``context_id`` is on all that belongs to a turn."""
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
        case Ready():
            fields = {
                "event": "ready",
                "format": message.format,
                "sample_rate": message.sample_rate,
                "model": message.model,
                "version": message.version,
            }
        case Flushed(id=mark, audio_s=audio_s):
            fields = {"event": "flushed", "id": mark, "audio_ms": _ms(audio_s)}
        case Cancelled(audio_s=audio_s, heard=heard):
            fields = {"event": "cancelled", "audio_ms": _ms(audio_s)}
            if heard is not None:
                fields["heard"] = {"text": heard.text, "chars": heard.chars}
        case Aligned():
            fields = {
                "event": "aligned",
                "segment": message.segment,
                "text": message.text,
                "offset_s": round(message.offset_s, 4),
                "audio_s": round(message.audio_s, 4),
                "words": [
                    {
                        "text": word.text,
                        "start_s": round(word.start_s, 4),
                        "end_s": round(word.end_s, 4),
                        "begin": word.begin,
                        "end": word.end,
                    }
                    for word in message.words
                ],
                "final": message.final,
                "chars": message.chars,
                "estimated": True,
            }
    if time_ms is not None and isinstance(message, (Audio, Finish)):
        fields["time"] = time_ms
    if context_id is not None and not isinstance(message, (Error, Log)):
        fields["context_id"] = context_id
    return fields


def _ms(seconds: float) -> int:
    return round(1000 * seconds)


def encode_server(
    message: ServerMessage, time_ms: int | None = None, context_id: ClientId | None = None
) -> bytes:
    """:func:`server_fields` as a binary frame."""
    return pack(server_fields(message, time_ms, context_id))


def encode_start(request: Mapping[str, object]) -> bytes:
    """A client's ``start``; ``request`` is sent as it is."""
    return pack({"event": "start", "request": dict(request)})


def encode_text(text: str) -> bytes:
    return pack({"event": "text", "text": text})


def encode_flush(mark: ClientId | None = None) -> bytes:
    return pack({"event": "flush"} if mark is None else {"event": "flush", "id": mark})


def encode_cancel() -> bytes:
    return pack({"event": "cancel"})


def encode_stop() -> bytes:
    return pack({"event": "stop"})


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
    mark, audio_s = fields.get("id"), _from_ms(fields.get("audio_ms"))
    if event == "flushed" and isinstance(mark, (str, int)):
        return Flushed(mark, audio_s)
    if event == "cancelled":
        return Cancelled(audio_s, _heard(fields.get("heard")))
    if isinstance(event, str) and event not in ("audio", "finish"):
        return None
    raise ProtocolError(Code.MALFORMED, "message lacks its event or the event's field")


def _from_ms(value: object) -> float:
    return value / 1000 if isinstance(value, (int, float)) and abs(value) < MAX_ID_NUMBER else 0.0


def _heard(value: object) -> Heard | None:
    if not isinstance(value, dict):
        return None
    fields = cast("dict[str, object]", value)
    chars = fields.get("chars")
    return Heard(_string(fields, "text"), chars if isinstance(chars, int) else 0)


def _string(fields: Mapping[str, object], key: str) -> str:
    value = fields.get(key)
    return value if isinstance(value, str) else ""


def pack(fields: Mapping[str, object]) -> bytes:
    """A map as one binary frame."""
    return cast(
        bytes,
        msgpack.packb(fields, unicode_errors="replace"),  # pyright: ignore[reportUnknownMemberType]
    )

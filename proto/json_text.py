"""JSON from clients -> plain values, whose strings may be megabytes of base64. Pure; any thread.

What a message may unpack to is bounded before it is parsed. One call of the C parser holds up every
thread of the process for as long as it runs, so long recordings are lifted out of the text first
and go past it in pieces.
"""

from __future__ import annotations

import io
import json
import re
import secrets
from collections.abc import Mapping
from typing import Final, cast

MAX_JSON_MARKUP: Final = 64 << 10
"""Most bytes of a JSON text outside of its strings."""
MAX_JSON_BYTES: Final = 16 << 20
"""Most bytes of a JSON text beside its recordings."""
MAX_QUOTES: Final = 1 << 20
"""How far recordings are looked for."""
LONG_BYTES: Final = 64 << 10
PIECE_BYTES: Final = 256 << 10
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
_BASE64 = re.compile(rb"(?:[A-Za-z0-9+/=_-]++|\\/)*+")
_BEFORE_STRING = b" \t\r\n[{,:"


class TooMuchJson(ValueError):
    """It would unpack to too much."""


def loads(text: bytes) -> object:
    """What a JSON text says, without lone surrogates, which JSON can write and UTF-8 cannot.

    :raises TooMuchJson: it would unpack to too much.
    :raises ValueError: it is no JSON.
    """
    mark, lifted = secrets.token_hex(16), dict[str, str]()
    rest = _lift(text, mark, lifted) if len(text) > LONG_BYTES else text
    if len(rest) > MAX_JSON_BYTES or _has_too_much_markup(rest):
        raise TooMuchJson("too much JSON")
    try:
        return _whole(cast(object, json.loads(rest)), lifted)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _lift(text: bytes, mark: str, lifted: dict[str, str]) -> bytes:
    """``text`` with a name beginning with ``mark`` in place of each long string that could be
    base64, which ``lifted`` then has under that name.

    Outside of strings so much of that alphabet, with quotes around it, is no JSON, and it is none
    with a name there either.
    """
    rest, done = io.BytesIO(), 0
    begin = text.find(b'"')
    for _ in range(MAX_QUOTES):
        end = text.find(b'"', begin + 1) if begin >= 0 else -1
        if end < 0:
            break
        if end - begin > LONG_BYTES and text[begin - 1 : begin] in _BEFORE_STRING:
            found = _base64_in(text, begin + 1, end)
            if found is not None:
                name = f"{mark}{len(lifted)}"
                lifted[name] = found
                rest.write(memoryview(text)[done : begin + 1])
                rest.write(name.encode())
                done = end
        begin = end
    rest.write(memoryview(text)[done:])
    return rest.getvalue()


def _base64_in(text: bytes, begin: int, end: int) -> str | None:
    """That part of a text, unless it has other characters. Some escape the slash."""
    pieces: list[str] = []
    while begin < end:
        upto = min(begin + PIECE_BYTES, end)
        upto += text[upto - 1 : upto + 1] == b"\\/"
        if _BASE64.fullmatch(text, begin, upto) is None:
            return None
        pieces.append(text[begin:upto].replace(b"\\/", b"/").decode("ascii"))
        begin = upto
    return "".join(pieces)


def _has_too_much_markup(text: bytes) -> bool:
    if len(text) <= MAX_JSON_MARKUP:
        return False
    markup = at = 0
    for string in _STRING.finditer(text):
        markup += max(1, string.start() - at)  # there are no strings side by side
        at = string.end()
        if markup > MAX_JSON_MARKUP:
            return True
    return markup + len(text) - at > MAX_JSON_MARKUP


def _whole(value: object, lifted: Mapping[str, str]) -> object:
    match value:
        case str():
            return _text(value, lifted)
        case list():
            return [_whole(item, lifted) for item in cast("list[object]", value)]
        case dict():
            fields = cast("dict[str, object]", value)
            return {_text(key, lifted): _whole(item, lifted) for key, item in fields.items()}
        case _:
            return value


def _text(text: str, lifted: Mapping[str, str]) -> str:
    return lifted.get(text) or whole(text)


def whole(text: str) -> str:
    """``text`` with U+FFFD in place of lone surrogates; pairs of them become one character."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text

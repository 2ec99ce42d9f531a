"""The bodies of HTTP requests as maps: JSON, MessagePack or a form, each within bounds.

A body is read to the end before anything is made of it, and what it may unpack to is bounded by
its form: no small one expands into a large object. Recordings come as bytes (MessagePack, form)
or base64 (JSON); ``parse_request`` takes both. Runs on the event loop, but for what takes long.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar, cast

from starlette.datastructures import Headers, UploadFile
from starlette.formparsers import FormParser, MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect, Request

from shoal.proto.codec import decode_map
from shoal.proto.errors import Code, ProtocolError
from shoal.proto.json_text import TooMuchJson, loads
from shoal.proto.messages import MAX_MESSAGE_BYTES

from .answers import GONE, Refused
from .gateway import RETRY_AFTER_S, Refusal
from .parsing import LARGE_BYTES, Parsing

BUDGET_BYTES: Final = 512 << 20
"""All bodies at one time together."""
BODY_S: Final = 60.0
"""How long a client may take to send its body."""
MAX_PARTS: Final = 256
MSGPACK_TYPES: Final = ("application/msgpack", "application/x-msgpack", "application/vnd.msgpack")
FORM_TYPES: Final = ("multipart/form-data", "application/x-www-form-urlencoded")
_HELD = "shoal.body_bytes"
Made = TypeVar("Made")


@dataclass(frozen=True, slots=True)
class Form:
    """Each name's values, in order. A file's value is its bytes."""

    values: Mapping[str, list[str]]
    files: Mapping[str, list[bytes]]

    def one(self, name: str) -> str | None:
        """The last value of ``name``."""
        return self.values[name][-1] if name in self.values else None


class BodyBudget:
    """How much all bodies together may take: many clients that each keep to the limit could still
    fill the memory. ``app.state.body_budget``; on the event loop."""

    def __init__(self, limit_bytes: int = BUDGET_BYTES) -> None:
        self._left = limit_bytes

    def take(self, request: Request, count: int) -> None:
        """For as long as ``request`` is being answered.

        :raises Refused: 503, there is no more.
        """
        if count > self._left:
            raise Refused(Refusal(503, "Too many large bodies at once", RETRY_AFTER_S))
        self._left -= count
        request.scope[_HELD] = request.scope.get(_HELD, 0) + count

    def give_back(self, request: Request) -> None:
        """``request`` was answered."""
        self._left += cast(int, request.scope.pop(_HELD, 0))


def budget_of(request: Request) -> BodyBudget:
    return cast(BodyBudget, request.app.state.body_budget)


def content_type(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


async def read_body(request: Request, limit_bytes: int = MAX_MESSAGE_BYTES) -> bytes:
    """:raises Refused: 413 over the limit, 408 when it does not come, 503 when others' fill the
    memory."""
    too_big = Refused(Refusal(413, f"Body over {limit_bytes >> 20} MiB"))
    declared = request.headers.get("content-length", "")
    body = bytearray()
    budget = budget_of(request)
    try:
        async with asyncio.timeout(BODY_S):
            over = declared.isdigit() and int(declared) > limit_bytes
            async for chunk in request.stream():
                if not over:
                    budget.take(request, len(chunk))
                    body += chunk
                    over = len(body) > limit_bytes
                if over:
                    # A client that is still sending reads no answer: take a little more of it.
                    body.clear()
                    limit_bytes -= len(chunk)
                    if limit_bytes < 0:
                        raise too_big
    except TimeoutError:
        raise Refused(Refusal(408, "The body did not come in time")) from None
    except ClientDisconnect:
        raise Refused(GONE) from None
    if over:
        raise too_big
    return bytes(body)


async def read_fields(request: Request) -> Mapping[str, object]:
    """The map that a JSON or MessagePack body is.

    :raises Refused: 408, 413, 415.
    :raises ProtocolError: it is no such map.
    """
    kind = content_type(request)
    if kind in MSGPACK_TYPES:
        body = await read_body(request)
        return await off_loop(request, lambda: decode_map(body))
    if kind == "application/json":
        return await read_json_body(request)
    raise Refused(Refusal(415, "Content-Type must be application/json or application/msgpack"))


async def read_json_body(request: Request) -> dict[str, object]:
    """A JSON body, whatever its type is said to be.

    :raises Refused: 408, 413.
    :raises ProtocolError: it is no JSON object.
    """
    body = await read_body(request)
    return await off_loop(request, lambda: json_map(body))


async def off_loop(request: Request, work: Callable[[], Made]) -> Made:
    """What ``work`` makes of the request's body; where that was large, not on the event loop."""
    parsing = cast(Parsing, request.app.state.parsing)
    return await parsing.run(cast(int, request.scope.get(_HELD, 0)), work)


def json_map(body: bytes) -> dict[str, object]:
    """:raises ProtocolError: it is no JSON object, or one that unpacks to too much."""
    try:
        value = loads(body)
    except TooMuchJson:
        raise ProtocolError(Code.TOO_BIG, "too much JSON") from None
    except ValueError:
        raise ProtocolError(Code.UNDECODABLE, "body is not valid JSON") from None
    if not isinstance(value, dict):
        raise ProtocolError(Code.MALFORMED, "body must be a JSON object")
    return cast("dict[str, object]", value)


async def read_form(request: Request) -> Form:
    """A form of either kind.

    :raises Refused: 400 for one that is damaged, 408, 413, 415.
    """
    kind = content_type(request)
    if kind not in FORM_TYPES:
        raise Refused(Refusal(415, "Content-Type must be multipart/form-data"))
    header = request.headers["content-type"]
    body = await read_body(request)
    if len(body) <= LARGE_BYTES:
        return await _form(kind, header, body)
    return await off_loop(request, lambda: asyncio.run(_form(kind, header, body)))


async def _form(kind: str, header: str, body: bytes) -> Form:
    """On whatever loop."""
    headers = Headers({"content-type": header})
    if kind == "multipart/form-data":
        parser = MultiPartParser(
            headers,
            _once(body),
            max_files=MAX_PARTS,
            max_fields=MAX_PARTS,
            max_part_size=MAX_MESSAGE_BYTES,
        )
    else:
        if body.count(b"&") >= MAX_PARTS:
            raise Refused(Refusal(413, f"Over {MAX_PARTS} fields"))
        parser = FormParser(headers, _once(body))
    try:
        parsed = await parser.parse()
    except (MultiPartException, ValueError, KeyError, AssertionError):
        raise Refused(Refusal(400, "The form cannot be read")) from None
    values: dict[str, list[str]] = {}
    files: dict[str, list[bytes]] = {}
    try:
        for name, value in parsed.multi_items():
            if isinstance(value, UploadFile):
                files.setdefault(name, []).append(await value.read())
            else:
                values.setdefault(name, []).append(value)
    finally:
        await parsed.close()
    return Form(values, files)


async def _once(body: bytes) -> AsyncGenerator[bytes]:
    yield body
    yield b""

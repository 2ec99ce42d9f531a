"""Requests whose bodies are all there, and forms written by hand."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from starlette.requests import Request

from shoal.realtime.bodies import BodyBudget
from shoal.realtime.parsing import Parsing

JSON = "application/json"
MSGPACK = "application/msgpack"
URLENCODED = "application/x-www-form-urlencoded"


def request_of(
    *chunks: bytes,
    kind: str = JSON,
    declared: int | None = None,
    hangs_up: bool = False,
    budget: BodyBudget | None = None,
    parsing: Parsing | None = None,
) -> Request:
    """A request whose body comes in ``chunks``."""
    messages: list[dict[str, Any]] = [
        {"type": "http.request", "body": chunk, "more_body": hangs_up or at < len(chunks) - 1}
        for at, chunk in enumerate(chunks)
    ]
    if hangs_up:
        messages.append({"type": "http.disconnect"})

    async def receive() -> dict[str, Any]:
        return messages.pop(0)

    headers = [(b"content-type", kind.encode())]
    if declared is not None:
        headers.append((b"content-length", str(declared).encode()))
    state = SimpleNamespace(body_budget=budget or BodyBudget(), parsing=parsing or Parsing())
    scope = {
        "type": "http",
        "method": "POST",
        "headers": headers,
        "app": SimpleNamespace(state=state),
    }
    return Request(scope, receive)


def multipart(parts: Sequence[tuple[str, str | None, bytes]]) -> bytes:
    body = b""
    for name, filename, value in parts:
        file = f'; filename="{filename}"' if filename is not None else ""
        head = f'--x\r\nContent-Disposition: form-data; name="{name}"{file}\r\n\r\n'
        body += head.encode() + value + b"\r\n"
    return body + b"--x--\r\n"


FORM = "multipart/form-data; boundary=x"

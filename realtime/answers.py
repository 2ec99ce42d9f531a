"""What endpoints share: the gateway behind a request, and the shape of a refusal."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, cast

from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse

from shoal.proto.errors import Code, ProtocolError

from .gateway import RETRY_AFTER_S, Gateway, Refusal

STATUSES: Final[Mapping[Code, int]] = MappingProxyType(
    {
        Code.UNDECODABLE: 400,
        Code.MALFORMED: 400,
        Code.UNEXPECTED: 400,
        Code.BAD_REQUEST: 400,
        Code.TOO_BIG: 413,
        Code.BUSY: 429,
        Code.DRAINING: 503,
        Code.ENGINE: 500,
    }
)
GONE: Final = Refusal(499, "Client closed the request")
"""Nobody reads this answer."""


class Refused(Exception):
    """Raised by the handler of an endpoint: this is its answer."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


def gateway_of(connection: HTTPConnection) -> Gateway:
    return cast(Gateway, connection.app.state.gateway)


def refusal_for(error: ProtocolError) -> Refusal:
    """The HTTP answer to what went wrong before there was any other."""
    status = STATUSES[error.code]
    return Refusal(status, error.message, RETRY_AFTER_S if status in (429, 503) else None)


def error_response(refusal: Refusal) -> JSONResponse:
    """Exactly these two keys: a client of the field splats the object into an exception."""
    headers = (
        {"Retry-After": str(refusal.retry_after_s)} if refusal.retry_after_s is not None else None
    )
    body = {"status": refusal.status, "message": refusal.message}
    return JSONResponse(body, refusal.status, headers)


def header_text(text: str) -> str:
    """``text`` as the value of a header: one line, with a ``?`` for what Latin-1 has not."""
    line = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    return line.encode("latin-1", "replace").decode("latin-1")

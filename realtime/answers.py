"""What endpoints share: the gateway behind a request, and the shape of a refusal."""

from __future__ import annotations

from typing import cast

from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse

from .gateway import Gateway, Refusal


def gateway_of(connection: HTTPConnection) -> Gateway:
    return cast(Gateway, connection.app.state.gateway)


def error_response(refusal: Refusal) -> JSONResponse:
    """Exactly these two keys: a client of the field splats the object into an exception."""
    headers = (
        {"Retry-After": str(refusal.retry_after_s)} if refusal.retry_after_s is not None else None
    )
    body = {"status": refusal.status, "message": refusal.message}
    return JSONResponse(body, refusal.status, headers)

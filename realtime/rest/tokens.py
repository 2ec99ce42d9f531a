"""``POST /v1/tokens``: a token for one connection, in exchange for a key. On the event loop.

The body is JSON and may be empty: ``{"ttl_s": 60, "scope": "tts"}``. The answer is the token, its
life in seconds, and when that ends.
"""

from __future__ import annotations

import time
from typing import Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from shoal.proto.errors import Code, ProtocolError
from shoal.realtime.admission import open_endpoint
from shoal.realtime.answers import Refused, gateway_of
from shoal.realtime.bodies import json_map, read_body
from shoal.realtime.gateway import RETRY_AFTER_S, Refusal
from shoal.realtime.tokens import MAX_TTL_S, TokensFull

PATH: Final = "/v1/tokens"
DEFAULT_TTL_S: Final = 60.0
SCOPE: Final = "tts"
MAX_BODY_BYTES: Final = 4096


def routes() -> list[BaseRoute]:
    return [Route(PATH, open_endpoint(_issue), methods=["POST"])]


async def _issue(request: Request) -> Response:
    body = await read_body(request, MAX_BODY_BYTES)
    fields = json_map(body) if body.strip() else {}
    if fields.get("scope", SCOPE) != SCOPE:
        raise ProtocolError(Code.BAD_REQUEST, f"scope: only `{SCOPE}` can be given")
    ttl_s = fields.get("ttl_s")
    if ttl_s is None:
        ttl_s = DEFAULT_TTL_S
    if isinstance(ttl_s, bool) or not isinstance(ttl_s, (int, float)) or ttl_s != ttl_s:
        raise ProtocolError(Code.BAD_REQUEST, "ttl_s must be a number")
    if not 1 <= ttl_s <= MAX_TTL_S:
        raise ProtocolError(Code.BAD_REQUEST, f"ttl_s must be in 1..{MAX_TTL_S:.0f}")
    try:
        token = gateway_of(request).tokens.issue(ttl_s)
    except TokensFull:
        raise Refused(Refusal(429, "Too many unspent tokens", RETRY_AFTER_S)) from None
    answer = {
        "token": token,
        "scope": SCOPE,
        "ttl_s": ttl_s,
        "expires_at": round(time.time() + ttl_s, 3),
    }
    return JSONResponse(answer, 201, {"Cache-Control": "no-store"})

"""Who may connect: API keys, and which pages a browser may connect from. Pure; any thread.

Without keys the server is open to whoever reaches it, but not to any web page that a browser on
the same machine happens to show: WebSockets are not covered by CORS, so the Origin is checked.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Mapping, Sequence
from typing import Final
from urllib.parse import urlsplit

QUERY_NAMES: Final = ("api_key", "token")
SUBPROTOCOL_KEY: Final = "bearer."


def presented_key(headers: Mapping[str, str], query: Mapping[str, str]) -> str | None:
    """The key of a request: ``Authorization: Bearer``, else a subprotocol ``bearer.KEY``, else the
    query (browsers set no headers)."""
    scheme, _, credential = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and credential.strip():
        return credential.strip()
    for name in subprotocols(headers):
        if name.startswith(SUBPROTOCOL_KEY) and name != SUBPROTOCOL_KEY:
            return name.removeprefix(SUBPROTOCOL_KEY)
    return next((query[name] for name in QUERY_NAMES if query.get(name)), None)


def subprotocols(headers: Mapping[str, str]) -> list[str]:
    """What a WebSocket's client offers to speak. One of them may be its key: never log them."""
    offered = headers.get("sec-websocket-protocol", "").split(",")
    return [name.strip() for name in offered if name.strip()]


def key_is_known(
    key: str | None,
    known: Sequence[str],
    equal: Callable[[bytes, bytes], bool] = hmac.compare_digest,
) -> bool:
    """Takes the same time whichever key matches and however much of one does."""
    given = (key or "").encode("utf-8", "replace")
    matches = 0
    for candidate in known:
        matches |= equal(given, candidate.encode("utf-8", "replace"))
    return bool(matches) and key is not None


def origin_is_allowed(headers: Mapping[str, str], allowed: Sequence[str]) -> bool:
    """No Origin: not a browser. Else it is the server's own, or on the list ("*" is any)."""
    origin = headers.get("origin")
    if origin is None or "*" in allowed or origin in allowed:
        return True
    try:
        host = urlsplit(origin).netloc
    except ValueError:
        return False
    return bool(host) and host == headers.get("host")


def refusal(
    headers: Mapping[str, str],
    query: Mapping[str, str],
    keys: Sequence[str],
    allow_origins: Sequence[str],
    is_token: Callable[[str], bool] | None = None,
) -> tuple[int, str] | None:
    """The HTTP status and message to refuse with, or ``None``. A token does for a key."""
    if keys:
        key = presented_key(headers, query)
        token = key is not None and is_token is not None and is_token(key)
        if not (token or key_is_known(key, keys)):
            return 401, "Invalid or missing API key"
    elif not origin_is_allowed(headers, allow_origins):
        return 403, "Origin not allowed"
    return None

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


def presented_key(headers: Mapping[str, str], query: Mapping[str, str]) -> str | None:
    """The key of a request: ``Authorization: Bearer``, else the query (browsers set no headers)."""
    scheme, _, credential = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and credential.strip():
        return credential.strip()
    return next((query[name] for name in QUERY_NAMES if query.get(name)), None)


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
) -> tuple[int, str] | None:
    """The HTTP status and message to refuse with, or ``None``."""
    if keys:
        if not key_is_known(presented_key(headers, query), keys):
            return 401, "Invalid or missing API key"
    elif not origin_is_allowed(headers, allow_origins):
        return 403, "Origin not allowed"
    return None

"""Which web pages may use the HTTP API: the middleware that tells their browsers. On the loop.

A page's own server needs none of it, and clients that are no browsers never ask. WebSockets are
not covered by CORS: ``auth`` looks at their origin.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware

METHODS: Final = ("GET", "POST", "PATCH", "DELETE")
EXPOSED: Final = ("Retry-After", "X-Shoal-Model", "X-Shoal-Remark")
MAX_AGE_S: Final = 3600


def cors(allow_origins: Sequence[str]) -> list[Middleware]:
    """Answers preflights of the pages on the list ("*" is any) for whatever headers they name:
    ``Authorization``, ``model``, a ``Content-Type`` of MessagePack. Without a list, nothing."""
    if not allow_origins:
        return []
    return [
        Middleware(
            CORSMiddleware,
            allow_origins=list(allow_origins),
            allow_methods=METHODS,
            allow_headers=["*"],
            expose_headers=EXPOSED,
            max_age=MAX_AGE_S,
        )
    ]

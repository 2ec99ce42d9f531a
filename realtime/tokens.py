"""``Tokens``: keys that live for minutes and open one connection, for clients that keep no secret.

A backend that has a key fetches one and hands it to a browser. Only digests are kept, and only so
many. Knows no HTTP. Owned by the event loop's thread.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable
from typing import Final

MAX_TTL_S: Final = 600.0
MAX_TOKENS: Final = 4096
PREFIX: Final = "once_"


class TokensFull(Exception):
    """So many are unspent that no more are given out."""


class Tokens:
    """See the module. ``clock`` is in seconds and never goes back."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, most: int = MAX_TOKENS) -> None:
        self._clock = clock
        self._most = most
        self._expires_s: dict[bytes, float] = {}

    def issue(self, ttl_s: float) -> str:
        """A new token, good for one connection within ``ttl_s``.

        :raises TokensFull: try again when some are spent or over.
        """
        assert 0 < ttl_s <= MAX_TTL_S, "the caller checks"
        now_s = self._clock()
        if len(self._expires_s) >= self._most:
            self._expires_s = {d: end for d, end in self._expires_s.items() if end > now_s}
        if len(self._expires_s) >= self._most:
            raise TokensFull
        token = PREFIX + secrets.token_urlsafe(24)
        self._expires_s[_digest(token)] = now_s + ttl_s
        return token

    def holds(self, key: str) -> bool:
        """Whether ``key`` is a token that can still be spent."""
        return self._expires_s.get(_digest(key), 0.0) > self._clock()

    def spend(self, key: str) -> None:
        """It opens nothing any more. Anything that is no token is left alone."""
        self._expires_s.pop(_digest(key), None)


def _digest(key: str) -> bytes:
    # Looked up by a digest, so that the time it takes tells nothing about any token.
    return hashlib.sha256(key.encode("utf-8", "replace")).digest()

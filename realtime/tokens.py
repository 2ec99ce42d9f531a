"""``Tokens``: keys that live for minutes and open one connection, for clients that keep no secret.

A backend that has a key fetches one and hands it to a browser. A token carries when it was given
and until when it is good, signed: whoever has the secret can tell a good one, so several servers
may share it. Which tokens were spent is remembered until they would be over anyway. Knows no HTTP.
Owned by the event loop's thread.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

MAX_TTL_S: Final = 600.0
MAX_SPENT: Final = 1 << 17
PREFIX: Final = "once_"
SKEW_S: Final = 5.0
"""A token from this far in the future is a clock that differs; from farther it is none of ours."""
SECRET_BYTES: Final = 32
_BODY: Final = struct.Struct(">QI16s")  # given, in ms since 1970; life, in ms; what makes it unlike
_MAC_BYTES: Final = 26  # so that it is whole in base64, without padding
_WHOLE_BYTES: Final = _BODY.size + _MAC_BYTES
_WORK: Final = 1 << 14


class TokensFull(Exception):
    """So many were spent within their life that no more can be told apart."""


@dataclass(frozen=True, slots=True)
class Ticket:
    """What a good token says of itself. ``id`` tells nobody the token. Seconds since 1970."""

    id: bytes
    given_s: float
    expires_s: float


class Ledger(Protocol):
    """Where servers that share a secret write down which tokens were spent."""

    async def claim(self, ticket: Ticket) -> bool:
        """True for the first to ask, and nobody else.

        :raises LedgerAway: it cannot be told now.
        """
        ...


class LedgerAway(Exception):
    """Nobody knows whether the token was spent."""


class Tokens:
    """See the module. Without a ``secret`` it makes one, which no other server knows. ``clock`` is
    in seconds since 1970."""

    def __init__(
        self,
        secret: bytes | None = None,
        clock: Callable[[], float] = time.time,
        most: int = MAX_SPENT,
    ) -> None:
        self._secret = secrets.token_bytes(SECRET_BYTES) if secret is None else secret
        self._clock = clock
        self._spent = SpentTokens(clock, most)

    def issue(self, ttl_s: float) -> str:
        """A new token, good for one connection within ``ttl_s``.

        :raises TokensFull: try again when some of those spent are over.
        """
        assert 0 < ttl_s <= MAX_TTL_S, "the caller checks"
        if self._spent.full:
            raise TokensFull
        body = _BODY.pack(round(self._clock() * 1000), round(ttl_s * 1000), secrets.token_bytes(16))
        return PREFIX + base64.urlsafe_b64encode(body + self._sign(body)).decode()

    def ticket(self, key: str) -> Ticket | None:
        """What ``key`` says, if it is a token of this secret and its time is not over."""
        whole = _decode(key)
        if whole is None:
            return None
        body, mac = whole[: _BODY.size], whole[_BODY.size :]
        if not hmac.compare_digest(mac, self._sign(body)):
            return None
        given_ms, life_ms, _ = _BODY.unpack(body)
        given_s, expires_s = given_ms / 1000, (given_ms + life_ms) / 1000
        now_s = self._clock()
        if given_s > now_s + SKEW_S or now_s >= expires_s:
            return None
        return Ticket(hashlib.sha256(whole).digest(), given_s, expires_s)

    def holds(self, key: str) -> bool:
        """Whether ``key`` is a token that was not spent here."""
        ticket = self.ticket(key)
        return ticket is not None and not self._spent.full and ticket.id not in self._spent

    def spend(self, key: str) -> bool:
        """It opens nothing here any more. False when it opened nothing before, either."""
        ticket = self.ticket(key)
        return ticket is not None and self._spent.add(ticket)

    def _sign(self, body: bytes) -> bytes:
        return hmac.digest(self._secret, body, "sha256")[:_MAC_BYTES]


class SpentTokens:
    """The ids of tokens that were spent, each until it would be over. At most ``most``."""

    def __init__(self, clock: Callable[[], float] = time.time, most: int = MAX_SPENT) -> None:
        self._clock = clock
        self._most = most
        self._expires_s: dict[bytes, float] = {}

    @property
    def full(self) -> bool:
        if len(self._expires_s) >= self._most:
            now_s = self._clock() - SKEW_S
            self._expires_s = {id: end for id, end in self._expires_s.items() if end > now_s}
        return len(self._expires_s) >= self._most

    def __contains__(self, id: bytes) -> bool:
        return id in self._expires_s

    def add(self, ticket: Ticket) -> bool:
        """False when it was there, or there is no room to remember it."""
        if self.full or ticket.id in self._expires_s:
            return False
        self._expires_s[ticket.id] = ticket.expires_s
        return True


def shared_secret(words: str) -> bytes:
    """The secret of servers that are all given ``words``. Slow on purpose: a token must not help to
    guess them."""
    salt = b"shoal single-use tokens"
    return hashlib.scrypt(words.encode(), salt=salt, n=_WORK, r=8, p=1, dklen=SECRET_BYTES)


def _decode(key: str) -> bytes | None:
    text = key.removeprefix(PREFIX)
    if text == key or not text.isascii():
        return None
    try:
        whole = base64.b64decode(text, b"-_", validate=True)
    except ValueError:
        return None
    canonical = base64.urlsafe_b64encode(whole).decode() == text
    return whole if canonical and len(whole) == _WHOLE_BYTES else None

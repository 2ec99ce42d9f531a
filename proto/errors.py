"""What can go wrong on the wire, by whose fault, and the close code that each leads to.

Knows no sockets: a shell turns a :class:`Code` into an error event and, where ``CLOSE_CODES`` has
one, into a close.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import Final

NORMAL_CLOSE: Final = 1000
GOING_AWAY: Final = 1001


class Code(Enum):
    """One reason to refuse, as it is counted and logged."""

    UNDECODABLE = "undecodable"  # the bytes are no MessagePack
    MALFORMED = "malformed"  # MessagePack, but no message of the protocol
    UNEXPECTED = "unexpected"  # a good message at a bad time, e.g. text before start
    BAD_REQUEST = "bad_request"  # a value of start.request; HTTP 400
    TOO_BIG = "too_big"  # a message or the text that waits to be spoken
    BUSY = "busy"  # no slot came free in time
    DRAINING = "draining"  # the server is going away
    ENGINE = "engine"  # ours


CLOSE_CODES: Final[Mapping[Code, int]] = MappingProxyType(
    {
        Code.UNDECODABLE: 1007,
        Code.BAD_REQUEST: 1008,
        Code.TOO_BIG: 1009,
        Code.ENGINE: 1011,
        Code.BUSY: 1013,
        Code.DRAINING: GOING_AWAY,
    }
)
"""The codes that end the socket. The others are answered with an error event, and it lives on."""
CODE_OF_CLOSE: Final[Mapping[int, Code]] = MappingProxyType(
    {close: code for code, close in CLOSE_CODES.items()}
)
"""Why a socket was closed. Closes that end no more than the conversation are not among them."""


class ProtocolError(Exception):
    """The client's fault. ``message`` is for the client and holds nothing of what it said."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message

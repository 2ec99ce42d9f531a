"""``Link``: what one session talks to. A WebSocket, a context of one, or an HTTP response.

The shell of a session (``connection.py``) needs no more than this, so that every way in has the
same rules: a dialect brings a link and two functions that translate. Used on the event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from shoal.proto.messages import Audio, ClientMessage, ServerMessage

Frame = bytes | str | ClientMessage
"""What a link receives: a frame of a wire, or a message where nothing needs decoding."""
Payload = bytes | str | ServerMessage
"""What a link sends: likewise. An empty one is never sent."""


class Disconnected(Exception):
    """The peer is gone."""


class Link(Protocol):
    """One session's way to its client and back."""

    async def receive(self) -> Frame:
        """The next frame.

        :raises Disconnected: there will be none.
        """
        ...

    async def send(self, payload: Payload) -> None:
        """:raises Disconnected: the peer is gone."""
        ...

    async def close(self, code: int, reason: str) -> None:
        """End it; ``code`` is a WebSocket's close code.

        :raises Disconnected: the peer is gone.
        """
        ...

    def abort(self) -> None:
        """Hang up now; what waits is lost."""
        ...

    @property
    def backlogged(self) -> bool:
        """Whether what was sent still waits in this process."""
        ...

    def unacknowledged_bytes(self) -> int:
        """Bytes given to ``send`` that the peer's machine has not acknowledged."""
        ...


@dataclass(frozen=True, slots=True)
class Dialect:
    """How one endpoint writes the protocol's messages. Made anew for each session, so that its
    functions may remember."""

    name: str
    decode: Callable[[Frame], ClientMessage]
    """Raises ``ProtocolError``."""
    encode: Callable[[ServerMessage, int | None], Sequence[Payload]]
    """A message, and the milliseconds since the turn began; maybe nothing comes of it."""
    parse: Callable[[Frame], Frame] = lambda frame: frame
    """The part of ``decode`` that takes time and remembers nothing, done before it on any thread.
    Raises ``ProtocolError``."""


def payload_bytes(payload: Payload) -> int:
    """How much a payload weighs on the wire, about."""
    if isinstance(payload, Audio):
        return len(payload.audio)
    return len(payload) if isinstance(payload, (bytes, str)) else 0

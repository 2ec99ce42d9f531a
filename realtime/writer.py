"""``Writer``: puts on one link what its outbox holds, as fast as the client reads it.

Nothing waits in a transport where it could not be dropped any more: a message leaves the outbox
only when the one before has left this process, and while the client's machine has acknowledged
enough. Runs on the event loop; ``run`` is a task, the rest is called from the loop's callbacks.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from .link import Link
from .outbox import Outbox, Outgoing

POLL_S = 0.01
POLL_MOST_S = 0.1


class Writer:
    """``on_sent`` is called for each message put on the wire, ``on_flow`` with True when the
    engine shall pause and with False when it may resume."""

    def __init__(
        self,
        link: Link,
        on_sent: Callable[[Outgoing], None],
        on_flow: Callable[[bool], None],
    ) -> None:
        self._link = link
        self._on_sent = on_sent
        self._on_flow = on_flow
        self._outbox = Outbox()
        self._wake = asyncio.Event()
        self._closing: tuple[int, str] | None = None

    @property
    def empty(self) -> bool:
        return self._outbox.empty

    def expect(self, audio_s: float) -> None:
        """The engine delivered audio that is being encoded."""
        self._outbox.expect(audio_s)
        self._flow()

    def encoded(self, audio_s: float) -> None:
        """So much of what was expected has been encoded."""
        self._outbox.encoded(audio_s)

    def push(self, item: Outgoing) -> None:
        """:raises OutboxFull: the client provokes answers and does not read them."""
        self._outbox.push(item)
        self._wake.set()

    def drop_turn(self) -> None:
        """Forget the audio and the finish that are not on the wire yet."""
        self._outbox.drop_turn()

    def close(self, code: int, reason: str) -> None:
        """Close once everything before was sent."""
        self._closing = (code, reason)
        self._wake.set()

    async def run(self) -> None:
        """Write until the link is closed.

        :raises Disconnected: the peer is gone.
        """
        poll_s = POLL_S
        while True:
            self._wake.clear()
            self._flow()
            item = None if self._link.backlogged else self._outbox.pop()
            if item is not None:
                if item.payload:
                    await self._link.send(item.payload)
                self._on_sent(item)
                poll_s = POLL_S
            elif self._outbox.empty and self._closing is not None:
                await self._link.close(*self._closing)
                return
            elif self._outbox.empty and not self._outbox.paused:
                await self._wake.wait()
            else:
                # Nobody says when the client's machine acknowledges: look again soon.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(poll_s):
                        await self._wake.wait()
                poll_s = min(2 * poll_s, POLL_MOST_S)

    def _flow(self) -> None:
        if self._outbox.must_ask:
            self._outbox.unacknowledged(self._link.unacknowledged_bytes())
        change = self._outbox.pause_change()
        if change is not None:
            self._on_flow(change)

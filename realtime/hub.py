"""``Hub``: stream id -> connection, and the only file that crosses threads.

The engine's threads call ``deliver`` with a batch of events; one ``call_soon_threadsafe`` a batch
brings it to the event loop, where each event goes to whoever registered its stream. A batch may be
hundreds of chunks of sound, and what each takes adds up: they are handed out a slice at a time, so
that what came out of one is on its way before the next, and a turn's first sound goes ahead of
sound that listeners have to wait for anyway. Each stream's events keep their order.

An id that was forgotten has no addressee, and its events are dropped here: that is what makes a
cancel final at once. Everything but ``deliver``, ``on_fatal`` and ``to_loop`` runs on the loop's
thread.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from itertools import count
from typing import Final

from shoal.engine.api import Command, Engine, Event, Pcm, StreamId

Receiver = Callable[[Event], None]
SLICE_S: Final = 0.001
"""How long events are handed out before everybody else on the loop has a turn."""


class Hub:
    """See the module."""

    def __init__(
        self,
        engine: Engine,
        loop: asyncio.AbstractEventLoop,
        on_fatal: Callable[[BaseException], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``on_fatal`` is called on the loop when a thread of the engine died."""
        self._engine = engine
        self._loop = loop
        self._on_fatal = on_fatal
        self._receivers: dict[StreamId, Receiver] = {}
        self._batch: set[StreamId] = set()
        self._numbers = count(1)
        self._clock = clock
        self._first: deque[Event] = deque()
        self._later: deque[Event] = deque()
        self._later_of: Counter[StreamId] = Counter()
        self._scheduled = False

    def new_stream(self) -> StreamId:
        return StreamId(next(self._numbers))

    def register(self, stream: StreamId, receiver: Receiver, batch: bool = False) -> None:
        self._receivers[stream] = receiver
        if batch:
            self._batch.add(stream)

    def forget(self, stream: StreamId) -> None:
        """Nothing of this stream is delivered any more, not even what is already on its way."""
        self._receivers.pop(stream, None)
        self._batch.discard(stream)

    def submit(self, command: Command) -> None:
        self._engine.submit(command)

    @property
    def streams(self) -> int:
        """Those that somebody listens to; the others give way to them and so do not count."""
        return len(self._receivers) - len(self._batch)

    @property
    def batch_streams(self) -> int:
        return len(self._batch)

    # From other threads -------------------------------------------------------------------------

    def deliver(self, events: Sequence[Event]) -> None:
        """From the engine's threads; never blocks."""
        self.to_loop(lambda: self.route(events))

    def fatal(self, error: BaseException) -> None:
        """From the engine's threads, once."""
        self.to_loop(lambda: self._on_fatal(error))

    def to_loop(self, callback: Callable[[], None]) -> None:
        """Run ``callback`` on the loop, soon. From any thread; nothing happens after its end."""
        try:
            self._loop.call_soon_threadsafe(callback)
        except RuntimeError:
            if not self._loop.is_closed():
                raise

    # On the loop --------------------------------------------------------------------------------

    def route(self, events: Sequence[Event]) -> None:
        later_of = self._later_of
        for event in events:
            stream = event.stream
            # Later sound is never far: what goes ahead of it must be of a stream that has none.
            more = isinstance(event, Pcm) and event.timing is None
            if more or stream in later_of:
                later_of[stream] += 1
                self._later.append(event)
            else:
                self._first.append(event)
        if not self._scheduled:
            self._hand_out()

    def _hand_out(self) -> None:
        """What may go now; the rest when others on the loop had their turn."""
        self._scheduled = False
        until_s = self._clock() + SLICE_S
        while self._first or self._later:
            if self._first:
                event = self._first.popleft()
            else:
                event = self._later.popleft()
                self._later_of[event.stream] -= 1
                if not self._later_of[event.stream]:
                    del self._later_of[event.stream]
            receiver = self._receivers.get(event.stream)
            if receiver is not None:
                try:
                    receiver(event)
                except Exception:  # a receiver's bug: it is no reason for others to wait
                    self._go_on_soon()
                    raise
                if self._clock() >= until_s:
                    self._go_on_soon()
                    return

    def _go_on_soon(self) -> None:
        self._scheduled = True
        self._loop.call_soon(self._hand_out)

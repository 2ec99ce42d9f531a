"""``Hub``: stream id -> connection, and the only file that crosses threads.

The engine's threads call ``deliver`` with a batch of events; one ``call_soon_threadsafe`` a batch
brings it to the event loop, where each event goes to whoever registered its stream. A batch may be
hundreds of chunks of sound, and what each takes adds up: they are handed out a slice at a time, so
that what came out of one is on its way before the next. A turn's first sound goes ahead of
sound that listeners have to wait for anyway, and of that whatever a listener will need soonest.
Each stream's events keep their order. Sound of one stream that has to wait grows together, up to
a second or so: what is late then costs less, not more, and a server with too much to do catches up.

An id that was forgotten has no addressee, and its events are dropped here: that is what makes a
cancel final at once. Everything but ``deliver``, ``on_fatal`` and ``to_loop`` runs on the loop's
thread.
"""

from __future__ import annotations

import asyncio
import heapq
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from typing import Final

from shoal.engine.api import Command, Engine, Event, Pcm, StreamId

Receiver = Callable[[Event], None]
SLICE_S: Final = 0.001
"""How long events are handed out before everybody else on the loop has a turn."""
MOST_JOINED_BYTES: Final = 96_000
"""Of sound that is handed out at once: about a second."""


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
        self._later: dict[StreamId, deque[Event]] = {}
        self._soonest: list[tuple[float, int, StreamId]] = []
        """A heap of who waits in ``_later``, each once, by when they need the first of theirs."""
        self._turns = count()
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
        for event in events:
            stream = event.stream
            # Later sound is never far: what goes ahead of it must be of a stream that has none.
            more = isinstance(event, Pcm) and event.timing is None
            if (waiting := self._later.get(stream)) is not None:
                waiting.append(event)
            elif more:
                self._later[stream] = deque((event,))
                self._queue(stream, event)
            else:
                self._first.append(event)
        if not self._scheduled:
            self._hand_out()

    def _queue(self, stream: StreamId, event: Event) -> None:
        due_s = event.due_s if isinstance(event, Pcm) else 0.0
        heapq.heappush(self._soonest, (due_s, next(self._turns), stream))

    def _hand_out(self) -> None:
        """What may go now; the rest when others on the loop had their turn."""
        self._scheduled = False
        until_s = self._clock() + SLICE_S
        while self._first or self._soonest:
            event = self._first.popleft() if self._first else self._next_later()
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

    def _next_later(self) -> Event:
        """What the listener needs who runs dry first."""
        _, _, stream = heapq.heappop(self._soonest)
        waiting = self._later[stream]
        event = waiting.popleft()
        if isinstance(event, Pcm):
            event = _joined(event, waiting)
        if waiting:
            self._queue(stream, waiting[0])
        else:
            del self._later[stream]
        return event

    def _go_on_soon(self) -> None:
        self._scheduled = True
        self._loop.call_soon(self._hand_out)


def _joined(sound: Pcm, waiting: deque[Event]) -> Pcm:
    """``sound`` with what of ``waiting`` goes on where it ends."""
    parts, size = [sound.samples], len(sound.samples)
    while waiting and isinstance(more := waiting[0], Pcm) and more.timing is None:
        size += len(more.samples)
        if size > MOST_JOINED_BYTES:
            break
        parts.append(more.samples)
        waiting.popleft()
    if len(parts) == 1:
        return sound
    return replace(sound, samples=b"".join(parts))

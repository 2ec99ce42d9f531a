"""``Contexts``: many sessions on one WebSocket. Each context is a link with a session of its own.

A dialect reads the socket's frames through ``run`` and hands each context the messages meant for
it; what a session answers goes out through the same socket. Contexts share its backpressure: the
socket's bytes on their way are told apart by who sent them. A context counts as open until its
client closes it or its turn is over, whichever comes first; one over the limit is refused alone.
Those beyond half of the server's slots take only what other clients leave over.
A name that is used again while its last turn still sounds speaks after that; what it is told until
then waits, and holds up nobody else. Knows no wire format. Runs on the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Final

from shoal.proto.errors import NORMAL_CLOSE, Code, ProtocolError
from shoal.proto.messages import (
    Cancelled,
    ClientMessage,
    Finish,
    ServerMessage,
    Start,
    Stop,
)

from .gateway import Gateway
from .inbox import Inbox
from .link import Dialect, Disconnected, Frame, Link, Payload, payload_bytes

MAX_OPEN: Final = 16
MAX_CLOSING: Final = 16
MAX_INBOX: Final = 64

logger = logging.getLogger("shoal.contexts")

Translate = Callable[[ServerMessage], Sequence[bytes | str]]
"""How a dialect writes a message of one context; nothing may come of it."""


class ContextRefused(Exception):
    """No context can be opened now; the message is for the client, and the socket lives."""


class Contexts:
    """See the module. ``name`` is the dialect's, for logs."""

    def __init__(
        self,
        socket: Link,
        gateway: Gateway,
        name: str,
        *,
        idle_s: float | None = None,
        max_open: int = MAX_OPEN,
    ) -> None:
        """``idle_s``: a context whose client says nothing for so long takes no more text."""
        self.socket = socket
        self.parsing = gateway.parsing
        self._gateway = gateway
        self._name = name
        self._idle_s = idle_s
        self._max_open = max_open
        self._open: dict[str, Context] = {}
        self._closing: list[Context] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._over = False
        self.sent_bytes = 0

    # For the dialect ----------------------------------------------------------------------------

    async def run(self, take: Callable[[Frame], Awaitable[None]], apology: str) -> None:
        """Give ``take`` every frame, until the socket is gone, ``finish`` was called and is
        done, or nobody has said anything for long and no context lives. ``apology`` is sent for a
        frame that ``take`` fails at: the contexts have nothing to do with it."""
        try:
            await self._read(take, apology)
            with contextlib.suppress(Disconnected):
                await self.socket.close(NORMAL_CLOSE, "")
        except Disconnected:
            pass
        finally:
            for context in [*self._open.values(), *self._closing]:
                context.end()
            if self._tasks:
                await asyncio.wait(self._tasks)

    async def _read(self, take: Callable[[Frame], Awaitable[None]], apology: str) -> None:
        quiet_s = self._gateway.config.pooled_grace_s
        reading = asyncio.ensure_future(self.socket.receive())
        try:
            while self._tasks or not self._over:
                waiting = {reading, *self._tasks} if self._over else {reading}
                await asyncio.wait(waiting, timeout=quiet_s, return_when=asyncio.FIRST_COMPLETED)
                if reading.done():
                    frame = reading.result()
                    if not self._over:
                        await self._take(take, frame, apology)
                    reading = asyncio.ensure_future(self.socket.receive())
                elif not self._tasks:
                    return
        finally:
            reading.cancel()
            with contextlib.suppress(asyncio.CancelledError, Disconnected):
                await reading

    async def _take(
        self, take: Callable[[Frame], Awaitable[None]], frame: Frame, apology: str
    ) -> None:
        try:
            await take(frame)
        except Disconnected:
            raise
        except Exception:  # the edge of a frame
            logger.exception("frame_crashed")
            self._gateway.metrics.errors.labels("engine").inc()
            await self.socket.send(apology)

    def get(self, key: str) -> Context | None:
        """The context that is open under this name."""
        return self._open.get(key)

    def closing(self, key: str) -> list[Context]:
        """Those that were closed under this name and still sound, in order."""
        return [context for context in self._closing if context.key == key]

    def open(self, key: str, start: Start, translate: Translate, last: Ends) -> Context:
        """Begin a session. ``last`` are the messages after which it is over.

        :raises ContextRefused: there are too many, or the server is going away.
        """
        if self._gateway.draining:
            raise ContextRefused("server is shutting down")
        if len(self._open) >= self._max_open:
            raise ContextRefused(f"at most {self._max_open} contexts may be open at a time")
        if len(self._closing) >= MAX_CLOSING:
            raise ContextRefused("too many closed contexts are still speaking")
        assert key not in self._open, "a context is opened once"
        others = [*self._open.values(), *self._closing]
        live = sum(context.live for context in others) < max(
            1, self._gateway.engine.info.slots // 2
        )
        if not live:
            start = replace(start, request=replace(start.request, priority="batch"))
        context = Context(self, key, translate, last, self._idle_s, live)
        context.say(start)
        before = self.closing(key)[-1:]
        self._open[key] = context
        task = asyncio.create_task(self._serve(context, before), name=f"context-{self._name}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return context

    def close(self, context: Context, *messages: ClientMessage) -> None:
        """It counts no more; what it was told to say may still sound."""
        if self._open.get(context.key) is context:
            del self._open[context.key]
            self._closing.append(context)
        context.say(*messages)
        context.rest()

    def finish(self) -> None:
        """No more frames: let every context speak to its end, then close the socket."""
        for context in list(self._open.values()):
            self.close(context, Stop())
        self._over = True

    # For contexts -------------------------------------------------------------------------------

    async def _serve(self, context: Context, before: Sequence[Context]) -> None:
        try:
            for other in before:
                await other.ended.wait()
            dialect = Dialect(self._name, _as_it_is, lambda message, _: [message])
            await self._gateway.serve(context, dialect, None, False)
        finally:
            context.end()

    def forget(self, context: Context) -> None:
        if self._open.get(context.key) is context:
            del self._open[context.key]
        elif context in self._closing:
            self._closing.remove(context)


Ends = tuple[type[Finish] | type[Cancelled], ...]


class Context:
    """One session's link. What the dialect says comes in unencoded; what the session answers is
    translated on its way out."""

    def __init__(
        self,
        contexts: Contexts,
        key: str,
        translate: Translate,
        last: Ends,
        idle_s: float | None,
        live: bool,
    ) -> None:
        self.key = key
        self.live = live
        self.ended = asyncio.Event()
        self._contexts = contexts
        self._translate = translate
        self._last = last
        self._idle_s = idle_s
        self._inbox = Inbox()
        self._begun = False
        self._said = asyncio.Event()
        self._room = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._wire: deque[tuple[int, int]] = deque()  # where each message ends, and its weight
        self._wire_bytes = 0

    # For the dialect ----------------------------------------------------------------------------

    def say(self, *messages: ClientMessage) -> None:
        """Hand messages to the session, in order. Follow it with ``room`` where many may come.

        A cancel takes the place of what was said before it and is still unread.
        """
        if self.ended.is_set():
            return
        for message in messages:
            self._inbox.put(message)
        self._said.set()
        self.touch()

    async def room(self) -> None:
        """Returns when a session that has begun has taken most of what was said. One that waits
        for another's end is not waited for: its client's other frames have their turn."""
        while self._begun and len(self._inbox) > MAX_INBOX and not self.ended.is_set():
            self._room.clear()
            await self._room.wait()

    def touch(self) -> None:
        """Its client is there."""
        self.rest()
        if self._idle_s is not None and not self.ended.is_set():
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._idle_s, self._idle)

    def rest(self) -> None:
        """Wait for nothing from its client."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _idle(self) -> None:
        self._contexts.close(self, Stop())

    def end(self) -> None:
        """It is over; its name is free."""
        self.rest()
        self.ended.set()
        self._said.set()
        self._room.set()
        self._contexts.forget(self)

    # For the session ----------------------------------------------------------------------------

    async def receive(self) -> Frame:
        """The next message, or a string that says why there will be none."""
        self._begun = True
        while True:
            if self.ended.is_set():
                raise Disconnected
            frame = self._inbox.take()
            self._room.set()
            if frame is not None:
                return frame
            self._said.clear()
            await self._said.wait()

    async def send(self, payload: Payload) -> None:
        assert not isinstance(payload, (bytes, str)), "contexts translate themselves"
        if self.ended.is_set():
            raise Disconnected
        for data in self._translate(payload):
            try:
                await self._contexts.socket.send(data)
            except Disconnected:
                self.end()
                raise
            self._contexts.sent_bytes += len(data)
        weight = payload_bytes(payload)
        self._wire.append((self._contexts.sent_bytes, weight))
        self._wire_bytes += weight
        if isinstance(payload, self._last):
            self.end()

    async def close(self, code: int, reason: str) -> None:
        self.end()

    def abort(self) -> None:
        """The client does not read: no context of it can go on."""
        self._contexts.socket.abort()
        self.end()

    @property
    def backlogged(self) -> bool:
        return self._contexts.socket.backlogged

    def unacknowledged_bytes(self) -> int:
        """Its own share, as the session weighs it."""
        on_the_way = self._contexts.socket.unacknowledged_bytes()
        arrived = self._contexts.sent_bytes - on_the_way
        while self._wire and self._wire[0][0] <= arrived:
            self._wire_bytes -= self._wire.popleft()[1]
        return self._wire_bytes


def _as_it_is(frame: Frame) -> ClientMessage:
    assert not isinstance(frame, bytes), "a dialect says messages"
    if isinstance(frame, str):
        raise ProtocolError(Code.TOO_BIG, frame)
    return frame

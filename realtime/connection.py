"""``Connection``: the shell around one session. Executes its effects on a link and the engine.

Two tasks of the event loop share it: the reader turns frames into messages, the writer puts what
the outbox holds on the wire. Engine events come in as callbacks on the same loop. Knows no wire
format, for the dialect's functions translate, and no sound: what goes out in order is delivery's.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from shoal.engine import api
from shoal.proto.errors import CLOSE_CODES, CODE_OF_CLOSE, Code, ProtocolError

from . import log
from .delivery import Delivery
from .effects import (
    BeginTurn,
    Close,
    DropTurn,
    Effect,
    Encode,
    EncodeEnd,
    EncodeFlush,
    EndTurn,
    SayCancelled,
    SayFlushed,
    StartGrace,
    StopGrace,
    ToClient,
    ToEngine,
)
from .link import Dialect, Disconnected, Frame, Link
from .outbox import OutboxFull, Outgoing
from .session import Rules, Session, State
from .surroundings import Surroundings
from .timers import Timers
from .writer import Writer

YIELD_FRAMES = 32
_NO_REFUSALS = frozenset((Code.ENGINE, Code.DRAINING))

logger = logging.getLogger("shoal.connection")


class Connection:
    """See the module. One link, from when it is open to its end."""

    def __init__(
        self, number: int, link: Link, dialect: Dialect, rules: Rules, around: Surroundings
    ) -> None:
        self.number = number
        self._link = link
        self._dialect = dialect
        self._around = around
        self._clock = around.clock
        self._session = Session(rules)
        self._writer = Writer(link, self._sent, self._flow)
        self._delivery = Delivery(
            number, dialect, self._writer, around, self._session, self._guarded
        )
        self._counted = around.metrics.turns
        self._paused: api.StreamId | None = None
        self._timers = Timers()
        self._active_s = self._clock()
        self._close_code: int | None = None

    async def run(self, reference_id: str | None) -> None:
        """Serve the socket until it is closed or gone. Leaves nothing behind, however it ends."""
        opened_s = self._clock()
        writer = asyncio.create_task(self._write(), name=f"writer-{self.number}")
        try:
            self._execute(self._session.handshake(reference_id))
            await self._read()
        finally:
            self._execute(self._session.disconnected())
            self._timers.stop_all()
            self._delivery.stop()
            writer.cancel()
            await asyncio.wait([writer])
            seconds = self._clock() - opened_s
            log.event(logger, "closed", socket=self.number, seconds=seconds, code=self._close_code)

    # Reading ------------------------------------------------------------------------------------

    async def _read(self) -> None:
        frames = 0
        while True:
            try:
                frame = await self._link.receive()
            except Disconnected:
                return
            self._active_s = self._clock()
            try:
                message = self._dialect.decode(await self._parsed(frame))
            except ProtocolError as error:
                if error.code not in CLOSE_CODES:  # else the close counts it
                    self._refused(error.code)
                self._guarded(lambda error=error: self._session.refuse(error))
            else:
                self._guarded(lambda message=message: self._session.receive(message))
            frames += 1
            if frames % YIELD_FRAMES == 0:  # many frames may wait: others have their turn too
                await asyncio.sleep(0)

    async def _parsed(self, frame: Frame) -> Frame:
        """The frames after this one wait for it."""
        if not isinstance(frame, (bytes, str)):
            return frame
        parse = self._dialect.parse
        return await self._around.parsing.run(len(frame), lambda: parse(frame))

    # From the loop's other callbacks ------------------------------------------------------------

    def on_engine(self, event: api.Event) -> None:
        """An event of this connection's stream."""
        turn = self._delivery.turn
        if isinstance(event, api.Pcm) and turn is not None:
            self._active_s = self._clock()
            turn.got_audio(event, self._active_s)
        elif isinstance(event, api.Opened) and turn is not None:
            turn.got_voice(event, self._clock())
        if isinstance(event, api.Failed):
            self._around.metrics.errors.labels(event.fault.value).inc()
            log.event(
                logger,
                "failed",
                logging.WARNING if event.fault is api.Fault.ENGINE else logging.INFO,
                socket=self.number,
                stream=event.stream,
                fault=event.fault.value,
            )
        self._guarded(lambda: self._session.engine_event(event))

    def drain(self) -> bool:
        """End as soon as the turn allows; True when that is the case already."""
        quiet_s = self._clock() - self._active_s
        quiet = self._writer.empty and quiet_s > self._around.config.drain_quiet_s
        self._guarded(lambda: self._session.drain(quiet))
        return self._session.state is State.CLOSED

    def abort(self, code: Code, message: str) -> None:
        self._guarded(lambda: self._session.abort(code, message))

    def _guarded(self, step: Callable[[], list[Effect]]) -> None:
        """Ours to catch: one session that goes wrong must not take others along."""
        try:
            self._execute(step())
        except OutboxFull:
            log.event(logger, "answers_unread", socket=self.number)
            self._link.abort()
        except Exception:  # the edge of a session
            logger.exception("session_crashed", extra={"fields": {"socket": self.number}})
            self._around.metrics.errors.labels("engine").inc()
            try:
                self._execute(self._session.abort(Code.ENGINE, "internal error"))
            except Exception:  # as broken as that
                self._link.abort()

    def _refused(self, code: Code) -> None:
        log.event(logger, "refused", socket=self.number, reason=code.value)
        self._around.metrics.refusals.labels(code.value).inc()

    # Effects ------------------------------------------------------------------------------------

    def _execute(self, effects: list[Effect]) -> None:
        delivery = self._delivery
        for effect in effects:
            match effect:
                case ToEngine(command=command):
                    if isinstance(command, api.PushText) and delivery.turn is not None:
                        delivery.turn.got_text(command.text, self._clock())
                    self._around.hub.submit(command)
                case Encode(samples=samples):
                    delivery.encode(samples)
                case EncodeFlush(id=mark):
                    delivery.flush(mark)
                case SayFlushed(id=mark):
                    delivery.say_flushed(mark)
                case EncodeEnd():
                    delivery.finish()
                case ToClient(message=message):
                    delivery.send(message)
                case BeginTurn():
                    self._begin(effect)
                case EndTurn(stream=stream):
                    self._end(stream)
                case DropTurn():
                    delivery.drop()
                case SayCancelled(heard=heard):
                    delivery.say_cancelled(heard)
                case StartGrace(seconds=seconds):
                    self._timers.start("grace", seconds, self._grace_over)
                case StopGrace():
                    self._timers.stop("grace")
                case Close():
                    delivery.in_order(lambda close=effect: self._close(close))

    def _begin(self, begin: BeginTurn) -> None:
        around = self._around
        batch = begin.request.priority == "batch"
        around.hub.register(begin.stream, self.on_engine, batch)
        self._counted = around.metrics.batch_turns if batch else around.metrics.turns
        self._counted.inc()
        self._delivery.begin(begin)
        log.event(
            logger,
            "turn_started",
            socket=self.number,
            stream=begin.stream,
            format=begin.request.format,
            rate=begin.request.sample_rate,
        )

    def _end(self, stream: api.StreamId) -> None:
        """The engine is through with the stream; its audio may still be on its way."""
        self._around.hub.forget(stream)
        self._counted.dec()
        if self._paused is not None:
            self._paused = None
            self._around.metrics.paused.dec()

    def _close(self, close: Close) -> None:
        code = CODE_OF_CLOSE.get(close.code)
        if code is not None and code not in _NO_REFUSALS:
            self._refused(code)
        self._writer.close(close.code, close.reason)
        self._close_code = close.code
        self._timers.start("stall", self._around.config.send_stall_s, self._link.abort)

    def _grace_over(self) -> None:
        self._guarded(self._session.grace_over)

    # Writing ------------------------------------------------------------------------------------

    async def _write(self) -> None:
        try:
            await self._writer.run()
        except Disconnected:
            pass  # the reader learns of it too
        except Exception:  # the edge of a task: without a writer the socket is of no use
            logger.exception("writer_crashed", extra={"fields": {"socket": self.number}})
            self._around.metrics.errors.labels("engine").inc()
            self._link.abort()

    def _sent(self, item: Outgoing) -> None:
        if self._delivery.sent(item):
            self._guarded(self._session.finish_sent)

    def _flow(self, pause: bool) -> None:
        stream = self._session.stream
        if pause and stream is not None:
            self._paused = stream
            self._around.metrics.paused.inc()
            self._around.hub.submit(api.Pause(stream))
        elif not pause and self._paused is not None:
            self._around.hub.submit(api.Resume(self._paused))
            self._around.metrics.paused.dec()
            self._paused = None

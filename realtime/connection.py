"""``Connection``: the shell around one session. Executes its effects on a link and the engine.

Two tasks of the event loop share it: the reader turns frames into messages, the writer puts what
the outbox holds on the wire. Engine events and finished encodings come in as callbacks on the same
loop. Knows no wire format: the dialect's functions translate.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from shoal.engine import api
from shoal.proto.errors import CLOSE_CODES, Code, ProtocolError
from shoal.proto.messages import (
    Aligned,
    Audio,
    Cancelled,
    ClientId,
    Finish,
    Flushed,
    Heard,
    ServerMessage,
)

from . import log
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
from .encode import Chunk
from .link import Dialect, Disconnected, Link
from .outbox import Kind, OutboxFull, Outgoing
from .session import Rules, Session, State
from .surroundings import Surroundings
from .timers import Timers
from .turn import Turn
from .writer import Writer

YIELD_FRAMES = 32
FLUSH_S = 0.05
_CODE_OF_CLOSE = {close: code for code, close in CLOSE_CODES.items()}
_ALIKE = frozenset((Kind.NOTE, Kind.MARK))
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
        self._turn: Turn | None = None
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
                message = self._dialect.decode(frame)
            except ProtocolError as error:
                if error.code not in CLOSE_CODES:  # else the close counts it
                    self._refused(error.code)
                self._guarded(lambda error=error: self._session.refuse(error))
            else:
                self._guarded(lambda message=message: self._session.receive(message))
            frames += 1
            if frames % YIELD_FRAMES == 0:  # many frames may wait: others have their turn too
                await asyncio.sleep(0)

    # From the loop's other callbacks ------------------------------------------------------------

    def on_engine(self, event: api.Event) -> None:
        """An event of this connection's stream."""
        turn = self._turn
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
        for effect in effects:
            match effect:
                case ToEngine(command=command):
                    if isinstance(command, api.PushText) and self._turn is not None:
                        self._turn.got_text(command.text, self._clock())
                    self._around.hub.submit(command)
                case Encode(samples=samples):
                    self._encode(samples)
                case EncodeFlush(id=mark):
                    self._encode_flush(mark)
                case SayFlushed(id=mark):
                    self._say_flushed(mark)
                case EncodeEnd():
                    self._timers.stop("flush")
                    if self._turn is not None:
                        self._turn.finish()
                case ToClient(message=message):
                    self._send(message)
                case BeginTurn():
                    self._begin(effect)
                case EndTurn(stream=stream):
                    self._end(stream)
                case DropTurn():
                    self._drop()
                case SayCancelled(heard=heard):
                    self._say_cancelled(heard)
                case StartGrace(seconds=seconds):
                    self._timers.start("grace", seconds, self._grace_over)
                case StopGrace():
                    self._timers.stop("grace")
                case Close():
                    self._in_order(lambda close=effect: self._close(close))

    def _begin(self, begin: BeginTurn) -> None:
        around = self._around
        batch = begin.request.priority == "batch"
        around.hub.register(begin.stream, self.on_engine, batch)
        self._counted = around.metrics.batch_turns if batch else around.metrics.turns
        self._counted.inc()
        self._turn = Turn(
            begin.stream,
            begin.request,
            around.model_rate,
            around.pool,
            around.metrics,
            self._clock(),
            self._queue_audio,
            self._encoder_failed,
            self._session.inserted,
            around.traces.turn(),
        )
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

    def _drop(self) -> None:
        turn = self._turn
        if turn is not None and not turn.dropped:
            turn.dropped = True
            turn.report(turn.outcome or "cancelled", self.number, self._clock())
        self._turn = None
        self._timers.stop("flush")
        self._writer.drop_turn()

    def _close(self, close: Close) -> None:
        code = _CODE_OF_CLOSE.get(close.code)
        if code is not None and code not in _NO_REFUSALS:
            self._refused(code)
        self._writer.close(close.code, close.reason)
        self._close_code = close.code
        self._timers.start("stall", self._around.config.send_stall_s, self._link.abort)

    def _grace_over(self) -> None:
        self._guarded(self._session.grace_over)

    # Audio --------------------------------------------------------------------------------------

    def _encode(self, samples: bytes) -> None:
        self._timers.stop("flush")
        if self._turn is not None:
            self._writer.expect(len(samples) / 2 / self._around.model_rate)
            self._turn.encode(samples)

    def _encode_flush(self, mark: ClientId | None) -> None:
        if mark is None:  # unless more audio comes at once, and carries the tail along unpadded
            self._timers.start("flush", FLUSH_S, self._flush)
            return
        self._timers.stop("flush")
        if self._turn is not None:
            self._turn.flush()
        self._say_flushed(mark)

    def _flush(self) -> None:
        def flush() -> list[Effect]:
            if self._turn is not None:
                self._turn.flush()
            return []

        self._guarded(flush)

    def _queue_audio(self, chunks: list[Chunk], samples: int) -> None:
        self._writer.encoded(samples / self._around.model_rate)
        time_ms = self._time_ms(self._turn)
        for chunk in chunks:
            self._push(Audio(chunk.payload), time_ms, Kind.AUDIO, chunk.audio_s)

    def _push(
        self, message: ServerMessage, time_ms: int | None, kind: Kind, audio_s: float = 0.0
    ) -> None:
        """The last of what the dialect makes of ``message`` stands for it."""
        *before, last = self._dialect.encode(message, time_ms) or [b""]
        for payload in before:
            self._writer.push(Outgoing(payload, kind if kind in _ALIKE else Kind.AUDIO))
        self._writer.push(Outgoing(last, kind, audio_s))

    def _encoder_failed(self, error: Exception) -> None:
        fields = {"socket": self.number, "stream": self._turn.stream if self._turn else None}
        logger.error("encoder_failed", exc_info=error, extra={"fields": fields})
        self._around.metrics.errors.labels("engine").inc()
        self._guarded(self._session.encoder_failed)

    def _send(self, message: ServerMessage) -> None:
        turn = self._turn
        match message:
            case Finish():
                kind = Kind.FINISH
            case Flushed() | Aligned():
                kind = Kind.MARK
            case _:
                kind = Kind.NOTE

        def push() -> None:
            if turn is not None and kind is not Kind.NOTE:
                if turn.dropped:
                    return
                if isinstance(message, Finish):
                    turn.outcome = turn.outcome or message.reason
            self._push(message, self._time_ms(turn), kind)

        self._in_order(push)

    def _say_flushed(self, mark: ClientId) -> None:
        turn = self._turn

        def send() -> None:
            if turn is None or not turn.dropped:
                audio_s = 0.0 if turn is None else turn.queued_audio_s
                self._push(Flushed(mark, audio_s), None, Kind.MARK)

        self._in_order(send)

    def _say_cancelled(self, heard: Heard | None) -> None:
        sent_s = 0.0 if self._turn is None else self._turn.sent_audio_s
        self._drop()
        self._send(Cancelled(sent_s, heard))

    def _in_order(self, step: Callable[[], None]) -> None:
        """Behind all audio of the turn that was encoded before."""

        def guarded() -> list[Effect]:
            step()
            return []

        if self._turn is None:
            step()
        else:
            self._turn.in_order(lambda: self._guarded(guarded))

    def _time_ms(self, turn: Turn | None) -> int | None:
        return None if turn is None else int((self._clock() - turn.started_s) * 1000)

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
        turn = self._turn
        if turn is None or turn.dropped:
            return
        if item.kind is Kind.AUDIO:
            turn.sent_audio(item.audio_s, self._clock())
        elif item.kind is Kind.FINISH:
            turn.report(turn.outcome or "stop", self.number, self._clock())
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

"""``Delivery``: one connection's sound on its way out, and everything that keeps its place in it.

Owns the turn whose sound is going out and when its encoder is flushed. What is said behind sound
waits until that is encoded; what belongs to a turn that was dropped is not said any more. Writes
messages as the dialect does; knows no engine and no rules. Runs on the event loop.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

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

from .effects import BeginTurn, Effect
from .encode import Chunk
from .link import Dialect
from .outbox import Kind, Outgoing
from .session import Session
from .surroundings import Surroundings
from .timers import Timers
from .turn import Turn
from .writer import Writer

FLUSH_S: Final = 0.05
_ALIKE: Final = frozenset((Kind.NOTE, Kind.MARK))

logger = logging.getLogger("shoal.connection")


class Delivery:
    """See the module. ``guarded`` runs what comes later than the effect that asked for it, so that
    it ends the session at most. ``session`` learns of the encoder what concerns its rules."""

    def __init__(
        self,
        number: int,
        dialect: Dialect,
        writer: Writer,
        around: Surroundings,
        session: Session,
        guarded: Callable[[Callable[[], list[Effect]]], None],
    ) -> None:
        self._number = number
        self._dialect = dialect
        self._writer = writer
        self._around = around
        self._session = session
        self._guarded = guarded
        self._timers = Timers()
        self.turn: Turn | None = None
        """The turn whose sound goes out, from its beginning until it is dropped."""

    def begin(self, begin: BeginTurn) -> None:
        """What is encoded from now on is this turn's."""
        around = self._around
        self.turn = Turn(
            begin.stream,
            begin.request,
            around.model_rate,
            around.pool,
            around.metrics,
            around.clock(),
            self._queue_audio,
            self._encoder_failed,
            self._session.inserted,
            around.traces.turn(),
        )

    def drop(self) -> None:
        """Forget the turn, and what of it is not on the wire yet."""
        turn = self.turn
        if turn is not None and not turn.dropped:
            turn.dropped = True
            turn.report(turn.outcome or "cancelled", self._number, self._around.clock())
        self.turn = None
        self.stop()
        self._writer.drop_turn()

    def stop(self) -> None:
        """Do nothing later."""
        self._timers.stop_all()

    # Sound --------------------------------------------------------------------------------------

    def encode(self, samples: bytes) -> None:
        """``samples``: mono s16le at the model's rate.

        :raises Exception: what an encoder on the loop raised; so do ``flush`` and ``finish``.
        """
        self.stop()
        if self.turn is not None:
            self._writer.expect(len(samples) / 2 / self._around.model_rate)
            self.turn.encode(samples)

    def flush(self, mark: ClientId | None) -> None:
        """Send what the encoder holds back: with a ``mark`` at once, and say so; else soon."""
        if mark is None:  # unless more audio comes at once, and carries the tail along unpadded
            self._timers.start("flush", FLUSH_S, self._flush)
            return
        self.stop()
        if self.turn is not None:
            self.turn.flush()
        self.say_flushed(mark)

    def finish(self) -> None:
        """Send the rest and finalise the container."""
        self.stop()
        if self.turn is not None:
            self.turn.finish()

    def _flush(self) -> None:
        def flush() -> list[Effect]:
            if self.turn is not None:
                self.turn.flush()
            return []

        self._guarded(flush)

    def _queue_audio(self, chunks: list[Chunk], samples: int) -> None:
        self._writer.encoded(samples / self._around.model_rate)
        time_ms = self._time_ms(self.turn)
        for chunk in chunks:
            self._push(Audio(chunk.payload), time_ms, Kind.AUDIO, chunk.audio_s)

    def _encoder_failed(self, error: Exception) -> None:
        fields = {"socket": self._number, "stream": self.turn.stream if self.turn else None}
        logger.error("encoder_failed", exc_info=error, extra={"fields": fields})
        self._around.metrics.errors.labels("engine").inc()
        self._guarded(self._session.encoder_failed)

    # What keeps its place in it -----------------------------------------------------------------

    def send(self, message: ServerMessage) -> None:
        """Say ``message`` behind what was encoded before; of a turn only while it lasts."""
        turn = self.turn
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

        self.in_order(push)

    def say_flushed(self, mark: ClientId) -> None:
        """All that was encoded has been sent: say so, and how much that is."""
        turn = self.turn

        def send() -> None:
            if turn is None or not turn.dropped:
                audio_s = 0.0 if turn is None else turn.queued_audio_s
                self._push(Flushed(mark, audio_s), None, Kind.MARK)

        self.in_order(send)

    def say_cancelled(self, heard: Heard | None) -> None:
        """Drop the turn, and say how much of it had been sent."""
        sent_s = 0.0 if self.turn is None else self.turn.sent_audio_s
        self.drop()
        self.send(Cancelled(sent_s, heard))

    def in_order(self, step: Callable[[], None]) -> None:
        """Behind all audio of the turn that was encoded before."""

        def guarded() -> list[Effect]:
            step()
            return []

        if self.turn is None:
            step()
        else:
            self.turn.in_order(lambda: self._guarded(guarded))

    def sent(self, item: Outgoing) -> bool:
        """``item`` is on the wire; True when it was the turn's finish."""
        turn = self.turn
        if turn is None or turn.dropped:
            return False
        if item.kind is Kind.AUDIO:
            turn.sent_audio(item.audio_s, self._around.clock())
        elif item.kind is Kind.FINISH:
            turn.report(turn.outcome or "stop", self._number, self._around.clock())
            return True
        return False

    def _push(
        self, message: ServerMessage, time_ms: int | None, kind: Kind, audio_s: float = 0.0
    ) -> None:
        """The last of what the dialect makes of ``message`` stands for it."""
        *before, last = self._dialect.encode(message, time_ms) or [b""]
        for payload in before:
            self._writer.push(Outgoing(payload, kind if kind in _ALIKE else Kind.AUDIO))
        self._writer.push(Outgoing(last, kind, audio_s))

    def _time_ms(self, turn: Turn | None) -> int | None:
        return None if turn is None else int((self._around.clock() - turn.started_s) * 1000)

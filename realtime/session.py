"""One connection's rules as a state machine: messages and engine events in, effects out. No I/O.

Knows neither sockets nor bytes nor clocks; a shell (``connection.py``) executes the effects in
order and keeps the order of what goes to the client: a ``ToClient`` leaves after all audio that
was encoded before it. Runs on the event loop's thread.

State        | Start  | Text  | Flush | Flush(id)  | Stop     | Cancel    | Played | engine
AWAIT_START  | turn   | error | error | error      | error    | error     | error  | -
SPEAKING     | cancel | push  | flush | flush, say | DRAINING | say, IDLE | note   | SPEAKING
DRAINING     | cancel | -     | -     | say at end | -        | say, IDLE | note   | finish, IDLE
IDLE         | turn   | -     | -     | say        | -        | say       | note   | -
CLOSED       | -      | -     | -     | -          | -        | -         | -      | -

An engine that fails closes the socket behind an error. ``cancel`` ends the running turn without a
finish and begins the new one. A ``Cancel`` ends it and says so, also when only its audio was still
on its way; from then on the socket stays as if it had just been opened. A client that vanishes, a
server that drains and bytes that are no message are the same in every state.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto

from shoal.engine import api
from shoal.proto.errors import CLOSE_CODES, GOING_AWAY, NORMAL_CLOSE, Code, ProtocolError
from shoal.proto.messages import (
    MAX_TEXT_CHARS,
    Aligned,
    Cancel,
    ClientId,
    ClientMessage,
    Error,
    Finish,
    Flush,
    Log,
    Played,
    Ready,
    Start,
    Stop,
    Text,
    TtsRequest,
    Unknown,
)

from .alignment import Alignment
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
from .listening import Listening
from .opening import open_command, requested_voice
from .sent_text import SentText
from .turn_text import MAX_MARKS, Mark, TurnText
from .unread import nothing_unread

SILENCE_S = 0.4
"""Said for text in which nothing can be spoken: some clients take no audio for a failure."""


class State(Enum):
    AWAIT_START = auto()
    SPEAKING = auto()
    DRAINING = auto()
    IDLE = auto()
    CLOSED = auto()


@dataclass(frozen=True, slots=True)
class Rules:
    """What a session must know of the server around it."""

    new_stream: Callable[[], api.StreamId]
    check: Callable[[TtsRequest], None]
    """Raises ``ProtocolError`` for a request that this server cannot encode."""
    voice_of: Callable[[str | None], str | None]
    """The voice that answers to a ``reference_id``; ``None`` is the model's default."""
    sample_rate: int
    slots: int
    grace_s: float
    voices_by_reference: bool = True
    speakers: bool = True
    model: str = ""
    unread: Callable[[str], str] = nothing_unread


@dataclass(slots=True)
class _Turn:
    """The turn that the engine is at."""

    stream: api.StreamId
    alignment: Alignment
    text: TurnText
    late: list[ClientId] = field(default_factory=list[ClientId])  # ids of flushes after the stop
    remark: str = ""  # on text that the voice cannot read


class Session:
    """See the module. Every method returns the effects, in order."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._turn: _Turn | None = None
        self._listening = Listening()
        self._going_away = False
        self._next_mark = 0
        self.state = State.AWAIT_START

    @property
    def stream(self) -> api.StreamId | None:
        """The stream whose events belong here."""
        return self._turn.stream if self._turn else None

    # From the client ----------------------------------------------------------------------------

    def handshake(self, reference_id: str | None) -> list[Effect]:
        """The socket is open. A voice named there is prefilled before the first start."""
        if reference_id is None:
            return []
        voice = api.Voice(voice_id=self._rules.voice_of(reference_id))
        return [ToEngine(api.Prepare(voice))]

    def receive(self, message: ClientMessage) -> list[Effect]:
        match self.state, message:
            case (State.CLOSED, _) | (_, Unknown()):
                return []
            case _, Start():
                return self._begin(message)
            case State.AWAIT_START, _:
                error = ProtocolError(Code.UNEXPECTED, "the first event must be start")
                return self.refuse(error)
            case State.SPEAKING, Text(text=text):
                return self._push(text)
            case State.SPEAKING, Flush(id=mark):
                return self._flush(mark)
            case _, Flush(id=mark):
                return [] if mark is None else self._flush_late(mark)
            case State.SPEAKING, Stop():
                return self._stop()
            case _, Played(audio_s=audio_s):
                self._listening.played(audio_s)
                return []
            case _, Cancel(played_s=played_s):
                return self._cut(played_s)
            case _:
                return []

    def refuse(self, error: ProtocolError) -> list[Effect]:
        """What came was no message, or not one for now."""
        if self.state is State.CLOSED:
            return []
        if error.code in CLOSE_CODES:
            return self._fail(error.code, error.message)
        return [ToClient(Error(error.message))]

    def disconnected(self) -> list[Effect]:
        """The socket is gone, whether it said so or not."""
        if self.state is State.CLOSED:
            return []
        self.state = State.CLOSED
        return [*self._cancel(), DropTurn(), StopGrace()]

    # From the engine ----------------------------------------------------------------------------

    def engine_event(self, event: api.Event) -> list[Effect]:
        turn = self._turn
        if turn is None or event.stream != turn.stream:
            return []
        match event:
            case api.Pcm(samples=samples):
                turn.text.sounded(samples)
                return [*_said(turn.alignment.audio(samples)), Encode(samples)]
            case api.SegmentStarted(index=index, text=text, span=span):
                turn.text.began(span.begin, span.place(len(text)))
                return _said(turn.alignment.segment(index, text, span))
            case api.Flushed():
                mark = turn.text.reached()
                aligned = _said(turn.alignment.end_segment(mark.chars))
                silence = self._silence_for(turn, mark)
                return [*aligned, *silence, EncodeFlush(mark.id)]
            case api.Finished():
                aligned = _said(turn.alignment.end_segment(turn.text.sent.chars))
                silence = self._silence_for(turn, None)
                return [*aligned, *silence, EncodeEnd(), *self._finish(turn)]
            case api.Failed(fault=fault, message=message):
                return self._fail(_CODE_OF[fault], message, cancel=False)
            case api.Opened(note=note):
                return [ToClient(Log(note))] if note else []

    # From the shell -----------------------------------------------------------------------------

    def finish_sent(self) -> list[Effect]:
        """A finish is on the wire: from now on the client may be slow to say what comes next."""
        return [StartGrace(self._rules.grace_s)] if self.state is State.IDLE else []

    def inserted(self, at_samples: int, total_s: float) -> None:
        """Behind ``at_samples`` of the turn's audio its encoder added silence, ``total_s`` of it
        in the whole turn."""
        self._listening.inserted(at_samples, total_s)

    def grace_over(self) -> list[Effect]:
        return self._close(NORMAL_CLOSE, "") if self.state is State.IDLE else []

    def encoder_failed(self) -> list[Effect]:
        return [] if self.state is State.CLOSED else self._fail(Code.ENGINE, "encoding failed")

    def abort(self, code: Code, message: str) -> list[Effect]:
        """End it from our side, whatever it is at."""
        return [] if self.state is State.CLOSED else self._fail(code, message)

    def drain(self, quiet: bool) -> list[Effect]:
        """The server is going away: finish the turn, then close. May be called repeatedly.

        ``quiet``: nothing was said in either direction for a while, so there is nothing to wait
        for although the turn has no stop.
        """
        self._going_away = True
        match self.state:
            case State.AWAIT_START | State.IDLE:
                return self._close(GOING_AWAY, "server is shutting down")
            case State.SPEAKING if quiet:
                return self._fail(Code.DRAINING, "server is shutting down")
            case _:
                return []

    # Steps --------------------------------------------------------------------------------------

    def _begin(self, start: Start) -> list[Effect]:
        request = start.request
        self._listening.forget()
        effects = [*self._cancel(), DropTurn(), StopGrace()]
        if self._going_away:
            return [*effects, *self._fail(Code.DRAINING, "server is shutting down")]
        try:
            self._rules.check(request)
            command = self._open(request)
        except ProtocolError as error:
            return [*effects, *self._fail(error.code, error.message)]
        rate, speed = self._rules.sample_rate, request.prosody.speed
        sent = SentText()
        alignment = self._listening.begin(rate, speed, start.timestamps, sent)
        self._turn = _Turn(command.stream, alignment, TurnText(sent))
        self.state = State.SPEAKING
        effects += [BeginTurn(command.stream, request), ToEngine(command)]
        if start.ready:
            effects.append(ToClient(Ready(request.format, request.sample_rate, self._rules.model)))
        return [*effects, *self._push(request.text)]

    def _open(self, request: TtsRequest) -> api.Open:
        rules = self._rules
        voice = requested_voice(request, rules.voice_of, rules.voices_by_reference, rules.speakers)
        return open_command(rules.new_stream(), voice, request)

    def _push(self, text: str) -> list[Effect]:
        turn = self._running()
        if not text:
            return []
        if not turn.text.push(text):
            return self._fail(Code.TOO_BIG, f"over {MAX_TEXT_CHARS} characters wait to be spoken")
        remark = "" if turn.remark else self._rules.unread(text)
        turn.remark = turn.remark or remark
        push = ToEngine(api.PushText(turn.stream, text))
        return [push, ToClient(Log(remark))] if remark else [push]

    def _flush(self, mark: ClientId | None) -> list[Effect]:
        turn = self._running()
        if turn.text.full:
            return [] if mark is None else [ToClient(Error(f"over {MAX_MARKS} flushes wait"))]
        if not turn.text.unflushed and mark is None:
            return []
        if not turn.text.waits:
            return [EncodeFlush(mark)]
        turn.text.mark(mark)
        self._next_mark += 1
        return [ToEngine(api.Flush(turn.stream, self._next_mark))]

    def _flush_late(self, mark: ClientId) -> list[Effect]:
        """A flush that wants an answer although there can be no more text."""
        if self._turn is None:
            return [SayFlushed(mark)]
        if len(self._turn.late) >= MAX_MARKS:
            return [ToClient(Error(f"over {MAX_MARKS} flushes wait"))]
        self._turn.late.append(mark)
        return []

    def _cut(self, played_s: float | None) -> list[Effect]:
        """End the turn without a finish; the client will go on with this connection."""
        if played_s is not None:
            self._listening.played(played_s)
        effects = [*self._cancel(), SayCancelled(self._listening.heard()), StopGrace()]
        self._listening.forget()
        self.state = State.IDLE
        if self._going_away:
            effects += self._close(GOING_AWAY, "server is shutting down")
        return effects

    def _stop(self) -> list[Effect]:
        turn = self._running()
        if not turn.text.worded:
            return [*self._cancel(), *self._finish(turn)]
        self.state = State.DRAINING
        return [ToEngine(api.EndText(turn.stream))]

    def _finish(self, turn: _Turn) -> list[Effect]:
        effects: list[Effect] = [] if self._turn is None else [EndTurn(turn.stream)]
        self._turn = None
        self.state = State.IDLE
        effects += [SayFlushed(mark) for mark in (*turn.text.owed, *turn.late)]
        effects.append(ToClient(Finish("stop")))
        if self._going_away:
            effects += self._close(GOING_AWAY, "server is shutting down")
        return effects

    def _silence_for(self, turn: _Turn, mark: Mark | None) -> list[Effect]:
        """Silence in place of text before ``mark``, or before the end, that made no sound."""
        samples = turn.text.lacking(mark, int(SILENCE_S * self._rules.sample_rate))
        if not samples:
            return []
        turn.alignment.silence(samples)
        return [Encode(bytes(2 * samples))]

    def _cancel(self) -> list[Effect]:
        if self._turn is None:
            return []
        stream, self._turn = self._turn.stream, None
        return [ToEngine(api.Cancel(stream)), EndTurn(stream)]

    def _fail(self, code: Code, message: str, cancel: bool = True) -> list[Effect]:
        effects: list[Effect] = self._cancel()
        if not cancel:
            effects = [e for e in effects if not isinstance(e, ToEngine)]
        slots = self._rules.slots if code is Code.BUSY else None
        return [
            *effects,
            ToClient(Error(message, slots)),
            ToClient(Finish("error", message)),
            *self._close(CLOSE_CODES[code], message),
        ]

    def _close(self, code: int, reason: str) -> list[Effect]:
        self.state = State.CLOSED
        return [StopGrace(), Close(code, reason)]

    def _running(self) -> _Turn:
        assert self._turn is not None, "only a turn that runs takes text"
        return self._turn


def _said(snapshots: list[Aligned]) -> list[Effect]:
    return [ToClient(snapshot) for snapshot in snapshots]


_CODE_OF = {
    api.Fault.CLIENT: Code.BAD_REQUEST,
    api.Fault.BUSY: Code.BUSY,
    api.Fault.ENGINE: Code.ENGINE,
}

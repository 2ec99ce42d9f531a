"""One connection's rules as a state machine: messages and engine events in, effects out. No I/O.

Knows neither sockets nor bytes nor clocks; a shell (``connection.py``) executes the effects in
order and keeps the order of what goes to the client: a ``ToClient`` leaves after all audio that
was encoded before it. Runs on the event loop's thread.

State        | Start  | Text    | Flush | Stop     | engine ended | engine failed
AWAIT_START  | turn   | error   | error | error    | -            | -
SPEAKING     | cancel | push    | flush | DRAINING | finish, IDLE | error, CLOSED
DRAINING     | cancel | -       | -     | -        | finish, IDLE | error, CLOSED
IDLE         | turn   | -       | -     | -        | -            | -
CLOSED       | -      | -       | -     | -        | -            | -

``cancel`` ends the running turn without a finish and begins the new one. A client that vanishes,
a server that drains and bytes that are no message are the same in every state.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto

from shoal.engine import api
from shoal.proto.errors import CLOSE_CODES, GOING_AWAY, NORMAL_CLOSE, Code, ProtocolError
from shoal.proto.messages import (
    MAX_TEXT_CHARS,
    ClientMessage,
    Error,
    Finish,
    Flush,
    Log,
    Start,
    Stop,
    Text,
    TtsRequest,
    Unknown,
)

from .effects import (
    BeginTurn,
    Close,
    DropTurn,
    Effect,
    Encode,
    EncodeEnd,
    EncodeFlush,
    EndTurn,
    StartGrace,
    StopGrace,
    ToClient,
    ToEngine,
)

MAX_MARKS = 512
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


@dataclass(slots=True)
class _Turn:
    """The turn that the engine is at."""

    stream: api.StreamId
    marks: deque[bool] = field(default_factory=deque[bool])  # non-blank text before the mark?
    unflushed: bool = False  # text since the last mark
    unspoken: bool = False  # non-blank text since the last mark
    worded: bool = False  # any non-blank text at all
    waiting_chars: int = 0
    sounded: bool = False  # audio since the last mark that was reached


class Session:
    """See the module. Every method returns the effects, in order."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._turn: _Turn | None = None
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
            case _, Start(request=request):
                return self._begin(request)
            case State.AWAIT_START, _:
                error = ProtocolError(Code.UNEXPECTED, "the first event must be start")
                return self.refuse(error)
            case State.SPEAKING, Text(text=text):
                return self._push(text)
            case State.SPEAKING, Flush():
                return self._flush()
            case State.SPEAKING, Stop():
                return self._stop()
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
                turn.sounded = True
                return [Encode(samples)]
            case api.SegmentStarted(text=text):
                turn.waiting_chars = max(0, turn.waiting_chars - len(text))
                return []
            case api.Flushed():
                worded = turn.marks.popleft() if turn.marks else False
                if not (turn.marks or turn.unflushed):
                    turn.waiting_chars = 0
                return [*self._silence_if(turn, worded), EncodeFlush()]
            case api.Finished():
                silence = self._silence_if(turn, turn.unspoken)
                return [*silence, EncodeEnd(), *self._finish(turn)]
            case api.Failed(fault=fault, message=message):
                return self._fail(_CODE_OF[fault], message, cancel=False)
            case api.Opened():
                return []

    # From the shell -----------------------------------------------------------------------------

    def finish_sent(self) -> list[Effect]:
        """A finish is on the wire: from now on the client may be slow to say what comes next."""
        return [StartGrace(self._rules.grace_s)] if self.state is State.IDLE else []

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

    def _begin(self, request: TtsRequest) -> list[Effect]:
        effects = [*self._cancel(), DropTurn(), StopGrace()]
        if self._going_away:
            return [*effects, *self._fail(Code.DRAINING, "server is shutting down")]
        try:
            self._rules.check(request)
            command = self._open(request)
        except ProtocolError as error:
            return [*effects, *self._fail(error.code, error.message)]
        self._turn = _Turn(command.stream)
        self.state = State.SPEAKING
        effects += [BeginTurn(command.stream, request), ToEngine(command)]
        if request.prosody.speed != 1.0:
            effects.append(ToClient(Log("prosody.speed is not supported: speaking at 1.0")))
        return [*effects, *self._push(request.text)]

    def _open(self, request: TtsRequest) -> api.Open:
        voice_id = self._rules.voice_of(request.reference_id)
        references = () if request.reference_id else request.references
        if references and not self._rules.voices_by_reference:
            raise ProtocolError(Code.BAD_REQUEST, "this model takes no references")
        return api.Open(
            self._rules.new_stream(),
            api.Voice(voice_id, tuple(api.Reference(r.audio, r.text) for r in references)),
            api.Sampling(
                temperature=request.temperature,
                top_p=request.top_p,
                seed=request.seed,
                max_frames_per_segment=request.max_new_tokens,
            ),
            api.Segmentation(
                api.Latency(request.latency),
                max_chars=request.chunk_length,
                min_chars=request.min_chunk_length,
                normalize=request.normalize,
            ),
        )

    def _push(self, text: str) -> list[Effect]:
        turn = self._running()
        if not text:
            return []
        if turn.waiting_chars + len(text) > MAX_TEXT_CHARS:
            return self._fail(Code.TOO_BIG, f"over {MAX_TEXT_CHARS} characters wait to be spoken")
        turn.waiting_chars += len(text)
        turn.unflushed = True
        if not text.isspace():
            turn.unspoken = turn.worded = True
        return [ToEngine(api.PushText(turn.stream, text))]

    def _flush(self) -> list[Effect]:
        turn = self._running()
        if not turn.unflushed or len(turn.marks) >= MAX_MARKS:
            return []
        turn.marks.append(turn.unspoken)
        turn.unflushed = turn.unspoken = False
        self._next_mark += 1
        return [ToEngine(api.Flush(turn.stream, self._next_mark))]

    def _stop(self) -> list[Effect]:
        turn = self._running()
        if not turn.worded:
            return [*self._cancel(), *self._finish(turn)]
        self.state = State.DRAINING
        return [ToEngine(api.EndText(turn.stream))]

    def _finish(self, turn: _Turn) -> list[Effect]:
        effects: list[Effect] = [] if self._turn is None else [EndTurn(turn.stream)]
        self._turn = None
        self.state = State.IDLE
        effects.append(ToClient(Finish("stop")))
        if self._going_away:
            effects += self._close(GOING_AWAY, "server is shutting down")
        return effects

    def _silence_if(self, turn: _Turn, worded: bool) -> list[Effect]:
        """Silence in place of text that had words but made no sound."""
        silent = worded and not turn.sounded
        turn.sounded = False
        if not silent:
            return []
        return [Encode(bytes(2 * int(SILENCE_S * self._rules.sample_rate)))]

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


_CODE_OF = {
    api.Fault.CLIENT: Code.BAD_REQUEST,
    api.Fault.BUSY: Code.BUSY,
    api.Fault.ENGINE: Code.ENGINE,
}

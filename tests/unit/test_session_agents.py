"""What agents say to a session beyond Fish's protocol, in every state that it can be in."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.engine import api
from shoal.proto.errors import Code, ProtocolError
from shoal.proto.messages import (
    Cancel,
    ClientMessage,
    Error,
    Finish,
    Flush,
    Played,
    Ready,
    Start,
    Stop,
    Text,
)
from shoal.realtime.effects import (
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
from shoal.realtime.session import Session, State
from shoal.realtime.turn_text import MAX_MARKS
from tests.sessions import (
    AWAY,
    PCM,
    REQUEST,
    S1,
    S2,
    SILENCE,
    START,
    cancelled,
    finished,
    new_session,
    opened,
    pcm,
    push,
    speaking,
)


def awaiting() -> Session:
    return new_session()


def draining() -> Session:
    session = speaking("One.")
    session.receive(Stop())
    return session


def idle() -> Session:
    session = draining()
    session.engine_event(finished())
    return session


def closed() -> Session:
    session = speaking("One.")
    session.disconnected()
    return session


FIRST = [ToClient(Error("the first event must be start"))]
CUT = [SayCancelled(None), StopGrace()]
TABLE: list[tuple[Callable[[], Session], ClientMessage, list[Effect], State]] = [
    (awaiting, Cancel(), FIRST, State.AWAIT_START),
    (awaiting, Flush("a"), FIRST, State.AWAIT_START),
    (awaiting, Played(1.0), FIRST, State.AWAIT_START),
    (lambda: speaking("One."), Cancel(), [*cancelled(), *CUT], State.IDLE),
    (lambda: speaking(), Cancel(), [*cancelled(), *CUT], State.IDLE),
    (lambda: speaking("One."), Flush("a"), [ToEngine(api.Flush(S1, 1))], State.SPEAKING),
    (lambda: speaking(), Flush("a"), [EncodeFlush("a")], State.SPEAKING),
    (lambda: speaking("One."), Played(1.0), [], State.SPEAKING),
    (draining, Cancel(), [*cancelled(), *CUT], State.IDLE),
    (draining, Flush("a"), [], State.DRAINING),
    (draining, Played(1.0), [], State.DRAINING),
    (idle, Cancel(), CUT, State.IDLE),
    (idle, Flush("a"), [SayFlushed("a")], State.IDLE),
    (idle, Played(1.0), [], State.IDLE),
    (closed, Cancel(), [], State.CLOSED),
    (closed, Flush("a"), [], State.CLOSED),
    (closed, Played(1.0), [], State.CLOSED),
]


@pytest.mark.parametrize(
    ("session", "message", "effects", "after"),
    TABLE,
    ids=[f"{row[3].name}-{type(row[1]).__name__}-{n}" for n, row in enumerate(TABLE)],
)
def test_every_new_message_has_an_answer_in_every_state(
    session: Callable[[], Session], message: ClientMessage, effects: list[Effect], after: State
) -> None:
    made = session()
    assert made.receive(message) == effects
    assert made.state is after


# Cancel -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [lambda: speaking("One."), draining, idle])
def test_after_a_cancel_the_next_start_works_and_the_old_turn_is_nobody_s(
    state: Callable[[], Session],
) -> None:
    session = state()
    session.receive(Cancel())
    assert session.engine_event(pcm(S1)) == []
    assert session.engine_event(finished(S1)) == []
    assert session.receive(Text("too late")) == [] == session.receive(Stop())
    assert session.receive(START) == opened(S2)
    assert session.engine_event(pcm(S2)) == [Encode(PCM)]


def test_a_cancelled_socket_is_not_closed_for_being_idle() -> None:
    """Who interrupts will speak for longer than a few seconds, and then use the socket again."""
    session = idle()
    assert session.finish_sent() == [StartGrace(5.0)]
    assert StopGrace() in session.receive(Cancel())
    assert session.state is State.IDLE


def test_a_cancel_forgets_the_flushes_that_waited() -> None:
    session = speaking("One.")
    session.receive(Flush("a"))
    session.receive(Cancel())
    assert session.engine_event(api.Flushed(S1, 1, 0)) == []
    assert session.receive(START) == opened(S2)
    assert session.receive(Flush("b")) == [EncodeFlush("b")]


def test_a_cancel_while_the_server_drains_ends_the_socket() -> None:
    session = speaking("One.")
    session.drain(quiet=False)
    assert session.receive(Cancel())[-1] == Close(1001, AWAY)
    assert session.state is State.CLOSED


# Flush with an id -------------------------------------------------------------------------------


def test_a_flush_is_acknowledged_after_its_audio() -> None:
    session = speaking("One.")
    session.receive(Flush(7))
    assert session.engine_event(pcm()) == [Encode(PCM)]
    assert session.engine_event(api.Flushed(S1, 1, 100)) == [EncodeFlush(7)]


def test_a_flush_without_news_waits_for_the_ones_before() -> None:
    session = speaking("One.")
    assert session.receive(Flush("a")) == [ToEngine(api.Flush(S1, 1))]
    assert session.receive(Flush("b")) == [ToEngine(api.Flush(S1, 2))]
    session.engine_event(pcm())
    assert session.engine_event(api.Flushed(S1, 1, 100)) == [EncodeFlush("a")]
    assert session.engine_event(api.Flushed(S1, 2, 100)) == [EncodeFlush("b")]
    assert session.receive(Flush("c")) == [EncodeFlush("c")]


def test_unspeakable_text_is_a_short_silence_before_the_acknowledgement() -> None:
    session = speaking("...")
    session.receive(Flush("a"))
    assert session.engine_event(api.Flushed(S1, 1, 0)) == [SILENCE, EncodeFlush("a")]


def test_blank_text_is_acknowledged_without_any_sound() -> None:
    session = speaking(" ")
    session.receive(Flush("a"))
    assert session.engine_event(api.Flushed(S1, 1, 0)) == [EncodeFlush("a")]


def test_a_flush_after_the_stop_is_acknowledged_before_the_finish() -> None:
    session = draining()
    session.receive(Flush("a"))
    session.receive(Flush())
    session.engine_event(pcm())
    assert session.engine_event(finished()) == [
        EncodeEnd(),
        EndTurn(S1),
        SayFlushed("a"),
        ToClient(Finish("stop")),
    ]


def test_a_stop_without_words_acknowledges_what_waits() -> None:
    session = speaking(" ")
    session.receive(Flush("a"))
    assert session.receive(Stop()) == [*cancelled(), SayFlushed("a"), ToClient(Finish("stop"))]


@pytest.mark.parametrize("stopped", [False, True])
def test_too_many_flushes_are_refused_rather_than_forgotten(stopped: bool) -> None:
    session = speaking("One.")
    if stopped:
        session.receive(Stop())
    for number in range(MAX_MARKS):
        assert all(isinstance(e, ToEngine) for e in session.receive(Flush(number)))
    assert session.receive(Flush("a")) == [ToClient(Error(f"over {MAX_MARKS} flushes wait"))]


# Ready ------------------------------------------------------------------------------------------


def test_ready_says_what_will_come() -> None:
    session = new_session(model="m")
    effects = session.receive(Start(REQUEST, ready=True))
    assert effects == [*opened(), ToClient(Ready("pcm", 24_000, "m", 1))]


def test_no_ready_for_a_start_that_is_refused() -> None:
    session = new_session(voices_by_reference=False)
    session.drain(quiet=False)
    assert not any(isinstance(e, BeginTurn) for e in session.receive(Start(REQUEST, ready=True)))


# After all of it -------------------------------------------------------------------------------


def test_what_was_played_of_one_turn_is_not_of_the_next() -> None:
    session = speaking("One.")
    session.receive(Played(9.0))
    session.receive(START)
    assert SayCancelled(None) in session.receive(Cancel())


def test_a_refused_start_after_a_turn_leaves_nothing_to_cancel() -> None:
    session = speaking("One.")
    session.refuse(ProtocolError(Code.UNDECODABLE, "no"))
    assert session.receive(Cancel()) == []
    assert DropTurn() not in session.receive(Cancel())


def test_push_still_reaches_the_engine_after_all_of_this() -> None:
    session = speaking("One.")
    for message in (Flush("a"), Played(1.0), Cancel(), START):
        session.receive(message)
    assert session.receive(Text("Two.")) == [push("Two.", S2)]


# Any sequence -----------------------------------------------------------------------------------


@given(
    st.lists(st.sampled_from(["start", "text", "flush", "stop", "cancel", "engine"]), max_size=40)
)
def test_every_flush_is_acknowledged_once_and_in_order_unless_its_turn_is_gone(
    steps: list[str],
) -> None:
    session = new_session()
    waiting: deque[str] = deque()  # ids of this turn, in the order of their flushes
    marks: deque[int] = deque()  # what the engine was told and has not answered
    for number, step in enumerate(steps):
        gone = step in ("start", "cancel") and session.state is not State.AWAIT_START
        match step:
            case "start":
                effects = session.receive(START)
            case "text":
                effects = session.receive(Text("One. "))
            case "flush":
                effects = session.receive(Flush(str(number)))
                if effects != FIRST:
                    waiting.append(str(number))
            case "stop":
                effects = session.receive(Stop())
            case "cancel":
                effects = session.receive(Cancel())
            case _ if marks and session.stream is not None:
                stream = session.stream
                effects = session.engine_event(api.Flushed(stream, marks.popleft(), 0))
            case _ if session.state is State.DRAINING and session.stream is not None:
                effects = session.engine_event(finished(session.stream))
            case _:
                effects = []
        if gone:
            waiting.clear()
            marks.clear()
        for effect in effects:
            match effect:
                case ToEngine(command=api.Flush(mark=mark)):
                    marks.append(mark)
                case EncodeFlush(id=str(said)) | SayFlushed(id=str(said)):
                    assert said == waiting.popleft()
                case ToClient(message=Finish()):
                    assert not waiting, "a finish before an acknowledgement"
                case _:
                    pass
    assert session.state is not State.IDLE or not waiting

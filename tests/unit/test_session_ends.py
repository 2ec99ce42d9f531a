"""How a connection ends: refusals, failures, grace, drain; and any sequence of all of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.engine import api
from shoal.proto.errors import Code, ProtocolError
from shoal.proto.messages import (
    MAX_TEXT_CHARS,
    Cancel,
    ClientMessage,
    Error,
    Finish,
    Flush,
    Played,
    Start,
    Stop,
    Text,
    TtsRequest,
    Unknown,
)
from shoal.realtime.effects import (
    BeginTurn,
    Close,
    DropTurn,
    Effect,
    EncodeEnd,
    EndTurn,
    StartGrace,
    StopGrace,
    ToClient,
)
from shoal.realtime.session import Session, State
from tests.sessions import (
    AWAY,
    S1,
    START,
    cancelled,
    failed,
    finished,
    new_session,
    opened,
    pcm,
    push,
    speaking,
)

# Bad time, bad message --------------------------------------------------------------------------


@pytest.mark.parametrize("message", [Text("hi"), Flush(), Stop()])
def test_an_event_before_start_is_an_error_event_and_the_socket_lives(
    message: ClientMessage,
) -> None:
    session = new_session()
    assert session.receive(message) == [ToClient(Error("the first event must be start"))]
    assert session.receive(START) == opened()


@pytest.mark.parametrize("message", [Text("late"), Flush(), Stop()])
def test_after_stop_everything_but_a_start_is_ignored(message: ClientMessage) -> None:
    session = speaking("One.")
    session.receive(Stop())
    assert session.receive(message) == []
    session.engine_event(finished())
    assert session.receive(message) == []


@pytest.mark.parametrize("states", [0, 1, 2, 3])
def test_unknown_events_are_ignored_in_every_state(states: int) -> None:
    session = new_session()
    for message in [START, Text("a"), Stop()][:states]:
        session.receive(message)
    assert session.receive(Unknown()) == []


def test_a_malformed_message_is_an_error_event_and_the_turn_goes_on() -> None:
    session = speaking("One.")
    error = ProtocolError(Code.MALFORMED, "message has no event")
    assert session.refuse(error) == [ToClient(Error("message has no event"))]
    assert session.state is State.SPEAKING


@pytest.mark.parametrize(
    ("code", "close"), [(Code.UNDECODABLE, 1007), (Code.TOO_BIG, 1009), (Code.BAD_REQUEST, 1008)]
)
def test_what_cannot_be_continued_finishes_before_it_closes(code: Code, close: int) -> None:
    session = speaking("One.")
    assert session.refuse(ProtocolError(code, "no")) == [*cancelled(), *failed(close, "no")]
    assert session.state is State.CLOSED
    assert session.refuse(ProtocolError(code, "no")) == []


def test_a_request_that_cannot_be_encoded_is_refused() -> None:
    session = new_session()
    effects = session.receive(Start(TtsRequest(format="mp3")))
    assert effects == [DropTurn(), StopGrace(), *failed(1008, "no mp3 here")]


def test_text_over_the_limit_is_refused_and_what_was_spoken_does_not_count() -> None:
    session = speaking("x" * MAX_TEXT_CHARS)
    assert session.state is State.SPEAKING
    assert session.receive(Text("y"))[-1] == Close(
        1009, f"over {MAX_TEXT_CHARS} characters wait to be spoken"
    )
    session = speaking("x" * MAX_TEXT_CHARS)
    session.engine_event(api.SegmentStarted(S1, 0, "x" * 300, 0))
    assert session.receive(Text("y" * 300)) == [push("y" * 300)]
    session.receive(Flush())
    session.engine_event(api.Flushed(S1, 1, 0))
    assert session.receive(Text("z" * MAX_TEXT_CHARS)) == [push("z" * MAX_TEXT_CHARS)]


# The engine refuses or fails --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "close", "most"),
    [
        (api.Fault.BUSY, 1013, 4),
        (api.Fault.CLIENT, 1008, None),
        (api.Fault.ENGINE, 1011, None),
    ],
)
def test_a_failed_stream_is_an_error_a_finish_and_a_close(
    fault: api.Fault, close: int, most: int | None
) -> None:
    """dashscope-sdk-python#167: a failure midway must not look like success."""
    session = speaking("One.")
    session.engine_event(pcm())
    assert session.engine_event(api.Failed(S1, fault, "no")) == [
        EndTurn(S1),
        *failed(close, "no", most),
    ]
    assert session.state is State.CLOSED


def test_a_failure_of_a_cancelled_stream_is_nobody_s() -> None:
    session = speaking("One.")
    session.receive(START)
    assert session.engine_event(api.Failed(S1, api.Fault.ENGINE, "no")) == []


def test_an_encoder_that_fails_is_our_fault() -> None:
    session = speaking("One.")
    assert session.encoder_failed() == [*cancelled(), *failed(1011, "encoding failed")]


# Lifetime ---------------------------------------------------------------------------------------


def test_after_a_finish_the_socket_waits_for_another_start_and_then_closes() -> None:
    session = new_session(grace_s=330.0)
    session.receive(START)
    session.receive(Stop())
    assert session.finish_sent() == [StartGrace(330.0)]
    assert session.grace_over() == [StopGrace(), Close(1000)]
    assert session.state is State.CLOSED


def test_a_start_within_the_grace_keeps_the_socket() -> None:  # livekit/agents#2281, #2630
    session = speaking("One.")
    session.receive(Stop())
    session.engine_event(finished())
    session.finish_sent()
    assert StopGrace() in session.receive(START)
    assert session.grace_over() == []
    assert session.finish_sent() == []


@pytest.mark.parametrize("messages", [(), (START, Stop())])
def test_a_drain_closes_who_is_idle(messages: tuple[ClientMessage, ...]) -> None:
    session = new_session()
    for message in messages:
        session.receive(message)
    assert session.drain(quiet=False) == [StopGrace(), Close(1001, AWAY)]


def test_a_drain_lets_a_turn_finish_and_then_closes() -> None:
    session = speaking("One.")
    assert session.drain(quiet=False) == []
    assert session.receive(Text("Two.")) == [push("Two.")]
    session.receive(Stop())
    assert session.drain(quiet=True) == []  # it has a stop: it will end by itself
    session.engine_event(pcm())
    assert session.engine_event(finished()) == [
        EncodeEnd(),
        EndTurn(S1),
        ToClient(Finish("stop")),
        StopGrace(),
        Close(1001, AWAY),
    ]


def test_a_drain_ends_a_turn_that_nobody_speaks_in() -> None:
    """pipecat never sends a stop."""
    session = speaking("One.")
    assert session.drain(quiet=True) == [*cancelled(), *failed(1001, AWAY)]


def test_no_new_turn_begins_while_the_server_drains() -> None:
    session = speaking("One.")
    session.drain(quiet=False)
    assert session.receive(START)[-1] == Close(1001, AWAY)


def test_a_drain_that_ran_out_of_time_ends_any_turn() -> None:
    session = speaking("One.")
    session.receive(Stop())
    assert session.abort(Code.DRAINING, AWAY) == [*cancelled(), *failed(1001, AWAY)]


# Any sequence -----------------------------------------------------------------------------------

_STEPS: dict[str, Callable[[Session], list[Effect]]] = {
    "start": lambda s: s.receive(START),
    "text": lambda s: s.receive(Text("a")),
    "blank": lambda s: s.receive(Text(" ")),
    "flush": lambda s: s.receive(Flush()),
    "stop": lambda s: s.receive(Stop()),
    "cancel": lambda s: s.receive(Cancel(0.5)),
    "flush-id": lambda s: s.receive(Flush("a")),
    "played": lambda s: s.receive(Played(1.0)),
    "segment": lambda s: s.engine_event(api.SegmentStarted(s.stream or S1, 0, "a", 0)),
    "unknown": lambda s: s.receive(Unknown()),
    "malformed": lambda s: s.refuse(ProtocolError(Code.MALFORMED, "x")),
    "undecodable": lambda s: s.refuse(ProtocolError(Code.UNDECODABLE, "x")),
    "pcm": lambda s: s.engine_event(pcm(s.stream or S1)),
    "flushed": lambda s: s.engine_event(api.Flushed(s.stream or S1, 1, 0)),
    "finished": lambda s: s.engine_event(finished(s.stream or S1)),
    "failed": lambda s: s.engine_event(api.Failed(s.stream or S1, api.Fault.BUSY, "x")),
    "stale": lambda s: s.engine_event(finished(api.StreamId(0))),
    "sent": lambda s: s.finish_sent(),
    "grace": lambda s: s.grace_over(),
    "drain": lambda s: s.drain(quiet=False),
    "quiet": lambda s: s.drain(quiet=True),
    "gone": lambda s: s.disconnected(),
}


@given(st.lists(st.sampled_from(sorted(_STEPS)), max_size=40))
def test_any_sequence_opens_and_ends_each_turn_once_and_closes_last(steps: list[str]) -> None:
    session = new_session()
    begun: list[api.StreamId] = []
    ended: list[api.StreamId] = []
    finishes = closes = 0
    for step in steps:
        before = session.state
        for effect in _STEPS[step](session):
            assert closes == 0, "an effect after the close"
            match effect:
                case BeginTurn(stream=stream):
                    assert begun == ended, "a turn begins while another runs"
                    begun.append(stream)
                case EndTurn(stream=stream):
                    ended.append(stream)
                case ToClient(message=Finish()):
                    finishes += 1
                case Close():
                    closes += 1
                case _:
                    pass
        assert before is not State.CLOSED or session.state is State.CLOSED
    assert ended == begun[: len(ended)] and len(begun) - len(ended) in (0, 1)
    assert (session.stream is None) == (begun == ended)
    assert finishes <= len(begun) + 1  # a refusal finishes although nothing had begun
    assert len(set(begun)) == len(begun)

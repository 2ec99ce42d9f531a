"""The rules of a connection, as lists of effects. Where a test stands for a fault seen in the
field, its name or its comment says which project had it."""

from __future__ import annotations

import pytest

from shoal.engine import api
from shoal.proto.messages import (
    Finish,
    Flush,
    Log,
    Reference,
    Start,
    Stop,
    Text,
    TtsRequest,
)
from shoal.realtime.effects import (
    Close,
    DropTurn,
    Encode,
    EncodeEnd,
    EncodeFlush,
    EndTurn,
    StopGrace,
    ToClient,
    ToEngine,
)
from shoal.realtime.session import State
from shoal.realtime.turn_text import MAX_MARKS
from tests.sessions import (
    PCM,
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

# A turn -----------------------------------------------------------------------------------------


def test_a_whole_turn() -> None:
    session = new_session()
    assert session.state is State.AWAIT_START
    assert session.receive(START) == opened()
    assert session.state is State.SPEAKING
    assert session.receive(Text("One. ")) == [push("One. ")]
    assert session.receive(Text("Two.")) == [push("Two.")]
    assert session.receive(Stop()) == [ToEngine(api.EndText(S1))]
    assert session.state is State.DRAINING
    assert session.engine_event(api.Opened(S1, 0.0, True)) == []
    assert session.engine_event(api.SegmentStarted(S1, 0, "One. ", 0)) == []
    assert session.engine_event(pcm()) == [Encode(PCM)]
    assert session.engine_event(finished()) == [
        EncodeEnd(),
        EndTurn(S1),
        ToClient(Finish("stop")),
    ]
    assert session.state is State.IDLE


def test_what_the_engine_remarks_of_the_voice_reaches_the_client() -> None:
    session = speaking()
    remark = api.Opened(S1, 0.1, False, "the reference's transcript is too long")
    assert session.engine_event(remark) == [ToClient(Log("the reference's transcript is too long"))]


def test_a_start_opens_the_stream_before_any_text() -> None:
    """The voice is prefilled while the client still thinks about what to say."""
    assert isinstance(new_session().receive(START)[-1], ToEngine)


def test_text_in_the_request_is_the_first_text() -> None:
    request = TtsRequest(text="Hi", format="pcm")
    assert new_session().receive(Start(request))[-1] == push("Hi")


def test_text_is_passed_on_verbatim() -> None:  # stream2sentence#5, speech-to-speech#480
    session = speaking()
    for text in (" a", "b ", "\n", "\0", "\ufffd", " "):
        assert session.receive(Text(text)) == [push(text)]
    assert session.receive(Text("")) == []


def test_finish_comes_once_and_only_after_the_last_audio() -> None:  # elevenlabs-python#569
    session = speaking("One.")
    session.receive(Stop())
    effects = session.engine_event(pcm()) + session.engine_event(finished())
    assert effects.index(EncodeEnd()) < effects.index(ToClient(Finish("stop")))
    assert session.engine_event(finished()) == []
    assert session.receive(Stop()) == []


def test_the_engine_s_parameters_are_the_request_s() -> None:
    request = TtsRequest(
        format="pcm",
        latency="low",
        chunk_length=120,
        min_chunk_length=7,
        normalize=False,
        temperature=0.3,
        top_p=0.4,
        seed=9,
        max_new_tokens=50,
        references=(Reference(b"RIFF", "said"),),
    )
    effects = new_session().receive(Start(request))
    assert effects[-1] == ToEngine(
        api.Open(
            S1,
            api.Voice(None, (api.Reference(b"RIFF", "said"),)),
            api.Sampling(temperature=0.3, top_p=0.4, seed=9, max_frames_per_segment=50),
            api.Segmentation(api.Latency.LOW, 120, 7, False),
        )
    )


# Flush ------------------------------------------------------------------------------------------


def test_a_flush_is_no_end() -> None:  # bolna#746
    session = speaking("One.")
    assert session.receive(Flush()) == [ToEngine(api.Flush(S1, 1))]
    session.engine_event(pcm())
    assert session.engine_event(api.Flushed(S1, 1, 100)) == [EncodeFlush()]
    assert session.receive(Text("Two.")) == [push("Two.")]
    assert session.state is State.SPEAKING


def test_a_flush_empties_what_the_encoder_holds() -> None:  # pipecat#899
    session = speaking("One.")
    session.receive(Flush())
    session.engine_event(pcm())
    assert EncodeFlush() in session.engine_event(api.Flushed(S1, 1, 100))


def test_an_empty_flush_does_nothing() -> None:  # pipecat#4126
    session = speaking()
    assert session.receive(Flush()) == []
    session.receive(Text("One."))
    assert session.receive(Flush()) == [ToEngine(api.Flush(S1, 1))]
    assert session.receive(Flush()) == []


def test_outstanding_flushes_are_bounded() -> None:
    session = speaking()
    sent = 0
    for _ in range(MAX_MARKS + 50):
        session.receive(Text("a"))
        sent += len(session.receive(Flush()))
    assert sent == MAX_MARKS
    assert session.engine_event(api.Flushed(S1, 1, 0))
    assert len(session.receive(Flush())) == 1


# Nothing to speak -------------------------------------------------------------------------------


@pytest.mark.parametrize("texts", [(), ("",), (" ", "\n"), ("\u2003",)])
def test_a_stop_without_text_finishes_at_once(texts: tuple[str, ...]) -> None:
    session = speaking(*texts)
    assert session.receive(Stop()) == [*cancelled(), ToClient(Finish("stop"))]
    assert session.state is State.IDLE


@pytest.mark.parametrize("text", ["...", "\U0001f600", "\0", "\ufffd", "[laugh"])
def test_unspeakable_text_is_a_short_silence(text: str) -> None:
    """dograh pipecat#45, livekit/agents#4171: nothing at all is taken for a failure."""
    session = speaking(text)
    session.receive(Stop())
    assert session.engine_event(finished()) == [
        SILENCE,
        EncodeEnd(),
        EndTurn(S1),
        ToClient(Finish("stop")),
    ]


def test_unspeakable_text_is_a_short_silence_at_a_flush_too() -> None:
    session = speaking("Hello.")
    session.receive(Flush())
    session.receive(Text("..."))
    session.receive(Flush())
    session.receive(Text(" "))
    session.receive(Flush())
    session.engine_event(pcm())
    assert session.engine_event(api.Flushed(S1, 1, 100)) == [EncodeFlush()]
    assert session.engine_event(api.Flushed(S1, 2, 100)) == [SILENCE, EncodeFlush()]
    assert session.engine_event(api.Flushed(S1, 3, 100)) == [EncodeFlush()]
    session.receive(Stop())
    assert SILENCE not in session.engine_event(finished())


# Cancel -----------------------------------------------------------------------------------------


def test_a_second_start_cancels_the_first_without_a_finish() -> None:  # pipecat#754, #793
    session = speaking("One.")
    assert session.receive(START) == [*cancelled(), *opened(S2)]
    assert session.engine_event(pcm(S1)) == []
    assert session.engine_event(finished(S1)) == []
    assert session.engine_event(pcm(S2)) == [Encode(PCM)]


def test_a_start_after_the_stop_cancels_too() -> None:  # pipecat#4099
    session = speaking("One.")
    session.receive(Stop())
    assert session.receive(START) == [*cancelled(), *opened(S2)]


def test_a_start_after_the_end_drops_what_was_not_sent_yet() -> None:
    session = speaking("One.")
    session.receive(Stop())
    session.engine_event(finished())
    assert session.receive(START) == opened(S2)


@pytest.mark.parametrize("stage", ["await", "speaking", "draining", "idle"])
def test_a_socket_that_vanishes_frees_the_engine_in_every_state(stage: str) -> None:
    """pocket-tts#238, livekit/agents#2010: no generation and no ghost after a disconnect."""
    session = new_session() if stage == "await" else speaking("One.")
    if stage in ("draining", "idle"):
        session.receive(Stop())
    if stage == "idle":
        session.engine_event(finished())
    running = stage in ("speaking", "draining")
    expected = [*(cancelled() if running else []), DropTurn(), StopGrace()]
    assert session.disconnected() == expected
    assert session.state is State.CLOSED
    assert session.disconnected() == []
    assert session.receive(START) == []
    assert session.engine_event(pcm()) == []


def test_pipecat_s_barge_in_is_a_stop_and_a_close() -> None:
    session = speaking("One.")
    session.receive(Stop())
    assert session.disconnected()[:2] == cancelled()


# Voices -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reference_id", "voice"),
    [(None, None), ("hosted", None), ("alias", "alice"), ("bob", "bob")],
)
def test_a_reference_id_is_a_voice_an_alias_or_the_default(
    reference_id: str | None, voice: str | None
) -> None:
    effects = new_session().receive(Start(TtsRequest(format="pcm", reference_id=reference_id)))
    command = effects[-1]
    assert isinstance(command, ToEngine) and isinstance(command.command, api.Open)
    assert command.command.voice == api.Voice(voice)


def test_a_voice_named_at_the_handshake_is_prepared_at_once() -> None:
    session = new_session()
    assert session.handshake("alias") == [ToEngine(api.Prepare(api.Voice("alice")))]
    assert session.handshake(None) == []


def test_a_reference_id_wins_over_references() -> None:
    request = TtsRequest(format="pcm", reference_id="bob", references=(Reference(b"RIFF", "said"),))
    command = new_session().receive(Start(request))[-1]
    assert isinstance(command, ToEngine) and isinstance(command.command, api.Open)
    assert command.command.voice == api.Voice("bob")


def test_references_are_refused_where_the_model_takes_none() -> None:
    session = new_session(voices_by_reference=False)
    request = TtsRequest(format="pcm", references=(Reference(b"RIFF", "said"),))
    assert session.receive(Start(request))[-1] == Close(1008, "this model takes no references")

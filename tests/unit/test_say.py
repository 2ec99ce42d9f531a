"""``say`` on an engine that plays a script, and the addresses that a user may type."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Self

import pytest

from shoal.engine import api
from shoal.realtime.say import SayError, live_address, say_local

RATE = 1000
PAUSE_S = 0.5
"""Before the first word: much longer than an answer takes on a busy machine."""


class ScriptedEngine:
    """Answers ``EndText`` with the events of a script; keeps what it was told."""

    info = api.EngineInfo("script", RATE, 50, 8, 1, 100, "none", api.Sampling())

    def __init__(self, script: Callable[[api.StreamId], Sequence[api.Event]]) -> None:
        self.script = script
        self.commands: list[api.Command] = []
        self.stopped = False

    def start(self, deliver: api.Deliver, on_fatal: api.OnFatal) -> None:
        self._deliver = deliver
        self._on_fatal = on_fatal

    def submit(self, command: api.Command) -> None:
        self.commands.append(command)
        if isinstance(command, api.EndText):
            self._deliver(self.script(command.stream))

    def stats(self) -> api.EngineStats:
        return api.EngineStats()

    def voices(self) -> Sequence[api.VoiceInfo]:
        return ()

    def stop(self) -> None:
        self.stopped = True


class Memory:
    """A sink that keeps what it was given."""

    def __init__(self) -> None:
        self.rate = 0
        self.pcm = b""
        self.closed = False

    def open(self, rate: int) -> Self:
        self.rate = rate
        return self

    def write(self, pcm: bytes) -> None:
        self.pcm += pcm

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.closed = True


def two_chunks(stream: api.StreamId) -> Sequence[api.Event]:
    return (
        api.Opened(stream, 0.0, cached=True),
        api.Pcm(stream, 0, b"\1\0" * 300),
        api.Pcm(stream, 1, b"\2\0" * 700),
        api.Finished(stream, 20, 1000, 1),
    )


def test_text_goes_in_piece_by_piece_and_audio_comes_out_whole() -> None:
    engine, memory = ScriptedEngine(two_chunks), Memory()
    spoken = say_local(engine, ["Hel", "lo."], memory.open, voice="ann", seed=7)
    assert memory.pcm == b"\1\0" * 300 + b"\2\0" * 700
    assert memory.rate == RATE
    assert memory.closed and engine.stopped
    assert spoken.audio_s == pytest.approx(1.0)
    assert 0 <= spoken.ttfa_s <= spoken.wall_s
    opened, *texts, end = engine.commands
    assert isinstance(opened, api.Open)
    assert (opened.voice.voice_id, opened.sampling.seed) == ("ann", 7)
    assert [t.text for t in texts if isinstance(t, api.PushText)] == ["Hel", "lo."]
    assert isinstance(end, api.EndText)


def test_the_clock_starts_at_the_first_text_and_not_at_the_first_space() -> None:
    def typed() -> Iterator[str]:
        yield "  "
        time.sleep(PAUSE_S)
        yield "Hello."

    spoken = say_local(ScriptedEngine(two_chunks), typed(), Memory().open)
    assert spoken.ttfa_s < PAUSE_S


def test_a_failure_is_the_users_to_read_and_the_engine_is_stopped() -> None:
    engine = ScriptedEngine(lambda s: [api.Failed(s, api.Fault.CLIENT, "no voice 'bob'")])
    memory = Memory()
    with pytest.raises(SayError, match="no voice 'bob'"):
        say_local(engine, ["Hello."], memory.open)
    assert engine.stopped
    assert memory.rate == 0


def test_a_failure_in_the_middle_closes_the_sink() -> None:
    engine = ScriptedEngine(
        lambda s: [api.Pcm(s, 0, bytes(200)), api.Failed(s, api.Fault.ENGINE, "broken")]
    )
    memory = Memory()
    with pytest.raises(SayError, match="broken"):
        say_local(engine, ["Hello."], memory.open)
    assert memory.closed


def test_an_engine_that_dies_ends_the_turn() -> None:
    engine = ScriptedEngine(lambda s: ())

    def dies(stream: api.StreamId) -> Sequence[api.Event]:
        engine._on_fatal(RuntimeError("thread died"))
        return ()

    engine.script = dies
    with pytest.raises(SayError, match="thread died"):
        say_local(engine, ["Hello."], Memory().open)
    assert engine.stopped


@pytest.mark.parametrize(
    ("typed", "address"),
    [
        ("localhost:8080", "ws://localhost:8080/v1/tts/live"),
        ("http://localhost:8080", "ws://localhost:8080/v1/tts/live"),
        ("https://voice.example/", "wss://voice.example/v1/tts/live"),
        ("ws://localhost:8080/other", "ws://localhost:8080/other"),
    ],
)
def test_addresses(typed: str, address: str) -> None:
    assert live_address(typed) == address

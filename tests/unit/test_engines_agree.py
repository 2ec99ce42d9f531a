"""What a gateway may count on from any engine: the fake one and the real one tell it the same."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import cast

import pytest

from shoal.engine.api import (
    EndText,
    Engine,
    Event,
    Failed,
    Fault,
    Finished,
    Flush,
    Flushed,
    Open,
    Opened,
    Pcm,
    PushText,
    Sampling,
    Segmentation,
    SegmentStarted,
    Span,
    StreamId,
    Voice,
)
from shoal.engine.config import EngineConfig
from shoal.engine.fake import FakeEngine
from shoal.engine.service import SpeechEngine
from shoal.engine.voices import VoiceStore

TINY = Path(__file__).parents[1] / "data" / "s2_tiny"
ALONE = Segmentation(min_chars=0)
"""Every sentence is a segment, whatever is playing."""
SHORT = Sampling(seed=1, max_frames_per_segment=3)


@dataclass
class Started:
    """An engine at work, and what it tells."""

    engine: Engine
    voices: Path
    events: SimpleQueue[Event] = field(default_factory=SimpleQueue[Event])
    fatal: list[BaseException] = field(default_factory=list[BaseException])
    opened: int = 0

    def start(self) -> None:
        def deliver(events: Sequence[Event]) -> None:
            for event in events:
                self.events.put(event)

        self.engine.start(deliver, self.fatal.append)

    def turn(self, *text: str | int, voice: Voice | None = None) -> list[Event]:
        """All events of a turn; a number is a flush."""
        self.opened += 1
        stream = StreamId(self.opened)
        self.engine.submit(Open(stream, voice or Voice(), SHORT, ALONE))
        for item in text:
            self.engine.submit(
                Flush(stream, item) if isinstance(item, int) else PushText(stream, item)
            )
        self.engine.submit(EndText(stream))
        events: list[Event] = []
        while not (events and isinstance(events[-1], Finished | Failed)):
            event = self.events.get(timeout=60.0)
            assert event.stream == stream
            events.append(event)
        return events


def fake(voices: Path) -> Engine:
    return FakeEngine(speed=100.0, store=VoiceStore(voices))


def real(voices: Path) -> Engine:
    return SpeechEngine(EngineConfig(model=TINY, device="cpu", slots=2, voices_dir=voices))


@pytest.fixture(scope="module", params=[fake, real])
def started(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Started]:
    voices = tmp_path_factory.mktemp("voices")
    found = Started(cast("Callable[[Path], Engine]", request.param)(voices), voices)
    found.start()
    yield found
    found.engine.stop()
    assert found.fatal == []


def segments(events: Sequence[Event]) -> list[tuple[int, str, Span]]:
    return [(e.index, e.text, e.span) for e in events if isinstance(e, SegmentStarted)]


@pytest.mark.parametrize(
    ("pushed", "told"),
    [
        (
            ("Hello there. How are you?\n\n", "Fine, thanks.\n```py\nx = 1\n```\nBye now. "),
            [
                (0, "Hello there.", Span(0)),
                (1, "How are you?", Span(13)),
                (2, "Fine, thanks.", Span(27)),
                (3, "Bye now.", Span(57)),
            ],
        ),
        ((" One", 7, "  two.", 8), [(0, "One", Span(1)), (1, "two.", Span(6))]),
        (("A\x00 \ud83d", "\ude00 b. [never"), [(0, "A 😀 b.", Span(0, ((1, 1),)))]),
        (("<|speaker:1|>Hi.\n[warm] Yes."), None),
        (
            ("Dr. Who? 3.14 is pi.",),
            [(0, "Dr. Who?", Span(0)), (1, "3.14 is pi.", Span(9))],
        ),
    ],
)
def test_segments_are_told_with_their_text_and_its_place(
    started: Started,
    pushed: tuple[str | int, ...],
    told: list[tuple[int, str, Span]] | None,
) -> None:
    events = started.turn(*([pushed] if isinstance(pushed, str) else pushed))
    if told is None:
        told = [(0, "<|speaker:1|>Hi.", Span(0)), (1, "[warm] Yes.", Span(17))]
    assert segments(events) == told
    assert isinstance(events[0], Opened) and isinstance(events[-1], Finished)
    assert [e.mark for e in events if isinstance(e, Flushed)] == [
        item for item in pushed if isinstance(item, int)
    ]


def test_every_segment_begins_where_the_sound_before_it_ends(started: Started) -> None:
    events = started.turn("One. Two. ... Three.", 1, "Four.")
    samples = 0
    for seq, event in enumerate(e for e in events if isinstance(e, Pcm)):
        assert event.seq == seq
    for event in events:
        match event:
            case Pcm(samples=sound):
                samples += len(sound) // 2
            case SegmentStarted(at_samples=at) | Flushed(at_samples=at):
                assert at == samples
            case Finished():
                assert event.samples == samples > 0
                assert event.frames * started.engine.info.frame_samples == samples
                assert event.segments == len(segments(events))
            case _:
                pass


@pytest.mark.parametrize("text", ["...", "\U0001f600 \U0001f600", "?!"])
def test_text_that_cannot_be_spoken_is_a_segment_of_silence(started: Started, text: str) -> None:
    events = started.turn(f" {text} ", 3)
    assert segments(events) == [(0, text, Span(1))]
    sound = b"".join(e.samples for e in events if isinstance(e, Pcm))
    assert sound and not sound.strip(b"\0")
    assert [type(e) for e in events[-2:]] == [Flushed, Finished]


@pytest.mark.parametrize("text", ["", " \n ", "```\ncode\n```", "[never ended", "\x00\x07"])
def test_text_of_which_nothing_is_left_is_no_segment(started: Started, text: str) -> None:
    *before, end = started.turn(text, 3)
    assert [type(e) for e in before] == [Opened, Flushed]
    assert isinstance(end, Finished) and (end.samples, end.segments) == (0, 0)


@pytest.mark.parametrize("facts", [None, b"", b"{", b"[]", b"{}", b"\xff", b'{"created_at": null}'])
def test_a_stored_voice_that_cannot_be_read_is_the_client_s_and_hurts_nobody_else(
    started: Started, facts: bytes | None
) -> None:
    place = started.voices / "broken"
    place.mkdir(exist_ok=True)
    (place / "voice.json").unlink(missing_ok=True)
    if facts is not None:
        (place / "voice.json").write_bytes(facts)
    [failed] = started.turn("Hello.", voice=Voice("broken"))
    assert isinstance(failed, Failed) and failed.fault is Fault.CLIENT
    assert failed.message == "Reference not found"
    assert [voice for voice in started.engine.voices() if voice.voice_id == "broken"] == []
    assert isinstance(started.turn("Hello.")[-1], Finished)


def test_a_stored_voice_without_its_recording_is_not_found(started: Started) -> None:
    place = started.voices / "mute"
    place.mkdir()
    facts = {"id": "mute", "created_at": 1.0, "seconds": 1.0, "texts": ["One."]}
    (place / "voice.json").write_text(json.dumps(facts))
    [failed] = started.turn("Hello.", voice=Voice("mute"))
    assert isinstance(failed, Failed)
    assert (failed.fault, failed.message) == (Fault.CLIENT, "Reference not found")


@pytest.mark.parametrize("voice_id", ["nobody", "../etc", "", "a b"])
def test_a_voice_that_nobody_stored_is_not_found(started: Started, voice_id: str) -> None:
    [failed] = started.turn("Hello.", voice=Voice(voice_id))
    assert isinstance(failed, Failed)
    assert (failed.fault, failed.message) == (Fault.CLIENT, "Reference not found")

"""How a stream's text becomes utterances, marks and silence, and when to look again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

from shoal.engine.api import Open, Priority, Sampling, Segmentation, StreamId
from shoal.engine.batch import Batch
from shoal.engine.config import Limits
from shoal.engine.defaults import VoiceDefaults
from shoal.engine.jobs import CodecMark, CodecSilence, Composed, ComposeJob, Utterance
from shoal.engine.layout import Layout
from shoal.engine.memory import Memory
from shoal.engine.outgoing import Outgoing
from shoal.engine.reading import Reading
from shoal.engine.runner import SlotSampling
from shoal.engine.streams import Phase, Stream
from shoal.engine.text import TextFeed
from tests.fakes import spec

FRAME_S = 0.05
LIMITS = Limits(silence_s=0.2, speaking_lead_s=1.0, park_lead_s=3.0, held_results=3)
SAID = Utterance(np.zeros((3, 4), np.int32), 5)


@dataclass
class Desk:
    reading: Reading
    batch: Batch
    out: Outgoing

    def asked(self) -> list[tuple[str, int | None]]:
        return [(j.text, j.speaker) for j in self.out.prefill if isinstance(j, ComposeJob)]

    def composed(self, stream: Stream, *utterances: Utterance) -> None:
        """What the prefill thread answers to the last question."""
        job = self.out.prefill[-1]
        assert isinstance(job, ComposeJob) and stream.composing
        stream.composing = False
        stream.ready.append(Composed(stream.id, job.text, utterances))


def desk() -> Desk:
    sizes, out, none = spec(), Outgoing(), np.zeros((0, 4), np.int32)
    memory = Memory(sizes.pages, sizes.page_tokens, sizes.pages)
    layout = Layout(sizes, LIMITS, memory, VoiceDefaults(Sampling(), None, 256, none, none))
    batch = Batch(sizes, LIMITS, memory, layout, out)
    return Desk(Reading(batch, LIMITS, out), batch, out)


def stream_of(
    *text: str,
    priority: Priority = Priority.LIVE,
    mark: int | None = None,
    ends: bool = False,
    min_chars: int = 1,
) -> Stream:
    """Its text came at second 0; a mark comes behind it."""
    cut = Segmentation(min_chars=min_chars)
    stream = Stream(
        Open(StreamId(1), segmentation=cut, priority=priority),
        0.0,
        0,
        SlotSampling(0.0, 1.0, 0, 0),
        TextFeed(cut, None),
    )
    for piece in text:
        stream.feed.push(piece, 0.0)
    if mark is not None:
        stream.feed.flush(mark)
    if ends:
        stream.feed.end()
        stream.ending = True
    return stream


def hears(stream: Stream, lead_s: float) -> None:
    """At second 0 the listener has so much sound before it."""
    stream.playing_since_s, stream.frames_before = 0.0, 0
    stream.frames = round(lead_s / FRAME_S)


def test_one_segment_is_asked_for_at_a_time() -> None:
    at, stream = desk(), stream_of("One. Two. ")
    at.reading.read(stream, 0.5)
    at.reading.read(stream, 0.6)
    assert at.asked() == [("One.", None)]
    assert stream.composing and stream.text_s == 0.5
    at.composed(stream, SAID)
    at.reading.read(stream, 0.7)
    assert [text for text, _ in at.asked()] == ["One.", "Two."]
    assert stream.text_s == 0.5, "the first segment's, whatever follows"


def test_no_more_is_read_than_may_be_held() -> None:
    at, stream = desk(), stream_of("One. Two. Three. Four. ")
    for _ in range(3):
        at.reading.read(stream, 0.0)
        at.composed(stream, SAID)
    at.reading.read(stream, 0.0)
    assert [text for text, _ in at.asked()] == ["One.", "Two.", "Three."]
    assert at.reading.due_s(stream, 0.0) is None


def test_an_utterance_waits_to_be_seated_with_the_text_that_it_begins() -> None:
    at, stream = desk(), stream_of("One. Two. ")
    at.reading.read(stream, 0.5)
    at.composed(stream, SAID, SAID)
    assert not at.reading.next_utterance(stream, 0.7)
    assert (stream.phase, stream.waiting_since_s) == (Phase.WAITING, 0.7)
    assert list(stream.utterances) == [SAID, SAID] and stream.text == "One."
    assert [text for text, _ in at.asked()] == ["One.", "Two."], "the next is read meanwhile"


def test_marks_and_what_is_not_speakable_pass_without_the_model() -> None:
    at, stream = desk(), stream_of("...", mark=7, ends=True)
    at.reading.read(stream, 0.0)
    at.composed(stream)
    assert at.reading.next_utterance(stream, 0.0), "through: all was said and the text has ended"
    silence, mark = at.out.codec
    assert silence == CodecSilence(stream.id, "...", 4) and mark == CodecMark(stream.id, 7)
    assert stream.frames == 4


def test_a_stream_is_not_through_while_its_text_may_go_on() -> None:
    at, stream = desk(), stream_of("...", mark=7)
    at.reading.read(stream, 0.0)
    at.composed(stream)
    assert not at.reading.next_utterance(stream, 0.0)
    assert stream.at_rest


def test_a_stream_that_comes_to_rest_gives_its_slot_back() -> None:
    at, stream = desk(), stream_of()
    assert at.batch.seat(stream) and stream.slot is not None
    assert not at.reading.next_utterance(stream, 0.0)
    assert stream.slot is None and stream.at_rest


def test_a_stream_whose_text_is_being_composed_keeps_its_slot() -> None:
    at, stream = desk(), stream_of("One. ")
    assert at.batch.seat(stream)
    at.reading.read(stream, 0.0)
    assert not at.reading.next_utterance(stream, 0.0)
    assert stream.slot is not None and not stream.at_rest


@pytest.mark.parametrize("kept", ["text", "result"])
def test_a_stream_with_something_left_is_not_at_rest(kept: str) -> None:
    stream = stream_of("I have no end" if kept == "text" else "")
    if kept == "result":
        stream.ready.append(Composed(stream.id, "One.", ()))
    assert not stream.at_rest


def test_silence_waits_for_a_listener_who_has_enough() -> None:
    at, stream = desk(), stream_of("...", mark=7, ends=True)
    hears(stream, 5.0)
    at.reading.read(stream, 0.0)
    at.composed(stream)
    at.reading.read(stream, 0.5)
    assert stream.feed.ended
    assert not at.reading.next_utterance(stream, 0.5)
    assert not at.out.codec and stream.ready
    assert at.reading.due_s(stream, 0.5) == pytest.approx(2.0), "when three seconds are left"
    assert at.reading.next_utterance(stream, 2.0)
    assert [type(message) for message in at.out.codec] == [CodecSilence, CodecMark]
    assert at.reading.due_s(stream, 2.0) is None


def pause(stream: Stream) -> None:
    stream.paused = True


def nothing(stream: Stream) -> None:
    del stream


@pytest.mark.parametrize(
    ("priority", "lead_s", "before", "passes"),
    [
        (Priority.LIVE, 2.9, nothing, True),
        (Priority.LIVE, 0.0, pause, False),
        (Priority.BATCH, 60.0, nothing, True),
        (Priority.BATCH, 60.0, pause, False),
    ],
)
def test_silence_passes(
    priority: Priority, lead_s: float, before: Callable[[Stream], None], passes: bool
) -> None:
    at, stream = desk(), stream_of("...", mark=7, priority=priority)
    hears(stream, lead_s)
    before(stream)
    at.reading.read(stream, 0.0)
    at.composed(stream)
    at.reading.next_utterance(stream, 0.0)
    assert bool(at.out.codec) is passes


def test_a_short_sentence_waits_until_the_listener_is_near() -> None:
    at, stream = desk(), stream_of("I can. ", min_chars=50)
    hears(stream, 2.0)
    at.reading.read(stream, 0.5)
    assert not at.asked()
    assert at.reading.due_s(stream, 0.5) == pytest.approx(1.0), "when one second is left"
    at.reading.read(stream, 1.0)
    assert at.asked() == [("I can.", None)]

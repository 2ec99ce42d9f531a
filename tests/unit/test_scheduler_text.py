"""What the scheduler asks to have composed, and what becomes of the answer."""

from __future__ import annotations

import pytest

from shoal.engine.api import Open, Segmentation, Span, StreamId
from shoal.engine.jobs import CodecBegin, Composed, ComposeJob
from tests.rig import WIDE, Heard, Rig, turn_of


class Asked(Rig):
    """A rig that notes every segment which is to be composed, and every stretch that began."""

    def __init__(self) -> None:
        super().__init__()
        self.composed: list[tuple[str, int | None]] = []
        self.normalized: list[bool] = []
        self.begun: list[CodecBegin] = []

    def _dispatch(self) -> None:
        for job in self.scheduler.out.prefill:
            if isinstance(job, ComposeJob):
                self.composed.append((job.text, job.speaker))
                self.normalized.append(job.normalize)
        self.begun += [m for m in self.scheduler.out.codec if isinstance(m, CodecBegin)]
        super()._dispatch()


def test_text_without_letters_is_spoken_where_the_front_end_can() -> None:
    rig = Asked()
    stream = rig.speak("+++")
    rig.finish()
    assert rig.composed == [("+++", None)]
    heard = rig.heard[stream]
    assert heard.order == ["+++"]
    assert len(heard.codes) == len(turn_of("+++")) - 1 == 3
    times = rig.begun[0].times
    assert times is not None
    assert times.text_s <= times.asked_s <= times.slot_s <= times.joined_s


def test_every_segment_goes_with_the_speaker_that_the_text_named_last() -> None:
    rig = Asked()
    stream = rig.open()
    rig.say(stream, "Early. <|speaker:3|>Now me. And me still.")
    rig.finish()
    assert [speaker for _, speaker in rig.composed] == [None, 3, 3]


@pytest.mark.parametrize("normalize", [True, False])
def test_every_segment_is_composed_as_the_stream_was_opened(normalize: bool) -> None:
    rig = Asked()
    stream = StreamId(1)
    rig.heard[stream] = Heard()
    rig.send(Open(stream, segmentation=Segmentation(min_chars=0, normalize=normalize)))
    rig.say(stream, "One one.  Two 2.")
    rig.finish()
    assert rig.normalized == [normalize] * 2
    assert [message.span for message in rig.begun] == [Span(0), Span(10)]


def test_a_composition_for_a_stream_that_is_gone_is_dropped() -> None:
    rig = Asked()
    stream = rig.speak("one. two.")
    rig.finish()
    before = rig.idle_pages()
    rig.scheduler.message(Composed(stream, "one.", ()), rig.clock())
    rig.turns(3)
    assert rig.idle_pages() == before
    assert len(rig.heard[stream].ends) == 1


def test_a_short_sentence_waits_for_more_only_while_the_listener_has_enough() -> None:
    rig = Asked()
    stream = StreamId(1)
    rig.heard[stream] = Heard()
    rig.send(Open(stream, segmentation=Segmentation(min_chars=50)))
    rig.say(stream, "say 30! ", end=False)
    rig.until(lambda: len(rig.heard[stream].codes) == 30)
    rig.turns(2)
    rig.say(stream, "I can. ", end=False)
    rig.turn()
    assert [text for text, _ in rig.composed] == ["say 30!"]
    lead_s = rig.heard[stream].playout.lead_s(rig.clock())
    wake_s = rig.scheduler.next_wake_s(rig.clock())
    assert wake_s == pytest.approx(rig.clock() + lead_s - WIDE.speaking_lead_s)
    assert wake_s is not None
    rig.clock.now = wake_s
    rig.turn()
    assert [text for text, _ in rig.composed] == ["say 30!", "I can."]

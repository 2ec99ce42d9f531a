"""When a session sends snapshots of its words' times, and what it says was heard of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.engine import api
from shoal.engine.text import Segment, TextFeed
from shoal.proto.messages import Aligned, Cancel, Flush, Heard, Played, Start, Stop, Text
from shoal.realtime.effects import (
    Effect,
    Encode,
    EncodeEnd,
    EncodeFlush,
    SayCancelled,
    ToClient,
    ToEngine,
)
from shoal.realtime.session import Session
from tests.sessions import REQUEST, S1, finished, new_session, speaking

SECOND = b"\1\0" * 24_000

# Timestamps -------------------------------------------------------------------------------------


def aligned(effects: list[Effect]) -> list[Aligned]:
    messages = [e.message for e in effects if isinstance(e, ToClient)]
    return [message for message in messages if isinstance(message, Aligned)]


def aligning(*texts: str) -> Session:
    session = new_session()
    session.receive(Start(REQUEST, timestamps=True))
    for text in texts:
        session.receive(Text(text))
    return session


def test_snapshots_come_before_their_audio_and_the_last_before_what_follows() -> None:
    session = aligning("One two. Three.")
    session.receive(Stop())
    assert session.engine_event(api.SegmentStarted(S1, 0, "One two.", 0)) == []
    effects = session.engine_event(api.Pcm(S1, 0, SECOND))
    assert [type(e) for e in effects] == [ToClient, Encode]
    [first] = aligned(effects)
    assert (first.segment, first.offset_s, first.audio_s, first.final) == (0, 0.0, 1.0, False)
    [last] = aligned(session.engine_event(api.SegmentStarted(S1, 1, "Three.", 24_000, api.Span(9))))
    assert last.final and [word.text for word in last.words] == ["One", "two"]
    session.engine_event(api.Pcm(S1, 1, SECOND))
    effects = session.engine_event(finished())
    [last] = aligned(effects)
    assert (last.segment, last.offset_s, last.final) == (1, 1.0, True)
    assert isinstance(effects[0], ToClient) and effects[1] == EncodeEnd()


def test_a_flush_ends_the_segment() -> None:
    session = aligning("One.")
    session.receive(Flush("a"))
    session.engine_event(api.SegmentStarted(S1, 0, "One.", 0))
    session.engine_event(api.Pcm(S1, 0, SECOND))
    effects = session.engine_event(api.Flushed(S1, 1, 24_000))
    assert [a.final for a in aligned(effects)] == [True] and effects[-1] == EncodeFlush("a")
    session.receive(Stop())
    assert aligned(session.engine_event(finished())) == []


def test_silence_of_ours_moves_what_follows() -> None:
    session = aligning("...")
    session.receive(Flush())
    session.engine_event(api.Flushed(S1, 1, 0))
    session.receive(Text("One."))
    session.engine_event(api.SegmentStarted(S1, 0, "One.", 0))
    [first] = aligned(session.engine_event(api.Pcm(S1, 0, SECOND)))
    assert first.offset_s == pytest.approx(0.4)
    session.inserted(0, 0.08)  # the encoder's at the flush
    [last] = aligned(session.engine_event(api.SegmentStarted(S1, 1, "Two.", 24_000, api.Span(8))))
    assert last.offset_s == pytest.approx(0.48)


def test_nobody_who_did_not_ask_gets_snapshots() -> None:
    session = speaking("One.")
    assert session.engine_event(api.SegmentStarted(S1, 0, "One.", 0)) == []
    assert session.engine_event(api.Pcm(S1, 0, SECOND)) == [Encode(SECOND)]


# What was heard ---------------------------------------------------------------------------------


@pytest.mark.parametrize("timestamps", [False, True])
@pytest.mark.parametrize("state", ["speaking", "draining", "idle"])
def test_a_cancel_tells_how_much_was_heard_of_what_was_played(timestamps: bool, state: str) -> None:
    session = new_session()
    session.receive(Start(REQUEST, timestamps))
    session.receive(Text("One two. Three four."))
    if state != "speaking":
        session.receive(Stop())
    session.engine_event(api.SegmentStarted(S1, 0, "One two.", 0))
    session.engine_event(api.Pcm(S1, 0, SECOND))
    session.engine_event(api.SegmentStarted(S1, 1, "Three four.", 24_000, api.Span(9)))
    session.engine_event(api.Pcm(S1, 1, SECOND))
    if state == "idle":
        session.engine_event(finished())
    session.receive(Played(0.3))
    session.receive(Played(1.3))
    session.receive(Played(1.2))  # out of order: a loudspeaker does not go back
    cut = [e for e in session.receive(Cancel()) if isinstance(e, SayCancelled)]
    assert cut == [SayCancelled(Heard("One two. Three", 14))]
    assert [e for e in session.receive(Cancel()) if isinstance(e, SayCancelled)] == [
        SayCancelled(None)
    ]


def test_a_cancel_may_say_itself_how_far_it_was_played() -> None:
    session = speaking("One two.")
    session.engine_event(api.SegmentStarted(S1, 0, "One two.", 0))
    session.engine_event(api.Pcm(S1, 0, SECOND))
    assert SayCancelled(Heard("", 0)) in session.receive(Cancel(0.0))


CODE = "Hello there. How are you?\n\nFine, thanks.\n```py\nx = 1\n```\nBye now.\n"


def segments_of(text: str) -> list[Segment]:
    """As the engine cuts it."""
    feed = TextFeed()
    feed.push(text, 0.0)
    feed.end()
    found: list[Segment] = []
    while isinstance(item := feed.take(0.0, False), Segment):
        found.append(item)
    return found


def heard_of(text: str, played_s: float, over: bool) -> Heard | None:
    """Each segment takes a second."""
    session = speaking(text)
    session.receive(Stop())
    for index, segment in enumerate(segments_of(text)):
        at = 24_000 * index
        session.engine_event(api.SegmentStarted(S1, index, segment.text, at, segment.span))
        session.engine_event(api.Pcm(S1, index, SECOND))
    if over:
        session.engine_event(finished())
    [cut] = [e for e in session.receive(Cancel(played_s)) if isinstance(e, SayCancelled)]
    return cut.heard


@pytest.mark.parametrize(
    ("played_s", "text"),
    [
        (1.0, "Hello there."),
        (1.4, "Hello there. How"),
        (2.0, "Hello there. How are you?"),
        (4.0, CODE[:-2]),
    ],
)
def test_what_was_heard_is_what_was_sent_up_to_there(played_s: float, text: str) -> None:
    heard = heard_of(CODE, played_s, over=False)
    assert heard == Heard(text, len(text)) and CODE.startswith(text)


def test_of_a_turn_that_is_over_and_was_played_all_was_heard() -> None:
    assert heard_of(CODE, 4.0, over=True) == Heard(CODE, len(CODE))
    assert heard_of("Look:\n```\ncode\n```", 9.0, over=True) == Heard("Look:\n```\ncode\n```", 18)


PIECES = st.lists(
    st.lists(
        st.sampled_from(
            [
                *(
                    "Hello",
                    "one two",
                    ". ",
                    ".",
                    "! ",
                    ", ",
                    "\n",
                    "\n\n",
                    " ",
                    "  ",
                    "3.14",
                    "你好。",
                ),
                *("\n```\n", "```", "`", "x = 1", "[warm] ", "[", "<|speaker:1|>", "<b>", "\x00"),
                *("👩‍👧", "e\u0301", "\ufffd", "**", '"', "\r\n", "\ufeff"),
            ]
        ),
        max_size=12,
    ).map("".join),
    max_size=12,
)


class Pushed:
    """A feed that takes what a session tells the engine, and what comes of it."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.feed = TextFeed()
        self.index = 0
        self.samples = 0

    def tell(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case ToEngine(api.PushText(text=text)):
                    self.feed.push(text, 0.0)
                case ToEngine(api.Flush(mark=mark)):
                    self.feed.flush(mark)
                case ToEngine(api.EndText()):
                    self.feed.end()
                case _:
                    pass

    def speak(self) -> None:
        """All that is ready; the more characters a segment has, the longer it is."""
        while (item := self.feed.take(0.0, self.index > 0)) is not None:
            if not isinstance(item, Segment):
                self.session.engine_event(api.Flushed(S1, item.mark, self.samples))
                continue
            started = api.SegmentStarted(S1, self.index, item.text, self.samples, item.span)
            self.session.engine_event(started)
            sound = b"\1\0" * (2400 * len(item.text))
            self.session.engine_event(api.Pcm(S1, self.index, sound))
            self.index += 1
            self.samples += len(sound) // 2


@given(PIECES, st.lists(st.booleans(), min_size=12), st.booleans())
def test_what_was_heard_begins_what_was_sent_and_grows_with_what_was_played(
    pieces: list[str], flushes: list[bool], stop: bool
) -> None:
    def at(played_s: float) -> Heard:
        session = speaking()
        pushed = Pushed(session)
        for text, flush in zip(pieces, flushes, strict=False):
            pushed.tell(session.receive(Text(text)))
            if flush:
                pushed.tell(session.receive(Flush()))
            pushed.speak()
        if stop:
            pushed.tell(session.receive(Stop()))
            pushed.speak()
        [cut] = [e for e in session.receive(Cancel(played_s)) if isinstance(e, SayCancelled)]
        assert cut.heard is not None
        return cut.heard

    sent = "".join(pieces)
    heard = [at(played_s) for played_s in (0.0, 0.3, 1.0, 2.5, 5.0, 20.0, 1000.0)]
    assert [sent[: one.chars] for one in heard] == [one.text for one in heard]
    assert [one.chars for one in heard] == sorted(one.chars for one in heard)
    assert heard[0] == Heard("", 0)

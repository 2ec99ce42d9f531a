"""What a client heard of the last turn, by what it says that it played."""

from __future__ import annotations

from shoal.engine.api import Span
from shoal.proto.messages import Heard
from shoal.realtime.alignment import UNIT_S
from shoal.realtime.listening import Listening
from shoal.realtime.sent_text import SentText

RATE = 24_000
SECOND = bytes(2 * RATE)


def sent(text: str) -> SentText:
    found = SentText()
    found.push(text)
    return found


def spoken(listening: Listening, text: str, seconds: int) -> None:
    alignment = listening.begin(RATE, 1.0, False, sent(text))
    alignment.segment(0, text.strip(), Span())
    alignment.audio(SECOND * seconds)
    alignment.end_segment(len(text))


def test_nothing_is_known_without_a_turn_or_before_the_client_says_so() -> None:
    listening = Listening()
    listening.inserted(0, 1.0)
    listening.played(1.0)
    assert listening.heard() is None
    spoken(listening, "One. ", 1)
    assert listening.heard() is None, "what was played was of an earlier turn"
    listening.played(0.0)
    assert listening.heard() == Heard("", 0)


def test_what_was_played_never_shrinks_and_is_forgotten_with_its_turn() -> None:
    listening = Listening()
    spoken(listening, "One. ", 1)
    listening.played(1.5)
    listening.played(0.1)
    assert listening.heard() == Heard("One. ", 5)
    listening.forget()
    assert listening.heard() is None


def test_silence_that_an_encoder_added_plays_too() -> None:
    listening = Listening()
    alignment = listening.begin(RATE, 1.0, False, sent("One. Two. "))
    for index, text in enumerate(("One.", "Two.")):
        alignment.segment(index, text, Span(5 * index))
        alignment.audio(SECOND)
    alignment.end_segment()
    listening.played(2.0)
    assert listening.heard() == Heard("One. Two.", 9)
    listening.inserted(RATE, 5.0)
    assert listening.heard() == Heard("One.", 4)


def test_a_turn_begins_at_the_pace_that_the_one_before_ended_with() -> None:
    listening = Listening()
    first = listening.begin(RATE, 1.0, True, SentText())
    assert first.unit_s == UNIT_S
    first.unit_s = 2 * UNIT_S
    assert listening.begin(RATE, 1.0, True, SentText()).unit_s == 2 * UNIT_S

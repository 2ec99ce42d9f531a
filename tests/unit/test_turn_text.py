"""How much of a turn's text waits, which flushes are due, and what made no sound."""

from __future__ import annotations

from shoal.proto.messages import MAX_TEXT_CHARS
from shoal.realtime.sent_text import SentText
from shoal.realtime.turn_text import MAX_MARKS, Mark, TurnText


def test_text_waits_until_its_segment_begins_or_all_of_it_was_flushed() -> None:
    text = TurnText(SentText())
    assert text.push("x" * MAX_TEXT_CHARS) and not text.push("y")
    text.began(0, 10)
    assert text.push("y" * 10) and not text.push("y")
    text.mark(None)
    assert text.waits and not text.unflushed
    text.reached()
    assert not text.waits and text.push("x" * MAX_TEXT_CHARS)


def test_what_nobody_speaks_waits_no_longer_than_what_is_before_it() -> None:
    text = TurnText(SentText())
    for _ in range(8):  # white space, code: no segment has it
        assert text.push("\n" * (MAX_TEXT_CHARS - 4)) and text.push("One.")
        text.began(text.sent.chars - 4, text.sent.chars)
    text.began(0, 4)
    assert text.push("x" * MAX_TEXT_CHARS), "what began never waits again"


def test_what_came_behind_a_mark_waits_on_when_the_mark_is_reached() -> None:
    text = TurnText(SentText())
    text.push("x" * (MAX_TEXT_CHARS - 5))
    text.mark(None)
    text.push("y" * 5)
    text.reached()
    assert text.waits and text.unflushed
    assert text.push("z" * (MAX_TEXT_CHARS - 5)) and not text.push("z")


def test_marks_are_reached_in_order_and_the_others_are_owed() -> None:
    text = TurnText(SentText())
    text.push("One.")
    text.mark("a")
    text.push(" ")
    text.mark(None)
    text.mark("b")
    assert text.owed == ["a", "b"]
    assert text.reached() == Mark(True, "a", 4)
    assert text.owed == ["b"]
    assert [text.reached(), text.reached()] == [Mark(False, None, 5), Mark(False, "b", 5)]
    assert text.reached() == Mark(False, None, 0), "one that nobody asked for"


def test_so_many_marks_may_wait() -> None:
    text = TurnText(SentText())
    for number in range(MAX_MARKS):
        assert not text.full
        text.mark(number)
    assert text.full
    text.reached()
    assert not text.full


def test_only_text_without_sound_lacks_silence_and_each_stretch_by_itself() -> None:
    text = TurnText(SentText())
    text.push("...")
    text.mark(None)
    text.push("One.")
    assert text.lacking(text.reached(), 100) == 100
    text.sounded(b"\0\0\1\0")
    assert text.lacking(None, 100) == 0
    assert text.lacking(None, 100) == 100, "the sound was of the stretch before"


def test_silence_that_the_engine_made_need_not_be_made_again() -> None:
    text = TurnText(SentText())
    text.push("...")
    text.sounded(bytes(2 * 30))
    text.sounded(bytes(2 * 10))
    assert text.lacking(None, 100) == 60
    text.sounded(bytes(2 * 300))
    assert text.lacking(None, 100) == 0
    text.sounded(bytes(2 * 30))
    text.sounded(b"\1\0")
    assert text.lacking(None, 100) == 0


def test_blank_text_has_no_words() -> None:
    text = TurnText(SentText())
    text.push(" \n")
    assert text.unflushed and not text.worded and not text.lacking(None, 100)
    text.push("x")
    assert text.worded

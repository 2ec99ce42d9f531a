"""What a session was told and has not read: in order, text as one, and bounded."""

from __future__ import annotations

from shoal.proto.messages import (
    MAX_TEXT_CHARS,
    Cancel,
    ClientMessage,
    Flush,
    Start,
    Stop,
    Text,
    TtsRequest,
)
from shoal.realtime.inbox import Inbox
from shoal.realtime.turn_text import MAX_MARKS

START = Start(TtsRequest())


def taken(inbox: Inbox) -> list[ClientMessage | str]:
    found: list[ClientMessage | str] = []
    while (message := inbox.take()) is not None:
        found.append(message)
    return found


def filled(*messages: ClientMessage) -> Inbox:
    inbox = Inbox()
    for message in messages:
        inbox.put(message)
    return inbox


def test_text_that_comes_in_pieces_is_one_and_the_order_stays() -> None:
    pieces = ("a", "b\r\n", "\n", "\ud800c")
    inbox = filled(START, *map(Text, pieces), Flush(1), Flush(), Text("d"), Text("e"), Stop())
    assert len(inbox) == 6
    assert taken(inbox) == [
        *(START, Text("ab\r\n\n\ud800c"), Flush(1), Flush(), Text("de"), Stop())
    ]
    assert len(inbox) == 0 and inbox.take() is None


def test_text_that_was_read_makes_room_for_more() -> None:
    half = "x" * (MAX_TEXT_CHARS // 2)
    inbox = filled(Text(half), Text(half))
    assert inbox.take() == Text(half + half)
    inbox.put(Text(half))
    inbox.put(Text(half))
    assert inbox.take() == Text(half + half)


def test_too_much_text_is_refused_once_and_for_all() -> None:
    inbox = filled(START, Text("x" * MAX_TEXT_CHARS), Flush(), Text("y"), Flush(), Text("z"))
    assert taken(inbox) == [f"over {MAX_TEXT_CHARS} characters wait to be spoken"]
    inbox.put(Text("more"))
    assert inbox.take() is None


def test_flushes_beyond_the_limit_are_dropped_or_refused_as_they_are_in_a_turn() -> None:
    sentences = [message for _ in range(MAX_MARKS) for message in (Text("a"), Flush())]
    inbox = filled(*sentences, Text("b"), Flush(), Text("c"))
    assert taken(inbox) == [*sentences, Text("bc")]
    inbox = filled(*sentences, Text("b"), Flush("mine"))
    assert taken(inbox) == [f"over {MAX_MARKS} flushes wait"]


def test_flushes_that_were_read_make_room_for_more() -> None:
    flushes = [Flush(number) for number in range(MAX_MARKS)]
    inbox = filled(*flushes)
    for _ in range(2):
        assert taken(inbox) == flushes
        for flush in flushes:
            inbox.put(flush)


def test_a_cancel_takes_the_place_of_what_was_not_read() -> None:
    inbox = filled(START, Text("a"), Flush(), Cancel(), Text("b"), Cancel(), Cancel())
    assert taken(inbox) == [START, Cancel()]
    assert taken(filled(Text("a"), Cancel())) == [Cancel()]
    too_much = filled(START, Text("x" * MAX_TEXT_CHARS), Text("y"))
    too_much.put(Cancel())
    assert taken(too_much) == [START, Cancel()]

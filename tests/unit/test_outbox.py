"""What waits for a client is bounded, in order, and can be dropped until it is on the wire."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.realtime.outbox import MAX_MARKS, MAX_NOTES, Kind, Outbox, OutboxFull, Outgoing


def audio(seconds: float, size: int = 1000) -> Outgoing:
    return Outgoing(bytes(size), Kind.AUDIO, seconds)


FINISH = Outgoing(b"finish", Kind.FINISH)
NOTE = Outgoing(b"note", Kind.NOTE)
MARK = Outgoing(b"mark", Kind.MARK)


def test_messages_leave_in_order_and_kinds_do_not_overtake() -> None:
    outbox = Outbox()
    items = [audio(0.1), NOTE, audio(0.2), FINISH]
    for item in items:
        outbox.push(item)
    assert [outbox.pop() for _ in items] == items
    assert outbox.pop() is None and outbox.empty


def test_audio_counts_from_the_engine_to_the_acknowledgement() -> None:
    outbox = Outbox()
    outbox.expect(1.0)
    assert outbox.held_s == pytest.approx(1.0)  # being encoded
    outbox.encoded(1.0)
    outbox.push(audio(1.0))
    assert outbox.held_s == pytest.approx(1.0)  # queued
    outbox.pop()
    outbox.unacknowledged(1000)
    assert outbox.held_s == pytest.approx(1.0)  # on the wire
    outbox.unacknowledged(0)
    assert outbox.held_s == 0.0


def test_acknowledgements_free_the_oldest_messages_first() -> None:
    outbox = Outbox()
    for seconds in (0.1, 0.2, 0.4):
        outbox.push(audio(seconds))
        outbox.pop()
    outbox.unacknowledged(2500)
    assert outbox.held_s == pytest.approx(0.7)
    outbox.unacknowledged(2000)
    assert outbox.held_s == pytest.approx(0.6)
    outbox.unacknowledged(999)
    assert outbox.held_s == pytest.approx(0.4)


def test_over_the_high_mark_it_pauses_once_and_under_the_low_mark_it_resumes_once() -> None:
    outbox = Outbox(high_s=2.0, low_s=1.0)
    outbox.expect(2.0)
    assert outbox.pause_change() is None
    outbox.expect(0.1)
    assert [outbox.pause_change(), outbox.pause_change()] == [True, None]
    outbox.encoded(2.1)
    outbox.push(audio(1.0))
    outbox.push(audio(1.1))
    outbox.pop()
    outbox.unacknowledged(0)
    assert outbox.pause_change() is None  # 1.1 s: between the marks
    outbox.pop()
    outbox.unacknowledged(0)
    assert [outbox.pause_change(), outbox.pause_change()] == [False, None]


def test_the_wire_takes_so_many_seconds_and_bytes_and_no_more() -> None:
    slow = Outbox(wire_s=1.0)
    big = Outbox(wire_bytes=2500)
    for outbox, taken in ((slow, 2), (big, 3)):
        for _ in range(5):
            outbox.push(audio(0.5))
        popped = 0
        while outbox.pop() is not None:
            popped += 1
        assert popped == taken and outbox.wire_full
        outbox.unacknowledged(0)
        assert outbox.pop() is not None


def test_a_dropped_turn_leaves_notes_and_no_audio_and_no_finish() -> None:
    outbox = Outbox(high_s=0.5)
    outbox.expect(3.0)
    for item in (audio(1.0), NOTE, audio(1.0), FINISH):
        outbox.push(item)
    assert outbox.pause_change() is True
    outbox.drop_turn()
    assert outbox.held_s == 0.0 and not outbox.paused
    assert outbox.pop() is NOTE and outbox.pop() is None


def test_what_is_on_the_wire_still_counts_after_a_drop() -> None:
    outbox = Outbox()
    outbox.push(audio(1.0))
    outbox.pop()
    outbox.drop_turn()
    assert outbox.held_s == pytest.approx(1.0)


def test_a_client_that_provokes_errors_and_does_not_read_them_is_refused() -> None:
    outbox = Outbox()
    for _ in range(MAX_NOTES):
        outbox.push(NOTE)
    with pytest.raises(OutboxFull):
        outbox.push(NOTE)
    outbox.pop()
    outbox.push(NOTE)


@pytest.mark.parametrize("speed", [0.5, 1.0, 2.0])
def test_sound_that_plays_for_longer_or_shorter_than_it_was_leaves_nothing_behind(
    speed: float,
) -> None:
    outbox = Outbox()
    for _ in range(100):
        outbox.expect(0.2)
        outbox.encoded(0.2)
        outbox.push(audio(0.2 / speed))
        outbox.pop()
        outbox.unacknowledged(0)
        assert outbox.held_s == pytest.approx(0.0)
        assert outbox.pause_change() is None


def test_a_finish_ends_what_the_encoder_was_thought_to_hold() -> None:
    outbox = Outbox()
    outbox.expect(0.3)
    outbox.encoded(0.25)
    outbox.push(audio(0.25))
    outbox.push(FINISH)
    assert outbox.held_s == pytest.approx(0.25)


@given(st.lists(st.tuples(st.sampled_from("enpdau"), st.floats(0.0, 3.0)), max_size=60))
def test_no_sequence_makes_a_count_negative_or_loses_the_order(
    steps: list[tuple[str, float]],
) -> None:
    outbox, pushed, popped = Outbox(), 0, -1
    for step, amount in steps:
        match step:
            case "e":
                outbox.expect(amount)
            case "n":
                outbox.encoded(amount)
            case "p":
                outbox.push(Outgoing(str(pushed).encode(), Kind.AUDIO, amount))
                pushed += 1
            case "d":
                outbox.drop_turn()
            case "a":
                outbox.unacknowledged(int(amount))
            case _:
                item = outbox.pop()
                if item is not None:
                    assert int(item.payload) > popped
                    popped = int(item.payload)
        assert outbox.held_s >= -1e-9 and outbox.wire_bytes >= 0
        outbox.pause_change()


def test_marks_keep_their_place_and_go_with_their_turn() -> None:
    outbox = Outbox()
    for item in (audio(0.1), MARK, NOTE, FINISH):
        outbox.push(item)
    assert outbox.pop() == audio(0.1) and outbox.pop() == MARK
    outbox.push(MARK)
    outbox.drop_turn()
    assert outbox.pop() == NOTE and outbox.empty


def test_marks_that_nobody_reads_are_bounded() -> None:
    outbox = Outbox()
    for _ in range(MAX_MARKS):
        outbox.push(MARK)
    with pytest.raises(OutboxFull):
        outbox.push(MARK)
    outbox.pop()
    outbox.push(MARK)
    outbox.drop_turn()
    for _ in range(MAX_MARKS):
        outbox.push(MARK)

"""When a dry player waits for its text, and when for its server."""

from __future__ import annotations

import pytest

from shoal.loadtest.measure.starving import text_due_of
from shoal.loadtest.measure.timeline import SentenceEnd

# three sentences of 10, 90 and 100 letters, whole at 1 s, 5 s and 9 s; 0.1 s of audio a letter
SENTENCES = (SentenceEnd(1.0, 10), SentenceEnd(5.0, 100), SentenceEnd(9.0, 200))
S_PER_CHAR = 0.1


@pytest.mark.parametrize(
    ("played_s", "due_s"),
    [
        (1.0, 5.0),  # the first sentence is said: the second is next
        (1.5, 5.0),  # said slowly
        (0.5, 5.0),  # said fast
        (10.0, 9.0),  # the second is said
        (8.0, 9.0),  # within a quarter of a long sentence
        (12.0, 9.0),
        (4.0, None),  # in the middle of the second: no text was missing
        (15.0, None),
        (20.0, None),  # all is said
    ],
)
def test_at_a_sentences_end_the_text_of_the_next_one_is_what_is_waited_for(
    played_s: float, due_s: float | None
) -> None:
    text_due = text_due_of(SENTENCES, S_PER_CHAR)
    assert text_due is not None
    assert text_due(played_s) == due_s


def test_text_that_came_at_once_excuses_nothing() -> None:
    assert text_due_of((), S_PER_CHAR) is None
    assert text_due_of(SENTENCES[:1], S_PER_CHAR) is None


def test_a_turn_without_audio_excuses_nothing() -> None:
    assert text_due_of(SENTENCES, 0.0) is None


def test_of_two_short_sentences_the_nearer_end_counts() -> None:
    short = (SentenceEnd(1.0, 4), SentenceEnd(2.0, 8), SentenceEnd(3.0, 80))
    text_due = text_due_of(short, S_PER_CHAR)
    assert text_due is not None
    assert text_due(0.4) == 2.0
    assert text_due(0.9) == 3.0

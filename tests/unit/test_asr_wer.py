"""Counting words: the normaliser, the edit distance, and the rate over many sentences."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.loadtest.asr_wer import compare, normal_words, word_error_rate, word_errors

SENTENCES = Path(__file__).parents[1] / "data" / "sents20.txt"


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("$42.17", "forty two dollars and seventeen cents"),
        ("Wednesday, the 3rd of March!", "wednesday the third of march"),
        ("at 9:30", "at nine thirty"),
        ("1,200,000", "one million two hundred thousand"),
        ("in 1999", "in nineteen ninety nine"),
        ("5% off", "five percent off"),
        ("It’s a well-known fact", "it's a well known fact"),
    ],
)
def test_two_ways_to_write_the_same_words(text: str, same: str) -> None:
    assert normal_words(text) == normal_words(same)


@pytest.mark.parametrize(
    ("reference", "heard", "errors"),
    [
        ("a b c d", "a b c d", 0),
        ("a b c d", "a x c d", 1),
        ("a b c d", "a c d", 1),
        ("a b c d", "a b b c d", 1),
        ("a b c d", "", 4),
        ("", "a b", 2),
        ("a b c d", "d c b a", 4),
    ],
)
def test_the_least_number_of_edits(reference: str, heard: str, errors: int) -> None:
    assert word_errors(reference.split(), heard.split()) == errors
    assert word_errors(heard.split(), reference.split()) == errors


def test_the_rate_weighs_sentences_by_their_words() -> None:
    results = [compare("one two three four", "one two three four"), compare("five six", "")]
    assert word_error_rate(results) == pytest.approx(2 / 6)


def test_there_are_twenty_sentences_without_digits() -> None:
    lines = SENTENCES.read_text().splitlines()
    assert len(lines) == 20
    assert not any(character.isdigit() for line in lines for character in line)

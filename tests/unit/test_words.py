"""Which words a text has, and how their lengths compare."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.realtime.words import words_of


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", []),
        ("... \u2014 !", []),
        ("Hello there.", ["Hello", "there"]),
        ("don't, well-known", ["don't", "well-known"]),
        ("It is 3.14, or 22,1.", ["It", "is", "3.14", "or", "22,1"]),
        ("50% of $20", ["50%", "of", "20"]),
        ("(really) \u201cyes\u201d", ["really", "yes"]),
        ("[laugh] Hi <break time='1s'/> you<|x|>.", ["Hi", "you"]),
        ("\u4f60\u597d\uff0c\u4e16\u754c\u3002", list("\u4f60\u597d\u4e16\u754c")),
        ("\u3053\u3093 OK", ["\u3053", "\u3093", "OK"]),
        ("AI\u6a21\u578b", ["AI", "\u6a21", "\u578b"]),
        ("\ud55c\uad6d\uc5b4 \ub9d0", ["\ud55c\uad6d\uc5b4", "\ub9d0"]),
        ("cafe\u0301 noir", ["cafe\u0301", "noir"]),
        ("\u0639\u0644\u0645 \u0646\u0648\u0631", ["\u0639\u0644\u0645", "\u0646\u0648\u0631"]),
    ],
)
def test_words_are_those_a_reader_would_point_at(text: str, words: list[str]) -> None:
    found = words_of(text)
    assert [word.text for word in found] == words
    assert [text[word.begin : word.end] for word in found] == words


def test_punctuation_is_a_pause_after_its_word() -> None:
    pauses = [word.pause_units for word in words_of("One, two. Three four\nfive")]
    assert pauses[0] > 0 and pauses[1] > pauses[0]
    assert pauses[2] == 0.0 and pauses[3] > pauses[0]


def test_numbers_and_acronyms_take_longer_than_words_of_their_length() -> None:
    number, acronym, word = words_of("1984 HTML tree")
    assert number.units > 2 * word.units and acronym.units > word.units
    assert words_of("\u4e16")[0].units > words_of("\u3042")[0].units > words_of("a")[0].units / 2


@given(st.text(max_size=60))
def test_any_text_gives_words_that_rise_and_have_a_length(text: str) -> None:
    end = 0
    for word in words_of(text):
        assert end <= word.begin < word.end <= len(text)
        assert word.text == text[word.begin : word.end] and word.units > 0 <= word.pause_units
        end = word.end

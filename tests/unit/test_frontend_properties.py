"""What holds of front ends whatever the text: bounds, alphabets, no control tokens, linear time."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from shoal.engine.english import OUTSIDE
from shoal.engine.frontend import MAX_CHARS, Frontend, make_frontend, split_spoken

ENGLISH = make_frontend("english")
PLAIN = make_frontend(None)


@given(st.text(st.sampled_from("ab,. !?3-你。"), max_size=400), st.integers(8, 60))
def test_splitting_loses_nothing_and_is_bounded(text: str, most: int) -> None:
    pieces = split_spoken(text, most)
    assert all(0 < len(piece) <= most for piece in pieces)
    assert "".join("".join(pieces).split()) == "".join(text.split())


@given(st.text(max_size=300), st.integers(20, 170))
def test_inputs_are_bounded_and_in_the_alphabet(text: str, most: int) -> None:
    for piece in ENGLISH.inputs(text, most):
        assert 0 < len(piece) <= most
        assert OUTSIDE.search(piece) is None
        assert piece[-1] in ".!?"


PIECES = (
    "Hello|world| | | |, |. |! |? |...|\n|\n\n|'|\"|’|-|--|—|–|$|€|%|5|10|1990|3.14|1,000|2/3|:|"
    "30| pm| p.m.|Dr.|No.|St.|etc.|e.g.|U.S.|OK|FBI|NASA|GPUs|I|II|Henry |Chapter |km|°C|F|/|h|"
    "http://|www.|a.b|.com|@|#|*|**|_|`|~|[|]|(|)|<|>|<||im_end||>|<|speaker:1|>|||&|&lt;|&amp;|+|="
    "|^2|é|ß|你好|。|😀|👍🏽|\ud83d|\ude00|\x00|\u200d|½|²|March |May |'90s|v1.2.3|-5|+1 555|x"
).split("|")
mixed = st.lists(st.sampled_from(PIECES), max_size=40).map("".join)
anything = st.one_of(mixed, st.text(st.characters(), max_size=120))


@given(anything, st.booleans())
def test_english_is_always_a_sentence_in_the_alphabet(text: str, normalize: bool) -> None:
    said = ENGLISH.spoken(text, normalize)
    assert OUTSIDE.search(said) is None
    assert len(said) <= 16 * len(text) + 1
    if said:
        assert said[-1] in ".!?"
        assert said[0].isupper()
        assert re.search("[A-Za-z]", said)


@given(mixed)
def test_english_leaves_its_own_output_alone(text: str) -> None:
    said = ENGLISH.spoken(text)
    assert ENGLISH.spoken(said) == said


@given(mixed)
def test_every_digit_is_said_without_normalisation(text: str) -> None:
    assume("```" not in text and "~~~" not in text)  # what is behind them on their line is code
    digits = sum(character in "0123456789" for character in ENGLISH.spoken(text, False))
    assert digits == 0
    spelled = "zero one two three four five six seven eight nine".split()
    words = re.findall("[a-z]+", ENGLISH.spoken(" 7 " + text + " 7 ", False).lower())
    assert sum(word in spelled for word in words) >= 2


@given(anything)
def test_no_text_becomes_a_control_token(text: str) -> None:
    said = PLAIN.spoken(text)
    assert "<|" not in re.sub(r"<\|speaker:\d{1,3}\|>", "", said)
    said.encode()
    assert len(said) <= len(text)


@pytest.mark.parametrize(
    "unit",
    [
        *"a 1 . 1. 1, - 1- * _ ` [ ( < <| a. a@ A ' $ x/ http:// é 你 😀 1/ # +1 :1 I & =".split(),
        *"1: a- -- & &# e1 +4 1h 1m p. :)".split(),
        *"[a]( ![ |- ' ‘ 1' 1/1 V. a.b X& 1,000 +1- $1 ^2".split(),
        *("1 ", "a b", "\n", "- ", "| ", "Chapter I", " ", "a\n", "* ", "1 1", "'s ", ", "),
        *("1 000 ", "1 A", "1 Aa ", "Mon ", "1-1", "AA 1", "1.1", "1' ", " 'a", "$1-"),
    ],
)
@pytest.mark.parametrize("front_end", [ENGLISH, PLAIN], ids=["english", "s2"])
def test_time_and_size_are_linear_in_the_text(front_end: Frontend, unit: str) -> None:
    def seconds(count: int) -> float:
        text = (unit * count)[:count]
        best = 1e9
        for _ in range(3):
            begin = time.thread_time()
            said = front_end.spoken(text)
            best = min(best, time.thread_time() - begin)
            assert len(said) <= 16 * len(text) + 1
        return best

    assert seconds(MAX_CHARS) < 8 * 5 * seconds(MAX_CHARS // 8) + 0.01


def test_no_more_than_a_bound_is_read() -> None:
    assert len(PLAIN.spoken("a" * (2 * MAX_CHARS))) == MAX_CHARS

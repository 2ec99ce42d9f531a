"""Numbers that are names are said as people say them; those that count stay as they were."""

from __future__ import annotations

import pytest

from shoal.engine.frontend import make_frontend
from shoal.engine.labels import paired


@pytest.mark.parametrize(
    ("digits", "said"),
    [
        ("101", "one oh one"),
        ("747", "seven forty-seven"),
        ("110", "one ten"),
        ("500", "five hundred"),
        ("2119", "twenty-one nineteen"),
        ("1204", "twelve oh four"),
        ("1500", "fifteen hundred"),
        ("2000", "two thousand"),
        ("9001", "nine thousand and one"),
        ("8080", "eighty eighty"),
        ("42", "forty-two"),
        ("007", "zero zero seven"),
    ],
)
def test_a_name_of_digits_is_said_in_pairs(digits: str, said: str) -> None:
    assert paired(digits) == said


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("Go to room 101.", "Go to room one oh one."),
        (
            "A Boeing 747, a 737-800.",
            "A Boeing seven forty-seven, a seven thirty-seven eight hundred.",
        ),
        ("an Airbus A320", "An Airbus A three twenty."),
        ("See RFC 2119.", "See R F C twenty-one nineteen."),
        ("HTTP 404, then error 500.", "H T T P four oh four, then error five hundred."),
        ("ISO 8601", "I S O eighty-six oh one."),
        ("I like 60s music.", "I like sixties music."),
        ("60s and 70s films", "Sixties and seventies films."),
        ("It takes 60s to load.", "It takes sixty seconds to load."),
        ("a 30s timeout", "A thirty seconds timeout."),
        ("10s of thousands", "Tens of thousands."),
        ("100s of people", "Hundreds of people."),
        ("Opens at 8h00 until 17h30.", "Opens at eight o'clock until seventeen thirty."),
        ("It lasts 1h30.", "It lasts one hour thirty minutes."),
        ("It costs 50c.", "It costs fifty cents."),
        ("See section 50c.", "See section fifty c."),
        ("It was 50C.", "It was fifty degrees Celsius."),
        ("Llama-3.1-8B", "Llama three point one, eight B."),
        ("Mixtral-8x7B", "Mixtral eight by seven B."),
        ("a city of 8B people", "A city of eight billion people."),
        (
            "101 rooms of 747 guests",
            "One hundred and one rooms of seven hundred and forty-seven guests.",
        ),
        ("room 101.5", "Room one hundred and one point five."),
        (
            "https://x.com/a.b/c.html",
            "X dot com slash a dot b slash c dot H T M L.",
        ),
        ("docs.x.org/3.11/os.path", "Docs dot x dot org slash three dot eleven slash os dot path."),
    ],
)
def test_what_is_written_is_said(written: str, said: str) -> None:
    assert make_frontend("english").spoken(written) == said

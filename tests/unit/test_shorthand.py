"""The rarer ways to write numbers, places and asides, as the English front end speaks them."""

from __future__ import annotations

import pytest

from shoal.engine.frontend import make_frontend
from shoal.engine.shorthand import written_out

ENGLISH = make_frontend("english")

SPOKEN = [
    # written otherwise elsewhere
    (
        "1 000 000, 12 500 000 and 20 000",
        "One million, twelve million, five hundred thousand and twenty thousand.",
    ),
    (
        "1.234,56 € or €3,50 or $.50",
        "One thousand, two hundred and thirty-four euros and fifty-six cents or three euros and"
        " fifty cents or fifty cents.",
    ),
    ("10 / 2 = 5, rated 4 / 5", "Ten divided by two equals five, rated four fifths."),
    (
        "1.5e-3 or 2E6 or x+1, +5 points",
        "One point five times ten to the power of minus three or two times ten to the power of"
        " six or x plus one, plus five points.",
    ),
    # digit by digit, or by halves
    (
        "Ring +44 20 7946 0958 or 1-800-FLOWERS.",
        "Ring plus four four, two zero, seven nine four six, zero nine five eight"
        " or one eight hundred flowers.",
    ),
    ("Your code is 482913.", "Your code is four eight two nine one three."),
    ("New York, NY 10001", "New York, N Y one zero zero zero one."),
    (
        "ISBN 978-3-16-148410-0",
        "I S B N nine seven eight, three, one six, one four eight four one zero, zero.",
    ),
    ("H.264 at 1080p.", "H two sixty-four at ten eighty p."),
    ("802.11ac on a 4K display", "Eight oh two dot eleven A C on a four K display."),
    (
        "10⁻³, 10¹², x⁴ and 5 km², says Smith¹⁴.",
        "Ten to the power of minus three, ten to the power of twelve, x to the power of four"
        " and five square kilometers, says Smith.",
    ),
    (
        "07911 123456, (02) 9876 5432 or 0800 123 4567",
        "Zero seven nine one one, one two three four five six, zero two, nine eight seven six,"
        " five four three two or zero eight zero zero, one two three, four five six seven.",
    ),
    # places
    (
        "221B Baker St. Apt. 4B, 10 Elm Dr.",
        "Two hundred and twenty-one B Baker Street Apartment four B, ten Elm Drive.",
    ),
    ("On 5 March Dr. Smith came.", "On the fifth of March Doctor Smith came."),
    ("40.7128° N, P.O. Box 12", "Forty point seven one two eight degrees north, P O Box twelve."),
    ("See p. 12, ch. 5 and Ex. 3.", "See page twelve, chapter five and Example three."),
    ("10 sq ft or 5 cu. m", "Ten square feet or five cubic meters."),
    ("He/she drives, in km/h.", "He or she drives, in kilometers per hour."),
    # more of times
    (
        "1h30m, 2h 5min 3s or 5m 30s",
        "One hour thirty minutes, two hours five minutes three seconds"
        " or five minutes thirty seconds.",
    ),
    (
        "Mon-Fri, Sat 5pm, Sun, Jan. 5",
        "Monday to Friday, Saturday five p m, Sunday, January fifth.",
    ),
    ("At 00:00, in 1:05.32.", "At midnight, in one oh five point three two."),
    ("The XVIth century, the XX century.", "The sixteenth century, the twentieth century."),
    (
        "8.30 pm, 9am–5pm, 9 am - 5 pm",
        "Eight thirty p m, nine a m to five p m, nine a m to five p m.",
    ),
    ("3-5-2024 and 1-2-3", "March fifth, twenty twenty-four and one two three."),
    # amounts and counts
    (
        "$5M-$10M, $500k-1M, USD 100, 12'000",
        "Five to ten million dollars, five hundred thousand to one million dollars,"
        " one hundred dollars, twelve thousand.",
    ),
    (
        "10× as much, 3x3x3, 1920x1080, 0x1F, localhost:8080",
        "Ten times as much, three by three by three, nineteen twenty by ten eighty,"
        " hex one F, localhost port eight thousand and eighty.",
    ),
    ("Louis XVI's, Godfather II, an IV", "Louis the sixteenth's, Godfather two, an I V."),
    ("On Fri 12/5 at 3 pm, UTC-5.", "On Friday December fifth at three p m, U T C minus five."),
    # measures
    (
        "1/2 tsp, 2 1/2 tbsp. of oil, 3/4 km, up 30 pts.",
        "One half teaspoon, two and a half tablespoons of oil, three quarters kilometer,"
        " up thirty points.",
    ),
    ("A = πr², λ and Greek: γειά", "A equals pi r squared, lambda and Greek."),
    # asides
    ("Open Settings > Wi-Fi, if a > b.", "Open Settings, Wi-Fi, if a greater than b."),
    (
        "Mr T met Mrs Jones and Dr Who.",
        "Mister T met Missus Jones and Doctor Who.",
    ),
    (
        "It's 'quoted' and 'don't do it' by the dogs' bowl, rock 'n' roll, the '90s, 'tis.",
        "It's quoted and don't do it by the dogs' bowl, rock 'n' roll, the nineties, 'tis.",
    ),
    ("Great :) Thanks ;-) I love it <3", "Great Thanks I love it."),
    ("Latency <3 ms: good.", "Latency less than three milliseconds, good."),
    ("A JSON file and a JPEG.", "A Jason file and a jay peg."),
    # what is not seen, and what stands for a character
    ("so\xadft ze\u200bro wi\u200cdth j\u200doin\u2060ed \u200fx", "Soft zero width joined x."),
    ("Caf&eacute; &#8212; it&rsquo;s &hellip; &copy; R&amp;D", "Cafe, it's, R and D."),
]


@pytest.mark.parametrize(("text", "said"), SPOKEN)
def test_rarer_writing_is_spoken(text: str, said: str) -> None:
    assert ENGLISH.spoken(text) == said


@pytest.mark.parametrize(
    "text",
    [
        "Nothing here is written in shorthand, not even at 5:30 or for $3.50.",
        "A 7B model, 555 123 4567, 10 20 30, room 12, 2024-01-15, (see the note: yes)",
        "He sat; 5 St. Louis fans; ratio 3:2; I/O; w/o; Mon ami; 1.2.3, 12.345",
    ],
)
def test_what_others_know_is_left_to_them(text: str) -> None:
    assert written_out(text) == text

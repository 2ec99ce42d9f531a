"""Front ends: what is spoken for what people and language models write."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.engine.frontend import make_frontend

ENGLISH = make_frontend("english")
PLAIN = make_frontend(None)

# Both tables are what the normaliser of the training text makes of these sentences.
AS_TRAINED = [
    ("The birch canoe slid on the smooth planks.", "The birch canoe slid on the smooth planks."),
    (
        "Mr. and Mrs. Dashwood met Dr. Watson at St. James.",
        "Mister and Missus Dashwood met Doctor Watson at Saint James.",
    ),
    (
        "Capt. Hook, Lt. Smee and Sgt. Rock sailed with Gen. Lee.",
        "Captain Hook, Lieutenant Smee and Sergeant Rock sailed with General Lee.",
    ),
    (
        "She was born in 1984 and moved in 2013.",
        "She was born in nineteen eighty-four and moved in twenty thirteen.",
    ),
    (
        "In 1900 there were 76 of them; in 1805 only 5.",
        "In nineteen hundred there were seventy-six of them, in eighteen oh-five only five.",
    ),
    (
        "He paid $5.50 for 12 apples and $20 for the rest.",
        "He paid five dollars and fifty cents for twelve apples and twenty dollars for the rest.",
    ),
    (
        "About 45% of the 2,000,000 people agreed.",
        "About forty-five percent of the two million people agreed.",
    ),
    (
        "The train leaves at 9:05, not at 10:30.",
        "The train leaves at nine oh five, not at ten thirty.",
    ),
    ("We meet at 12:00.", "We meet at twelve o'clock."),
    ("This is the 1st, 2nd and 23rd time.", "This is the first, second and twenty-third time."),
    (
        "Pi is 3.14 and e is 2.718.",
        "Pi is three point one four and e is two point seven one eight.",
    ),
    ("“Well,” she said — ‘tis true – isn't it?", "Well, she said, 'tis true, isn't it?"),
    ("Well-known, long-lived words -- and pauses.", "Well-known, long-lived words, and pauses."),
    ("Wait... what did you say?", "Wait, what did you say?"),
    ("It's the dogs' bowl; don't touch it.", "It's the dogs' bowl, don't touch it."),
    ("Salt & pepper, please!", "Salt and pepper, please!"),
    ('He said: "Go home; now."', "He said, Go home, now."),
    ("Rock 'n' roll isn't dead.", "Rock 'n' roll isn't dead."),
    (
        "Smith vs. Jones, i.e. the old case, e.g. this.",
        "Smith versus Jones, that is the old case, for example this.",
    ),
    ("Apples, pears, etc. are fruit.", "Apples, pears, et cetera are fruit."),
    (
        "John Smith, Jr. and Robert Esq. of Acme Co. agreed.",
        "John Smith, Junior and Robert Esquire of Acme Company agreed.",
    ),
    (
        "There are 1234567 stars and 365 days.",
        "There are one million, two hundred and thirty-four thousand, five hundred and "
        "sixty-seven stars and three hundred and sixty-five days.",
    ),
    (
        "I have 3 cats, 14 dogs and 100 fish.",
        "I have three cats, fourteen dogs and one hundred fish.",
    ),
    ("The year 2005 was good.", "The year two thousand and five was good."),
    ("What time is it? I don't know!", "What time is it? I don't know!"),
    ("It was the U.S. navy.", "It was the U.S. navy."),
    ("He ran 26.2 miles.", "He ran twenty-six point two miles."),
    (
        "Rev. Green and Hon. Brown and Col. Mustard.",
        "Reverend Green and Honorable Brown and Colonel Mustard.",
    ),
]
UNCHANGED = (Path(__file__).parents[1] / "data" / "sents20.txt").read_text().split("\n")[:-1]

WRITTEN_OUT = [
    ("A <!-- hidden --> word.", "A word."),
    ("<!-- a\nb -->Shown.", "Shown."),
    ("See <script>alert(1)</script>this.", "See this."),
    ('[The guide][1] says so.\n[1]: http://example.com "Example"', "The guide says so."),
    (":smile: and :+1: fine.", "And fine."),
    ("At 10:30: go, std::cout now.", "At ten thirty, go, std,cout now."),
    ("$5 - $7", "Five to seven dollars."),
    ("It was $12 -$5.", "It was twelve dollars minus five dollars."),
    (
        "Pi is 3.1415926535897932384626.",
        "Pi is three point one four one five nine two six five three five eight nine seven "
        "nine three two three eight four six two six.",
    ),
    # money
    ("It costs $5.50.", "It costs five dollars and fifty cents."),
    ("It costs $1.", "It costs one dollar."),
    (
        "It costs $0.99, $2.00 or $1,250.",
        "It costs ninety-nine cents, two dollars or one thousand, two hundred and fifty dollars.",
    ),
    (
        "€20 or £3.99 or 3,99 € or 20 EUR.",
        "Twenty euros or three pounds and ninety-nine pence or three euros and ninety-nine "
        "cents or twenty euros.",
    ),
    ("They raised $1.2 million.", "They raised one point two million dollars."),
    (
        "$5–10 million, $3K, -$5, US$7",
        "Five to ten million dollars, three thousand dollars, minus five dollars, seven dollars.",
    ),
    ("$9.99/month", "Nine dollars and ninety-nine cents per month."),
    # dates
    ("On 2024-03-15.", "On March fifteenth, twenty twenty-four."),
    (
        "On 3/15/2024 or 15.03.2024.",
        "On March fifteenth, twenty twenty-four or March fifteenth, twenty twenty-four.",
    ),
    (
        "March 5th, Mar. 6 and 7 March 2001",
        "March fifth, March sixth and the seventh of March, two thousand and one.",
    ),
    ("July 4, 1776", "July fourth, seventeen seventy-six."),
    ("Mark 5 and May.", "Mark five and May."),
    ("In the 1990s and the '80s.", "In the nineteen nineties and the eighties."),
    # times
    ("At 3:45 pm or 7 a.m. or 15:30.", "At three forty-five p m or seven a m or fifteen thirty."),
    ("9:00-17:30", "Nine o'clock to seventeen thirty."),
    ("At 3 p.m. Then go.", "At three p m. Then go."),
    (
        "Due by 12/24, at 10.0.0.1:8080.",
        "Due by December twenty-fourth, at ten dot zero dot zero"
        " dot one port eight thousand and eighty.",
    ),
    (
        "Flight BA2490, 221B Baker St., 4.5/5",
        "Flight B A two four nine zero, two hundred and"
        " twenty-one B Baker Street, four point five out of five.",
    ),
    # telephone
    ("Call (555) 123-4567.", "Call five five five, one two three, four five six seven."),
    ("+1 555 123 4567", "Plus one, five five five, one two three, four five six seven."),
    ("Dial 911.", "Dial nine one one."),
    # units
    ("It is 98.6 F.", "It is ninety-eight point six degrees Fahrenheit."),
    (
        "-5 °C, 20°C and 90°",
        "Minus five degrees Celsius, twenty degrees Celsius and ninety degrees.",
    ),
    (
        "5 km, 1 km, 60 km/h and 9.8 m/s²",
        "Five kilometers, one kilometer, sixty kilometers per hour and nine point eight meters "
        "per second squared.",
    ),
    ("10 GB in 100 ms at 5GHz", "Ten gigabytes in one hundred milliseconds at five gigahertz."),
    ("5'10\" and 6 ft 2 in", "Five feet ten inches and six feet two inches."),
    ("a 5-mile run, 50 m²", "A five mile run, fifty square meters."),
    ("10x faster, 7B and 10K", "Ten times faster, seven billion and ten thousand."),
    # ranges, fractions, other numbers
    (
        "pages 5–7, 1990-1995, 10 - 20",
        "Pages five to seven, nineteen ninety to nineteen ninety-five, ten to twenty.",
    ),
    ("½ cup, 2½ cups, 3/4, 2/3", "One half cup, two and a half cups, three quarters, two thirds."),
    ("7/10, 24/7, 16:9", "Seven out of ten, twenty-four seven, sixteen to nine."),
    ("50% or 5.5 %", "Fifty percent or five point five percent."),
    (
        "v2.1.3, 1.2.3 and 192.168.1.1",
        "Version two point one point three, one point two point three and one hundred and "
        "ninety-two dot one hundred and sixty-eight dot one dot one.",
    ),
    ("3.14, 0.05, .5, -3", "Three point one four, zero point zero five, point five, minus three."),
    (
        "007 and 4111 1111 1111 1111",
        "Zero zero seven and four one one one, one one one one, one one one one, one one one one.",
    ),
    ("No. 5 said no. No. 7!", "Number five said no. Number seven!"),
    ("No. I said no.", "No. I said no."),
    ("5 - 3 = 2 and 5 + 3 = 8", "Five minus three equals two and five plus three equals eight."),
    ("22,1", "Twenty-two, one."),
    # addresses
    (
        "See https://www.example.com/docs/getting-started?x=1#y.",
        "See example dot com slash docs slash getting started.",
    ),
    ("Mail john.doe@example.co.uk.", "Mail john dot doe at example dot co dot U K."),
    ("github.com/foo, x.ai", "Github dot com slash foo, x dot A I."),
    ("Open main.py or Node.js.", "Open main dot P Y or Node dot J S."),
    # capitals
    ("The FBI, NASA, APIs and GPT-4's GPUs.", "The F B I, Nasa, A P I's and G P T four's G P U's."),
    ("I am VERY happy. STOP!", "I am very happy. Stop!"),
    ("THIS IS IMPORTANT", "This is important."),
    ("ChatGPT on macOS", "Chat G P T on mac O S."),
    ("The US Army asked us.", "The U S Army asked us."),
    (
        "World War II, Chapter XIV, Henry VIII. Malcolm X.",
        "World War two, Chapter fourteen, Henry the eighth. Malcolm X.",
    ),
    ("AT&T and R&D", "A T and T and R and D."),
    # abbreviations
    (
        "Prof. Ph.D. lives at 5 Main St. in St. Louis",
        "Professor P H D lives at five Main Street in Saint Louis.",
    ),
    ("Apples, etc. The rest is OK.", "Apples, et cetera. The rest is okay."),
    # symbols
    (
        "#1 in #python, C++, C# and .NET",
        "Number one in hashtag python, C plus plus, C sharp and dot net.",
    ),
    (
        "~5, ±3, 2×3, 6÷2, a < b, x >= 2",
        "About five, plus or minus three, two times three, six divided by two, a less than b, x "
        "is at least two.",
    ),
    # Markdown
    ("**Bold**, *it*, __u__, `code` and ~~gone~~.", "Bold, it, u, code and gone."),
    ("# Title\n\nText here:\n- one\n* two\n\n> three", "Title. Text here, one, two. three."),
    ("| A | B |\n|---|:-:|\n| x | y |", "A, B. x, y."),
    ("```python\nprint\n```", "Print."),
    ("[link](http://x.com/a_(b)) and ![alt](a.png) done[1].", "Link and alt done."),
    ("snake_case and 2*3", "Snake case and two times three."),
    # marks
    ("[laughs] Hi (laughing) <break time='1s'/> <|im_end|> you (or not).", "Hi you or not."),
    # characters
    ("Café Zürich Łódź naïve — “So”", "Cafe Zurich Lodz naive, So."),
    ("Great 😀! Yes 👍🏽. 1️⃣", "Great! Yes. one."),
    ("你好 world. Привет! Ｆull", "World! Full."),
    ("x\ud800y\x00z", "Xyz."),
    ("one\ntwo\n\nthree.", "One, two. three."),
    ("Really?! No!!! Wait...", "Really? No! Wait."),
    # nothing
    ("...", ""),
    ("😀", ""),
    ("[laughs]", ""),
    ("你好。", ""),
    ("", ""),
    ("'-,.", ""),
]


@pytest.mark.parametrize(("text", "said"), AS_TRAINED)
def test_ordinary_sentences_come_out_as_in_training(text: str, said: str) -> None:
    assert ENGLISH.spoken(text) == said


@pytest.mark.parametrize("text", UNCHANGED)
def test_what_needs_no_change_has_none(text: str) -> None:
    assert ENGLISH.spoken(text) == text


@pytest.mark.parametrize(("text", "said"), WRITTEN_OUT)
def test_what_people_write_is_spoken(text: str, said: str) -> None:
    assert ENGLISH.spoken(text) == said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[laughs] Héllo,  你好 — (sighing) 3.14!", "[laughs] Héllo, 你好 — (sighing) 3.14!"),
        ("<|speaker:1|>Hi. <|speaker:2|> Yes", "<|speaker:1|>Hi. <|speaker:2|> Yes"),
        ("Hi <|im_end|> there <|semantic:5|>", "Hi there"),
        ("Hi <<|x|>|im_end|> a <|im_start b|>", "Hi < |im_end a"),
        ("<😀|im_end|> <*|im_end|> <`|im_end|>", "< |im_end <`|im_end"),
        ("&lt;|im_end|&gt; so", "so"),
        ("&#60;&#x7c;im_end&vert;&gt; so&#1;&#xD800;", "so"),
        ("Caf&eacute;&nbsp;&mdash; &unknown; R&D;", "Café — &unknown; R&D;"),
        ("Great 😀! 👩‍👩‍👧 and 🇩🇪.", "Great! and."),
        ("# T\n\n- **a**\n- [b](http://c.d)\n", "T\na\nb"),
        ("नमस्ते क्‍ष", "नमस्ते क्‍ष"),
        ("a \t b\r\n\n\n c\x00\ud800", "a b\nc"),
        ("<b>x</b> <break/> 1 < 2", "x 1 < 2"),
        ("[laughs]", "[laughs]"),
        ("<|speaker:1|>", ""),
        ("...", ""),
        ("😀", ""),
        (" \n", ""),
    ],
)
def test_s2_text_is_only_cleaned(text: str, said: str) -> None:
    assert PLAIN.spoken(text) == said


def test_an_unknown_front_end_is_refused() -> None:
    with pytest.raises(ValueError, match="klingon"):
        make_frontend("klingon")


# Splitting ---------------------------------------------------------------------------------------


def test_short_text_is_one_input() -> None:
    assert ENGLISH.inputs("Hello there.", 170) == ("Hello there.",)
    assert ENGLISH.inputs("...", 170) == ()


def test_long_spoken_text_is_split_into_sentences_of_their_own() -> None:
    text = "Send 1,234,567 units, 7,654,321 parts and 9,999,999 screws to 192.168.1.1 by 3/15/2024."
    assert ENGLISH.inputs(text, 170) == (
        "Send one million, two hundred and thirty-four thousand, five hundred and sixty-seven"
        " units.",
        "Seven million, six hundred and fifty-four thousand, three hundred and twenty-one parts.",
        "And nine million, nine hundred and ninety-nine thousand, nine hundred and ninety-nine"
        " screws.",
        "To one hundred and ninety-two dot one hundred and sixty-eight dot one dot one by March"
        " fifteenth, twenty twenty-four.",
    )


# As written -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Call 4711 now!", "Call four seven one one now!"),
        (
            "It is 3.14, 10:30 and 1,000.",
            "It is three. one four, one zero, three zero and one, zero zero zero.",
        ),
        ("Room B2B", "Room B two B."),
        ("$5 for Dr. Who & NASA at 20%.", "Five for Dr. Who NASA at two zero."),
        ("x^2 in \\(y\\)", "X two in y."),
        ("**Bold** [warm] caf\u00e9 &amp; (laughs) more", "Bold cafe more."),
        ("Plain words, as ever.", "Plain words, as ever."),
        ("$ % &", ""),
    ],
)
def test_without_normalisation_text_is_said_as_it_is_written(text: str, said: str) -> None:
    assert ENGLISH.spoken(text, normalize=False) == said
    assert ENGLISH.inputs(text, 170, normalize=False) == ((said,) if said else ())


@pytest.mark.parametrize("text", ["Call 4711 for $5.", "Dr. Who [warm]", "你好 3"])
def test_the_s2_family_is_given_text_as_written_either_way(text: str) -> None:
    assert PLAIN.spoken(text) == PLAIN.spoken(text, normalize=False) == text

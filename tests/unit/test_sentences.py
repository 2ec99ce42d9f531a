"""Where text may be cut, as tables: input with a bar at each expected place."""

from __future__ import annotations

import pytest

from shoal.engine.sentences import last_character_cut, last_word_cut, scan


def ends(text: str, *, closed: bool = False) -> str:
    """The text with a bar at each firm sentence end, and ``~`` at the likely one."""
    cuts = scan(text, closed=closed, mark_chars=120)
    marks = dict.fromkeys(cuts.sentences, "|")
    if cuts.likely:
        marks[cuts.likely] = "~"
    return "".join(marks.get(i, "") + c for i, c in enumerate(text)) + marks.get(len(text), "")


@pytest.mark.parametrize(
    "marked",
    [
        "Hello there.| How are you?| Fine!| ",
        "Really?!| No...| Yes",
        "Wait... what?| Oh",
        # numbers
        "It is 3.14 or 22,1 or 98.6 F.| So it",
        "In 2024.| Yes",
        "Version 2.1.3 is out.| So",
        # abbreviations
        "Dr. Smith met Mrs. Jones, e.g. at St. James.| So",
        "He lives in the U.S. and likes it.| So",
        "He lives in the U.S.| He likes it.| So",
        "The U.S. Army came.| So",
        "J. R. R. Tolkien wrote it.| So",
        "So did I.| The end.| So",
        "Apples, pears, etc. are fruit.| So",
        "Apples, pears, etc.| The rest is not.| So",
        "At 5 p.m. Mary left.| So",
        "No. 5 is alive.| So",
        "No.| I said so.| So",
        "Am 3. Oktober war es.| So",
        "I have 3.| You have 5.| The end",
        # lists
        "1. First do this.|\n2. Then do that.|\n",
        # addresses
        "See https://a.b/c?x=1!y&z=2 or a@b.co.| So",
        "Open main.py or Node.js now.| So",
        "Go to example.com.| So",
        # quotes and parentheses
        '"Stop!" he said.| "No!"| She left.| So',
        "“Stop.”| She left.| So",
        "(He left. She stayed.)| Then what?| So",
        "He (Mr. X. The man) left.| So",
        # marks
        "Hi [no. Really. no] there.| So",
        'Hi <break time="1.5s"/> there.| So',
        "Hi there.|[laughs. a lot] So",
        "Hello there|<|speaker:1|>Hi!| So",
        "[warm] Hi.| So",
        # scripts without spaces, emoji, missing spaces
        "你好。|我很好！|你呢？|谢谢",
        "他说「好。」|然后走了。|好",
        "नमस्ते।| ठीक",
        "Great.|😀 Yes.| So",
        "Wow!|How nice?|Yes.| So",
        "yahoo!mail is a?b.| So",
        # line ends
        "one|\ntwo|\n\nthree",
        # nothing to say yet
        "... ?! Hello.| So",
    ],
)
def test_sentence_ends(marked: str) -> None:
    text = marked.replace("|", "").replace("<speaker:1>", "<|speaker:1|>")
    assert ends(text) == marked


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("I have 3.", "14 may follow"),
        ("It is 98.", "6 may follow"),
        ("Ask Dr.", "a name follows"),
        ("He lives in the U.S.", "Army may follow"),
        ("He lives in the U.S. A", "Army may follow"),
        ('He lives in the U.S. "', "a word decides"),
        ("Meet in Jan. ", "5 may follow"),
    ],
)
def test_an_open_end_that_more_text_decides(text: str, why: str) -> None:
    cuts = scan(text, closed=False, mark_chars=120)
    assert (cuts.sentences, cuts.likely) == ((), 0), why
    assert scan(text, closed=True, mark_chars=120).held == len(text)


@pytest.mark.parametrize("text", ["Hello.", "Hello!", 'He said "Hi!"', "你好。", "No.", "Well..."])
def test_an_open_end_that_is_likely(text: str) -> None:
    cuts = scan(text, closed=False, mark_chars=120)
    assert (cuts.sentences, cuts.likely) == ((), len(text))
    assert scan(text, closed=True, mark_chars=120).sentences == (len(text),)


@pytest.mark.parametrize(
    ("text", "open_at", "closed_at"),
    [
        ("Hi [lau", 3, 3),
        ("Hi <|speak", 3, 3),
        ("Hi <brea", 3, 3),
        ("Hi <", 3, 4),
        ("Hi (laugh", 3, 3),
        ("Hi (see below", 3, 13),
        ("Hi [a [b", 6, 6),
        ("Hi [a\nb", 7, 7),
        ("x < 5", 5, 5),
        ("Hi [" + "a" * 200, 204, 204),
    ],
)
def test_unfinished_marks_are_held(text: str, open_at: int, closed_at: int) -> None:
    assert scan(text, closed=False, mark_chars=120).held == open_at
    assert scan(text, closed=True, mark_chars=120).held == closed_at


def test_clauses() -> None:
    text = "Well, at 3:45 we paid 1,000: it was - fine — good (or not) and、so"
    cuts = scan(text, closed=False, mark_chars=120)
    pieces = [text[:stop] for stop in cuts.clauses]
    assert pieces == [
        "Well,",
        "Well, at 3:45 we paid 1,000:",
        "Well, at 3:45 we paid 1,000: it was - fine —",
        "Well, at 3:45 we paid 1,000: it was - fine — good (or not)",
        "Well, at 3:45 we paid 1,000: it was - fine — good (or not) and、",
    ]


@pytest.mark.parametrize(
    ("text", "most", "piece"),
    [
        ("one two three", 11, "one two"),
        ("one two three", 7, "one two"),
        ("one two three", 13, "one two"),  # the last word may go on
        ("one two,", 8, "one two,"),
        ("weigh 5 kg now", 9, "weigh"),  # a number wants its unit
        ("call Dr. Smith", 10, "call"),
        ("one [two three] x", 11, "one"),
        ("你好世界", 3, "你好世"),
        ("one", 3, ""),
    ],
)
def test_word_cuts(text: str, most: int, piece: str) -> None:
    cuts = scan(text, closed=False, mark_chars=120)
    assert text[: last_word_cut(text, cuts, most)] == piece


@pytest.mark.parametrize(
    ("text", "most", "piece"),
    [
        ("abcdef", 4, "abcd"),
        ("abcde\u0301f", 5, "abcd"),  # e and its accent
        ("abcdef👩‍👩‍👧x", 8, "abcdef"),  # a family is one character
        ("abcd👍🏽x", 5, "abcd"),
        ("ab🇩🇪🇫🇷x", 5, "ab🇩🇪"),
        ("abcd3.14x", 6, "abcd"),
        ("abcd<|x|>y", 6, "abcd"),
        ("a" + "\u0301" * 50, 10, "a" + "\u0301" * 9),  # never the whole buffer
    ],
)
def test_character_cuts(text: str, most: int, piece: str) -> None:
    cuts = scan(text, closed=False, mark_chars=120)
    assert text[: last_character_cut(text, cuts, most)] == piece

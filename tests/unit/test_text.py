"""TextFeed: what is ready, in which order, and when."""

from __future__ import annotations

import pytest

from shoal.engine.api import Latency, Segmentation
from shoal.engine.text import FlushMark, Segment, TextFeed
from tests.feeds import drain, segments, show

# Order and boundaries ----------------------------------------------------------------------------


def test_first_sentence_does_not_wait_for_a_flush() -> None:
    feed = TextFeed()
    for delta in ["Hel", "lo", " there", ".", " How"]:
        assert feed.take(0.0, False) is None
        feed.push(delta, 0.0)
    assert feed.take(0.0, False) == Segment("Hello there.")
    assert feed.take(0.0, False) is None
    assert feed.pending == len("How")


def test_flush_mark_follows_its_text_and_is_a_hard_boundary() -> None:
    feed = TextFeed()
    feed.push("This is a test.", 0.0)
    feed.flush(7)
    feed.push("It works", 0.0)
    feed.flush(8)
    feed.push("fine", 0.0)
    feed.end()
    assert drain(feed) == ["This is a test.", 7, "It works", 8, "fine"]
    assert feed.ended


def test_flush_is_not_the_end_and_an_empty_one_is_only_its_mark() -> None:
    feed = TextFeed()
    feed.flush(1)
    feed.push("  \n ", 0.0)
    feed.flush(2)
    assert drain(feed) == [1, 2]
    assert not feed.ended
    feed.push("Still here", 0.0)
    feed.flush(3)
    assert drain(feed) == ["Still here", 3]
    feed.end()
    assert feed.ended
    assert feed.take(0.0, False) is None


def test_after_the_end_nothing_is_added() -> None:
    feed = TextFeed()
    feed.push("One", 0.0)
    feed.end()
    feed.end()
    feed.push(" two", 0.0)
    feed.flush(1)
    assert not feed.ended
    assert drain(feed) == ["One"]
    assert feed.ended


@pytest.mark.field_row(30)
def test_pieces_are_joined_verbatim() -> None:
    feed = TextFeed()
    for delta in ["It", "'s ", " ", "3", ".", "1", "4", " ", "o", "'clock"]:
        feed.push(delta, 0.0)
    feed.flush(0)
    assert drain(feed) == ["It's  3.14 o'clock", 0]


@pytest.mark.field_row(33)
def test_text_after_a_newline_is_not_lost() -> None:
    assert segments("one\ntwo\r\nthree\u2028four\n") == ["one", "two", "three", "four"]


def test_short_sentences_stay_together_while_audio_plays() -> None:
    text = "Yes. I do. Of course I do, my dear. It is late. Good night and sleep well. Bye."
    assert segments(text) == [
        "Yes.",
        "I do.",
        "Of course I do, my dear.",
        "It is late.",
        "Good night and sleep well.",
        "Bye.",
    ]
    assert segments(text, speaking=None) == [
        "Yes.",
        "I do. Of course I do, my dear. It is late. Good night and sleep well.",
        "Bye.",
    ]


def test_max_chars_cuts_at_a_clause_then_between_words_then_anywhere() -> None:
    rules = Segmentation(max_chars=40, min_chars=0)
    text = "a" * 9 + " bbbb, cccc " + "dd " * 8 + "eeee ffff, gg " + "h" * 60 + " 3.14159"
    assert segments(text, rules) == [
        "aaaaaaaaa bbbb,",
        "cccc dd dd dd dd dd dd dd dd eeee ffff,",
        "gg",
        "h" * 40,
        "h" * 20 + " 3.14159",
    ]


def test_the_models_bound_holds_too() -> None:
    feed = TextFeed(Segmentation(max_chars=300), max_chars=50)
    feed.push("word " * 100, 0.0)
    feed.end()
    items = drain(feed)
    assert all(isinstance(i, str) and len(i) <= 50 for i in items)
    assert " ".join(map(str, items)).split() == ["word"] * 100


@pytest.mark.parametrize(
    ("text", "said", "speakable"),
    [
        ("...", ["..."], [False]),
        ("😀", ["😀"], [False]),
        ("[laughs]", ["[laughs]"], [False]),
        ("<|im_end|>", ["<|im_end|>"], [False]),
        ("(laughs)", ["(laughs)"], [False]),
        ("Hello! 😀", ["Hello!", "😀"], [True, False]),
        ("😀 Hello!", ["😀 Hello!"], [True]),
        ("- - -\n# Title\n***\ntext", ["- - -\n# Title", "***\ntext"], [True, True]),
        (" \t\n\x00\x1f", [], []),
        ("Hi [lau", ["Hi"], [True]),
        ("Hi <|im_e", ["Hi"], [True]),
        ("[lau", [], []),
        ("Say (laug", ["Say"], [True]),
        ("Say (or not", ["Say (or not"], [True]),
    ],
)
def test_unspeakable_text_and_unfinished_marks(
    text: str, said: list[str], speakable: list[bool]
) -> None:
    feed = TextFeed()
    feed.push(text, 0.0)
    feed.flush(1)
    items = [feed.take(0.0, False) for _ in range(len(said) + 1)]
    assert [show(item) for item in items] == [*said, 1]
    assert [i.speakable for i in items if isinstance(i, Segment)] == speakable
    assert feed.pending == 0


@pytest.mark.field_row(31)
def test_a_mark_split_over_deltas_is_whole_and_the_speaker_is_remembered() -> None:
    feed = TextFeed()
    items: list[Segment | FlushMark | None] = []
    for delta in ["[", "laughs. A", " lot", "] Hi. <|speak", "er:3|", ">Yes. ", "So. ", "It is"]:
        feed.push(delta, 0.0)
        items.append(feed.take(0.0, False))
    assert [item for item in items if item is not None] == [
        Segment("[laughs. A lot] Hi.", True, None),
        Segment("<|speaker:3|>Yes.", True, 3),
        Segment("So.", True, 3),
    ]


def test_lone_surrogates_and_nul_do_no_harm() -> None:
    feed = TextFeed()
    feed.push("a\x00b \ud83d", 0.0)
    feed.push("\ude00 c\udc00d \ud83d", 0.0)
    feed.flush(1)
    feed.push("\ude00 e", 0.0)
    feed.end()
    items = drain(feed)
    assert items == ["ab 😀 c\ufffdd \ufffd", 1, "\ufffd e"]
    "".join(map(str, items)).encode()
    assert feed.pending == 0
    assert feed.ended


# Time --------------------------------------------------------------------------------------------


def held(text: str, latency: Latency = Latency.BALANCED) -> TextFeed:
    feed = TextFeed(Segmentation(latency))
    feed.push(text, 10.0)
    assert feed.take(10.0, False) is None
    return feed


def test_a_sentence_end_at_the_buffers_end_waits_a_grace() -> None:
    feed = held("Hello there.")
    deadline = feed.deadline()
    assert deadline == pytest.approx(10.08)
    assert feed.take(deadline - 0.001, False) is None
    assert feed.take(deadline, False) == Segment("Hello there.")
    assert feed.deadline() is None


def test_closing_marks_that_come_late_are_not_spoken_alone() -> None:
    feed = held("He said “Hello!")
    assert feed.take(11.0, False) == Segment("He said “Hello!")
    feed.push("!”", 11.1)
    feed.push(" And left.", 11.1)
    feed.flush(1)
    assert drain(feed, 11.1) == ["And left.", 1]


def test_a_digit_dot_outlasts_the_grace() -> None:
    feed = held("It is 98.")
    assert feed.take(10.3, False) is None
    feed.push("6 degrees. Yes", 10.3)
    assert feed.take(10.3, False) == Segment("It is 98.6 degrees.")


def test_slow_text_is_cut_at_a_clause_then_between_words() -> None:
    feed = held("I would say, if you ask me, that the quick brown fox jumps o")
    assert feed.deadline() == pytest.approx(10.12)
    assert feed.take(10.12, False) == Segment("I would say, if you ask me,")
    assert feed.take(10.12, False) is None
    feed.push("ver the laz", 10.5)
    feed.push("y dog and so on", 10.9)
    assert feed.take(10.9, False) == Segment(
        "that the quick brown fox jumps over the lazy dog and so"
    )


def test_low_latency_is_the_more_impatient() -> None:
    text = "I would say, that"
    assert held(text, Latency.LOW).deadline() == pytest.approx(10.04)
    assert held(text, Latency.NORMAL).deadline() == pytest.approx(10.8)


def test_text_that_stops_is_spoken_to_its_last_whole_word_then_altogether() -> None:
    feed = held("well then good by")
    assert feed.take(10.5, False) is None
    assert feed.take(10.6, False) == Segment("well then good")
    assert feed.deadline() == pytest.approx(11.4)
    assert feed.take(11.4, False) == Segment("by")
    feed.push("e!", 12.0)
    feed.end()
    assert drain(feed, 12.0) == ["e!"]


def test_while_audio_plays_timers_are_patient() -> None:
    feed = TextFeed(Segmentation(Latency.LOW))
    feed.push("Ok. So the thing is, my fri", 10.0)
    assert feed.take(10.6, True) is None
    assert feed.deadline() == pytest.approx(11.5)
    assert feed.take(11.5, True) == Segment("Ok.")
    assert feed.take(11.5, True) == Segment("So the thing is, my")
    assert feed.take(12.5, True) == Segment("fri")


def test_when_audio_runs_out_a_short_sentence_goes_at_once() -> None:
    feed = TextFeed()
    feed.push("Ok. So", 10.0)
    assert feed.take(10.0, True) is None
    assert feed.take(10.0, False) == Segment("Ok.")


@pytest.mark.parametrize("text", ["[laughs so", "Hi. <|spea", "...", "😀", " ", ""])
def test_no_timer_releases_what_is_not_to_be_spoken(text: str) -> None:
    feed = TextFeed()
    feed.push(text, 10.0)
    drain(feed, 10.0, False)
    assert feed.deadline() is None
    assert feed.take(1e9, False) is None


def test_a_deadline_is_kept() -> None:
    """Taking at the deadline always yields something: an idle thread may sleep until then."""
    for text in [
        "Hello.",
        "Hello",
        "Hello, you",
        "It is 98.",
        "Ask Dr.",
        "(so",
        "Hi [x",
        "你好",
        "a b",
    ]:
        for speaking in (False, True):
            feed = TextFeed()
            feed.push(text, 5.0)
            now, left = 5.0, 10
            while True:
                while feed.take(now, speaking) is not None:
                    pass
                deadline = feed.deadline()
                if deadline is None:
                    break
                assert deadline > now
                left -= 1
                assert left, text
                now = deadline
                assert feed.take(now, speaking) is not None

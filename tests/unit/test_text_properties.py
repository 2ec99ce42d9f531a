"""TextFeed under load: bounded, linear, and the same whatever the deltas; nothing is ever lost."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.engine.api import Latency, Segmentation
from shoal.engine.text import LIMIT_CHARS, LIMIT_MARKS, Segment, TextFeed, TextLimitError
from tests.feeds import Item, drain, segments, show

# Bounds ------------------------------------------------------------------------------------------


def test_the_buffer_is_bounded_and_survives_reaching_its_limit() -> None:
    feed = TextFeed(limit_chars=100)
    feed.push("x" * 60 + " ", 0.0)
    with pytest.raises(TextLimitError):
        feed.push("y" * 40, 0.0)
    assert feed.pending == 61
    feed.push("z" * 39, 0.0)
    feed.end()
    assert drain(feed) == ["x" * 60 + " " + "z" * 39]


def test_flush_marks_are_bounded() -> None:
    feed = TextFeed()
    for mark in range(LIMIT_MARKS):
        feed.flush(mark)
    with pytest.raises(TextLimitError):
        feed.flush(LIMIT_MARKS)
    assert drain(feed) == list(range(LIMIT_MARKS))
    feed.flush(5)
    assert drain(feed) == [5]


def seconds_for(count: int, unit: str, delta: int) -> float:
    text = (unit * count)[:count]
    feed = TextFeed()
    begin_s = time.thread_time()  # other work on the machine does not count
    taken = 0
    for start in range(0, count, delta):
        feed.push(text[start : start + delta], 0.0)
        while (item := feed.take(0.0, True)) is not None:
            assert isinstance(item, Segment)
            taken += len(item.text)
    feed.end()
    taken += sum(len(str(item)) for item in drain(feed, speaking=True))
    assert feed.ended
    assert count * 0.4 <= taken <= count
    return time.thread_time() - begin_s


@pytest.mark.parametrize("unit", ["x", "[", "e\u0301", "1.", "a, ", "(a ", "Hi. ", "\"'", "<a"])
def test_time_is_linear_in_the_text(unit: str) -> None:
    small = min(seconds_for(1 << 14, unit, 1 << 14) for _ in range(3))
    assert seconds_for(1 << 17, unit, 1 << 17) < 8 * 4 * small + 0.05


def test_a_mebibyte_without_a_space_is_taken_whole_or_in_deltas() -> None:
    assert seconds_for(LIMIT_CHARS, "x", LIMIT_CHARS) < 20.0
    assert seconds_for(1 << 16, "x", 1) < 20.0


# Properties --------------------------------------------------------------------------------------

WORDS = ["Hello", "world", " ", " ", " ", ". ", ".", "! ", "?", ", ", "3.14", "22,1", "Dr.", "U.S."]
ODD = [
    "é",
    "e\u0301",
    "👩‍👧",
    "🇩🇪",
    "你好",
    "。",
    "\n",
    "…",
    "\x00",
    "\ud83d",
    "\ude00",
    "'",
    '"',
    "The",
    "e.g.",
]
MARKS = [
    "[",
    "]",
    "(",
    ")",
    "<",
    ">",
    "<|",
    "|>",
    "[warm]",
    "<|speaker:1|>",
    "(laughs)",
    "https://a.b/c?d",
]
plain_text = st.lists(st.sampled_from(WORDS + ODD), max_size=60).map("".join)
any_text = st.one_of(
    st.lists(st.sampled_from(WORDS + ODD + MARKS), max_size=60).map("".join),
    st.text(st.characters(), max_size=200),
)
rule_sets = st.builds(
    Segmentation,
    latency=st.sampled_from(Latency),
    max_chars=st.sampled_from([20, 40, 100, 300]),
    min_chars=st.sampled_from([0, 10, 50]),
)


def squeeze(text: str) -> str:
    """The text as the feed may hand it on, white space aside."""
    text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return re.sub(r"[\s\x00-\x1f\x7f-\x9f\ufeff]", "", text)


def cut_up(text: str, sizes: Sequence[int]) -> list[str]:
    deltas: list[str] = []
    at = 0
    for size in sizes:
        deltas.append(text[at : at + size])
        at += size
    return [*deltas, text[at:]]


@given(any_text, rule_sets, st.sampled_from([None, True, False]))
def test_nothing_is_lost_repeated_or_reordered(
    text: str, rules: Segmentation, speaking: bool | None
) -> None:
    said = "".join(squeeze(str(s)) for s in segments(text, rules, speaking))
    whole = squeeze(text)
    assert whole.startswith(said)
    assert whole == said or whole[len(said)] in "[<("


@given(any_text, rule_sets, st.lists(st.integers(0, 9), max_size=80))
def test_segments_do_not_depend_on_the_deltas(
    text: str, rules: Segmentation, sizes: list[int]
) -> None:
    feed = TextFeed(rules)
    items: list[Item] = []
    for delta in cut_up(text, sizes):
        feed.push(delta, 0.0)
        while (item := show(feed.take(0.0, bool(items)))) is not None:
            items.append(item)
    feed.end()
    while (item := show(feed.take(0.0, bool(items)))) is not None:
        items.append(item)
    assert items == segments(text, rules, None)
    assert feed.ended


@given(st.lists(any_text, max_size=5), rule_sets)
def test_a_flush_is_as_good_as_a_new_feed(texts: list[str], rules: Segmentation) -> None:
    feed = TextFeed(rules)
    expected: list[Item] = []
    for mark, text in enumerate(texts):
        feed.push(text, 0.0)
        feed.flush(mark)
        lone = TextFeed(rules)
        lone.push(text, 0.0)
        lone.end()
        expected += [*drain(lone, speaking=False), mark]
    assert drain(feed, speaking=False) == expected


@given(any_text, rule_sets, st.sampled_from([None, True, False]))
def test_segments_are_bounded_and_not_blank(
    text: str, rules: Segmentation, speaking: bool | None
) -> None:
    for segment in segments(text, rules, speaking):
        assert isinstance(segment, str)
        assert 0 < len(segment) <= rules.max_chars
        assert segment == segment.strip()


@given(
    plain_text,
    rule_sets,
    st.lists(st.tuples(st.integers(1, 20), st.floats(0.0, 2.0), st.booleans()), max_size=40),
)
def test_no_word_is_lost_however_time_passes(
    text: str, rules: Segmentation, steps: list[tuple[int, float, bool]]
) -> None:
    feed = TextFeed(rules)
    said = ""
    now = 0.0
    at = 0
    for size, pause_s, speaking in [*steps, (len(text), 0.0, True)]:
        feed.push(text[at : at + size], now)
        at += size
        now += pause_s
        while (item := show(feed.take(now, speaking))) is not None:
            said += str(item)
        deadline = feed.deadline()
        assert deadline is None or deadline > now
    feed.end()
    said += "".join(map(str, drain(feed, now)))
    assert feed.ended
    letters = [c for c in said if c.isalnum()]
    assert letters == [c for c in squeeze(text) if c.isalnum()]


@pytest.mark.field_row(29)
@given(
    st.lists(
        st.sampled_from(["3.14", "22,1", "Dr. Smith", "e.g. so", "U.S. Army", "a@b.co"]),
        max_size=30,
    )
)
def test_numbers_and_abbreviations_stay_whole(parts: list[str]) -> None:
    text = " and ".join(parts)
    pieces = segments(text, Segmentation(max_chars=60, min_chars=0))
    found = re.findall(
        r"3\.14|22,1|Dr\. Smith|e\.g\. so|U\.S\. Army|a@b\.co", "\n".join(map(str, pieces))
    )
    assert found == parts

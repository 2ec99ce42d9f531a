"""Every character of a segment is told from where it stands in what was pushed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.engine.api import Latency, Segmentation, Span
from shoal.engine.spans import MAX_GAPS, Trail
from shoal.engine.text import FlushMark, Segment, TextFeed

CODE = "Hello there. How are you?\n\nFine, thanks.\n```py\nx = 1\n```\nBye now."


def test_a_place_counts_what_was_left_out_before_it_and_not_behind() -> None:
    span = Span(10, ((2, 5), (3, 1)))
    assert [span.place(end) for end in range(5)] == [10, 11, 12, 18, 20]


def test_what_is_left_out_in_front_of_the_next_character_is_in_no_gap() -> None:
    trail = Trail()
    trail.leave_out(2)
    trail.keep("ab")
    trail.leave_out(3)
    trail.leave_out(1)
    trail.keep("cd")
    assert trail.span(2) == Span(2) and trail.span(3) == Span(2, ((2, 4),))
    trail.take(2)
    assert trail.span(2) == Span(8)
    trail.take(2)
    trail.leave_out(1)
    assert trail.span(0) == Span(11)


def test_so_many_gaps_are_told_apart_and_none_is_forgotten() -> None:
    trail = Trail()
    for _ in range(MAX_GAPS + 50):
        trail.keep("a")
        trail.leave_out(1)
    span = trail.span(MAX_GAPS + 50)
    assert len(span.gaps) == MAX_GAPS
    trail.take(MAX_GAPS + 50)
    assert trail.span(1) == Span(2 * (MAX_GAPS + 50))


# Of a feed ---------------------------------------------------------------------------------------


def taken(feed: TextFeed, now: float, speaking: bool) -> list[Segment]:
    found: list[Segment] = []
    while (item := feed.take(now, speaking)) is not None:
        if isinstance(item, Segment):
            found.append(item)
    return found


def places(segment: Segment) -> list[int]:
    """Where each of its characters stands."""
    return [segment.span.place(end) - 1 for end in range(1, len(segment.text) + 1)]


def test_white_space_and_code_between_sentences_are_counted() -> None:
    feed = TextFeed()
    feed.push(CODE, 0.0)
    feed.end()
    segments = taken(feed, 0.0, False)
    assert [s.text for s in segments] == [
        "Hello there.",
        "How are you?",
        "Fine, thanks.",
        "Bye now.",
    ]
    assert [CODE[s.span.begin : s.span.place(len(s.text))] for s in segments] == [
        s.text for s in segments
    ]


@pytest.mark.parametrize(
    ("pushes", "gaps"),
    [
        (["Say\x00 it\x07\x07 now."], ((3, 1), (6, 2))),
        (["One,\n```\ncode\n``", "`\n", "two."], ((5, 13),)),
        (["A \ud83d", "\ude00 smile."], ()),
        (["A \ud83d smile."], ()),
        (["\ufeffOne."], ()),
        (["```\x1f\x1f", "py\x07`", "` One."], ((3, 2), (5, 1))),
    ],
)
def test_what_is_left_out_inside_a_segment_is_a_gap(
    pushes: list[str], gaps: tuple[tuple[int, int], ...]
) -> None:
    feed = TextFeed(Segmentation(min_chars=50))
    for text in pushes:
        feed.push(text, 0.0)
    feed.end()
    [segment] = taken(feed, 0.0, True)
    assert segment.span.gaps == gaps
    whole = "".join(pushes).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    assert segment.span.place(len(segment.text)) == len(whole)


PARTS = st.sampled_from(
    [
        *("Hello", "a", "3.14", "Dr. ", "U.S.", " ", " ", "  ", "\n", "\n", "\r\n", "\u2028"),
        *(". ", ".", "! ", "?", ", ", "…", "。", "'", '"', ")", "**", "é", "e\u0301", "👩‍👧"),
        *("\x00", "\x1b", "\ufeff", "\ud83d", "\ude00", "`", "``", "```", "```py", "~~~", "~"),
        *("\n```\n", "\n~~~\n", "[", "]", "(", "<", ">", "[warm]", "<|speaker:1|>", "(laughs)"),
    ]
)
PUSHES = st.lists(
    st.one_of(st.lists(PARTS, max_size=8).map("".join), st.text(st.characters(), max_size=9)),
    max_size=25,
)
FLUSHED = st.lists(st.booleans(), min_size=25, max_size=25)
RULES = st.builds(
    Segmentation,
    latency=st.sampled_from(Latency),
    max_chars=st.sampled_from([20, 60, 300]),
    min_chars=st.sampled_from([0, 50]),
)
LINE_ENDS = str.maketrans("\r\x0b\x0c\x85\u2028\u2029", "\n\n\n\n\n\n")


def whole(text: str) -> str:
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def sent(pushes: list[str], flushed: list[bool]) -> str:
    """What was pushed, in whole characters: no pair of halves is one across a flush."""
    stretches = [""]
    for text, flush in zip(pushes, flushed, strict=False):
        stretches[-1] += text
        if flush:
            stretches.append("")
    return "".join(map(whole, stretches))


@given(PUSHES, FLUSHED, RULES, st.lists(st.tuples(st.floats(0.0, 2.0), st.booleans()), min_size=25))
def test_segments_and_what_is_left_out_are_what_was_sent_in_order(
    pushes: list[str], flushed: list[bool], rules: Segmentation, steps: list[tuple[float, bool]]
) -> None:
    feed = TextFeed(rules)
    now = 0.0
    segments: list[Segment] = []
    for mark, (text, flush, (pause_s, speaking)) in enumerate(
        zip(pushes, flushed, steps, strict=False)
    ):
        feed.push(text, now)
        if flush:
            feed.flush(mark)
        now += pause_s
        segments += taken(feed, now, speaking)
    feed.end()
    segments += taken(feed, now, False)
    everything = sent(pushes, flushed)
    said = [place for segment in segments for place in places(segment)]
    assert said == sorted(set(said)), "in order, each once"
    assert [everything[place].translate(LINE_ENDS) for place in said] == [
        character for segment in segments for character in segment.text
    ]
    if not any(mark in everything for mark in "`~[(<"):
        left = set(range(len(everything))) - set(said)
        assert not any(everything[place].isalnum() for place in left)
    assert all(segment.span.begin == places(segment)[0] for segment in segments)


@given(PUSHES, RULES)
def test_spans_do_not_depend_on_the_deltas(pushes: list[str], rules: Segmentation) -> None:
    found: list[list[Segment]] = []
    for deltas in (pushes, ["".join(pushes)], list("".join(pushes))):
        feed = TextFeed(rules)
        for text in deltas:
            feed.push(text, 0.0)
        feed.end()
        found.append(taken(feed, 0.0, True))
    first, *others = ([(s.text, s.span) for s in segments] for segments in found)
    assert all(other == first for other in others)


def test_marks_of_a_flush_have_no_place() -> None:
    feed = TextFeed()
    feed.push("One", 0.0)
    feed.flush(1)
    feed.push(" Two", 0.0)
    feed.end()
    one, mark, two = (feed.take(0.0, False) for _ in range(3))
    assert isinstance(one, Segment) and one.span == Span(0)
    assert mark == FlushMark(1)
    assert isinstance(two, Segment) and two.span == Span(4)

"""When words are spoken: always rising, always inside the audio, and near where they sound."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.engine.api import Span
from shoal.proto.messages import Aligned
from shoal.realtime.alignment import MAX_SEGMENTS, Alignment

RATE = 24_000


def sound(seconds: float) -> bytes:
    return (8000 * np.sin(np.arange(round(seconds * RATE)) / 10)).astype("<i2").tobytes()


def silence(seconds: float) -> bytes:
    return bytes(2 * round(seconds * RATE))


def spoken(text: str, *pieces: bytes, speed: float = 1.0) -> list[Aligned]:
    """The snapshots of one segment, whose audio comes in ``pieces``."""
    alignment = Alignment(RATE, speed, detailed=True)
    assert alignment.segment(0, text, Span()) == []
    snapshots = [snapshot for piece in pieces for snapshot in alignment.audio(piece)]
    return [*snapshots, *alignment.end_segment()]


def starts(aligned: Aligned) -> list[float]:
    return [word.start_s for word in aligned.words]


# Where words are --------------------------------------------------------------------------------


def test_words_share_the_sound_by_their_length() -> None:
    *_, last = spoken("aaaa aaaaaaaaa", sound(1.5))
    first, second = last.words
    assert (first.start_s, first.end_s) == (0.0, pytest.approx(0.5))
    assert (second.start_s, second.end_s) == (pytest.approx(0.5), pytest.approx(1.5))
    assert last.final and last.audio_s == 1.5


def test_silence_around_the_speech_belongs_to_no_word() -> None:
    *_, last = spoken("One two.", silence(0.3), sound(1.0), silence(0.7))
    assert last.words[0].start_s == pytest.approx(0.3, abs=0.02)
    assert last.words[-1].end_s == pytest.approx(1.3, abs=0.02)
    assert last.audio_s == pytest.approx(2.0)


def test_a_pause_that_is_heard_is_laid_on_the_punctuation() -> None:
    """What follows is spoken slower: only the pause tells where it begins."""
    *_, last = spoken("One two three, four.", sound(0.8), silence(0.3), sound(1.0))
    assert last.words[2].end_s == pytest.approx(0.8, abs=0.03)
    assert last.words[3].start_s == pytest.approx(1.1, abs=0.03)


def test_each_pause_finds_its_own_comma_and_a_comma_without_one_does_no_harm() -> None:
    pieces = [sound(0.5), silence(0.2), sound(1.2), silence(0.25), sound(0.6)]
    *_, last = spoken("One one, two two, two two, three three.", *pieces)
    begins = dict(zip([word.text for word in last.words], starts(last), strict=True))
    assert starts(last)[2] == pytest.approx(0.7, abs=0.03)
    assert begins["three"] > 2.0 and starts(last)[-2] == pytest.approx(2.15, abs=0.03)


def test_a_pause_where_the_text_has_none_is_ignored() -> None:
    *_, last = spoken("One two", sound(0.5), silence(0.4), sound(0.5))
    assert starts(last)[1] == pytest.approx(0.7, abs=0.02)


def test_a_segment_without_sound_has_no_words() -> None:
    [last] = spoken("One two.")
    assert last == Aligned(0, "One two.", 0.0, 0.0, (), True, 8)


def test_a_faster_voice_has_its_words_sooner() -> None:
    slow, fast = (spoken("One two.", sound(2.0), speed=speed)[-1] for speed in (1.0, 2.0))
    assert fast.audio_s == slow.audio_s / 2
    assert starts(fast) == [start_s / 2 for start_s in starts(slow)]


# Snapshots --------------------------------------------------------------------------------------


def test_a_snapshot_comes_with_each_new_word_and_holds_only_what_is_in_the_audio() -> None:
    snapshots = spoken("One two three four.", *[sound(0.1)] * 20)
    counts = [len(snapshot.words) for snapshot in snapshots]
    assert counts == sorted(counts) and counts[:2] == [1, 2] and counts[-1] == 4
    assert [snapshot.final for snapshot in snapshots] == [False] * (len(counts) - 1) + [True]
    assert all(s.words[-1].end_s <= s.audio_s + 1e-9 for s in snapshots)


def test_the_pace_of_one_segment_is_that_of_the_next() -> None:
    slow, fast = Alignment(RATE, detailed=True), Alignment(RATE, detailed=True)
    for alignment, seconds in ((slow, 3.0), (fast, 1.2)):
        alignment.segment(0, "One two three four five.", Span())
        alignment.audio(sound(seconds))
        alignment.segment(1, "Six seven eight.", Span(24))
    assert slow.unit_s > fast.unit_s
    [early], [late] = fast.audio(sound(0.5)), slow.audio(sound(0.5))
    assert len(early.words) >= len(late.words) and early.words[0].end_s < late.words[0].end_s
    assert Alignment(RATE, unit_s=slow.unit_s).unit_s == slow.unit_s


def test_a_segment_begins_where_the_audio_was() -> None:
    alignment = Alignment(RATE, detailed=True)
    alignment.segment(0, "One.", Span())
    alignment.audio(sound(1.0))
    [first] = alignment.segment(1, "Two.", Span(5))
    alignment.silence(RATE // 2)
    [second] = alignment.end_segment()
    assert (first.segment, first.offset_s, second.segment, second.offset_s) == (0, 0.0, 1, 1.0)
    assert alignment.end_segment() == []
    alignment.segment(2, "Three.", Span(10))
    [third] = alignment.audio(sound(1.0))
    assert third.offset_s == 1.5


def test_silence_that_an_encoder_inserts_moves_only_what_is_behind_it() -> None:
    alignment = Alignment(RATE, detailed=True)
    alignment.segment(0, "One.", Span())
    alignment.audio(sound(1.0))
    alignment.segment(1, "Two.", Span(5))
    alignment.inserted(RATE, 0.08)
    [second] = alignment.audio(sound(1.0))
    assert second.offset_s == pytest.approx(1.08)
    alignment.inserted(3 * RATE, 0.16)
    [second] = alignment.end_segment()
    assert second.offset_s == pytest.approx(1.08)


def test_who_did_not_ask_costs_nothing() -> None:
    alignment = Alignment(RATE)
    assert alignment.segment(0, "One.", Span()) == []
    assert alignment.audio(sound(1.0)) == []
    assert alignment.end_segment() == []


_TEXT = st.text(st.sampled_from("ab 1,.?-\n\u4e16\u3042\u0e01[]<>'\u0301"), max_size=40)
_PIECES = st.lists(st.tuples(st.sampled_from([sound, silence]), st.floats(0.0, 0.6)), max_size=8)


@given(st.lists(st.tuples(_TEXT, _PIECES), max_size=4), st.sampled_from([0.5, 1.0, 1.7]))
def test_times_rise_and_stay_inside_the_audio(
    segments: list[tuple[str, list[tuple[Callable[[float], bytes], float]]]], speed: float
) -> None:
    alignment = Alignment(RATE, speed, detailed=True)
    snapshots: list[Aligned] = []
    for index, (text, pieces) in enumerate(segments):
        snapshots += alignment.segment(index, text, Span())
        for make, seconds in pieces:
            snapshots += alignment.audio(make(seconds))
    snapshots += alignment.end_segment()
    total_s = sum(round(s * RATE) for _, pieces in segments for _, s in pieces) / RATE / speed
    for snapshot in snapshots:
        at_s, at = 0.0, 0
        for word in snapshot.words:
            assert at_s - 1e-9 <= word.start_s <= word.end_s <= snapshot.audio_s + 1e-9
            assert at <= word.begin < word.end <= len(snapshot.text)
            assert word.text == snapshot.text[word.begin : word.end]
            at_s, at = word.end_s, word.end
    finals = [snapshot for snapshot in snapshots if snapshot.final]
    assert [snapshot.segment for snapshot in finals] == list(range(len(segments)))
    ends = [snapshot.offset_s + snapshot.audio_s for snapshot in finals]
    assert all(a <= b + 1e-9 for a, b in pairwise(ends))
    assert not ends or ends[-1] == pytest.approx(total_s)


# What was heard ---------------------------------------------------------------------------------

SENT = " One two.\n\n```\nx\n```\nSix\x00 ten. "


def two_seconds(detailed: bool = False) -> Alignment:
    alignment = Alignment(RATE, detailed=detailed)
    for text, span in (("One two.", Span(1)), ("Six ten.", Span(21, ((3, 1),)))):
        alignment.segment(0, text, span)
        alignment.audio(sound(1.0))
    alignment.end_segment()
    return alignment


@pytest.mark.parametrize("detailed", [False, True])
@pytest.mark.parametrize(
    ("played_s", "text"),
    [
        (0.0, ""),
        (0.1, ""),
        (0.3, " One"),
        (0.9, " One two"),
        (1.0, " One two."),
        (1.1, " One two."),
        (1.4, " One two.\n\n```\nx\n```\nSix"),
        (2.0, " One two.\n\n```\nx\n```\nSix\x00 ten."),
        (9.0, " One two.\n\n```\nx\n```\nSix\x00 ten."),
    ],
)
def test_a_word_was_heard_when_half_of_it_was_played(
    detailed: bool, played_s: float, text: str
) -> None:
    assert SENT[: two_seconds(detailed).heard(played_s)] == text


def test_what_nobody_speaks_was_heard_with_what_is_before_it_once_that_is_known() -> None:
    alignment = two_seconds()
    alignment.end_segment(len(SENT))
    assert alignment.heard(2.0) == len(SENT)
    assert alignment.heard(1.0) == len(" One two.")
    alignment.end_segment(3)
    assert alignment.heard(2.0) == len(SENT), "never less"


def test_what_was_heard_long_ago_is_counted_but_not_kept() -> None:
    alignment = Alignment(RATE)
    for index in range(MAX_SEGMENTS + 10):
        alignment.segment(index, "a.", Span(3 * index))
        alignment.audio(sound(0.01))
    alignment.end_segment()
    assert alignment.heard(1e9) == 3 * (MAX_SEGMENTS + 10) - 1
    assert alignment.heard(0.0) == 3 * 10 - 1

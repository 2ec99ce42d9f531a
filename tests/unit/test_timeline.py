"""What clients are told of an alignment: it never changes, rises, and stays inside the audio."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shoal.proto.messages import Aligned, Word
from shoal.realtime.dialects.timeline import Piece, Timed, Timeline, milliseconds

TEXT = 'So "yes," she said.'
WORDS = (
    Word("So", 0.1, 0.3, 0, 2),
    Word("yes", 0.4, 0.7, 4, 7),
    Word("she", 1.0, 1.2, 10, 13),
    Word("said", 1.3, 1.6, 14, 18),
)


def snapshot(
    words: int, audio_s: float, *, final: bool = False, segment: int = 0, offset_s: float = 0.0
) -> Aligned:
    return Aligned(segment, TEXT, offset_s, audio_s, WORDS[:words], final)


def texts(piece: Piece | None) -> list[str]:
    assert piece is not None
    return [word.text for word in piece.words]


def spelled(*pieces: Piece | None) -> str:
    return "".join(c.text for piece in pieces if piece for c in piece.characters)


def test_a_final_segment_is_told_at_once_with_its_punctuation() -> None:
    piece = Timeline().take(snapshot(4, 1.8, final=True), 0.0)
    assert texts(piece) == ["So", '"yes,"', "she", "said."]
    assert piece is not None
    assert [word.start_s for word in piece.words] == [0.1, 0.4, 1.0, 1.3]
    assert spelled(piece) == TEXT + " "
    assert piece.characters[-1].end_s == 1.8


def test_words_of_a_segment_that_may_change_are_told_when_they_are_due() -> None:
    timeline = Timeline()
    first = timeline.take(snapshot(3, 1.25), 0.0)
    assert texts(first) == ["So"]
    assert timeline.take(snapshot(3, 1.25), 0.0) is None, "nothing new"
    assert texts(timeline.take(snapshot(3, 1.25), 0.9)) == ['"yes,"', "she"]
    assert texts(timeline.take(snapshot(4, 1.8, final=True), 0.9)) == ["said."]


def test_words_told_too_late_leave_the_others_what_is_left() -> None:
    timeline = Timeline()
    slow = Aligned(0, "a b c", 0.0, 2.0, (Word("a", 0.0, 1.0, 0, 1),), False)
    timeline.take(slow, 0.0)
    words = tuple(Word(x, 0.5 * i, 0.5 * i + 0.4, 2 * i, 2 * i + 1) for i, x in enumerate("abc"))
    piece = timeline.take(Aligned(0, "a b c", 0.0, 1.5, words, True), 0.0)
    assert piece is not None
    b, c = piece.words
    assert 1.0 <= b.start_s < b.end_s <= c.start_s < c.end_s <= 1.5


def test_segments_follow_one_another_with_one_space() -> None:
    timeline = Timeline()
    first = Aligned(0, "One.", 0.0, 0.5, (Word("One", 0.0, 0.4, 0, 3),), True)
    second = Aligned(1, " Two.", 0.5, 0.5, (Word("Two", 0.1, 0.4, 1, 4),), True)
    pieces = timeline.take(first, 0.0), timeline.take(second, 0.0)
    assert spelled(*pieces) == "One. Two. "
    assert pieces[1] is not None and pieces[1].words[0].start_s == 0.6


def test_a_segment_without_words_is_spelled_over_its_audio() -> None:
    piece = Timeline().take(Aligned(0, "...", 1.0, 0.4, (), True), 0.0)
    assert piece is not None and piece.words == ()
    assert spelled(piece) == "... "
    assert (piece.characters[0].start_s, piece.characters[-1].end_s) == (1.0, 1.4)


def test_scripts_without_spaces_are_told_by_character() -> None:
    words = tuple(Word(c, 0.2 * i, 0.2 * i + 0.2, i, i + 1) for i, c in enumerate("你好"))
    piece = Timeline().take(Aligned(0, "你好。", 0.0, 0.5, words, True), 0.0)
    assert texts(piece) == ["你", "好。"]


def test_milliseconds_of_a_piece_add_up() -> None:
    characters = [Timed("a", 1.0004, 1.2), Timed("b", 1.2, 1.3337)]
    assert milliseconds(characters, 1.0004) == ([0, 200], [200, 134])


@st.composite
def turns(draw: st.DrawFn) -> list[tuple[Aligned, float]]:
    """Snapshots of a few segments whose times jump about as estimates may."""
    steps: list[tuple[Aligned, float]] = []
    offset_s = 0.0
    for segment in range(draw(st.integers(1, 3))):
        count = draw(st.integers(1, 5))
        text = " ".join("w" * draw(st.integers(1, 4)) for _ in range(count))
        final_s = 0.1
        for final in (False, False, True):
            final_s = draw(st.floats(0.05, 2.0)) if final else final_s + draw(st.floats(0.0, 1.0))
            times = sorted(
                draw(st.lists(st.floats(0.0, final_s), min_size=2 * count, max_size=2 * count))
            )
            words: list[Word] = []
            at = 0
            for index, word in enumerate(text.split(" ")):
                words.append(Word(word, *times[2 * index : 2 * index + 2], at, at + len(word)))
                at += len(word) + 1
            shown = count if final else draw(st.integers(0, count))
            aligned = Aligned(segment, text, offset_s, final_s, tuple(words[:shown]), final)
            steps.append((aligned, draw(st.floats(0.0, 3.0))))
        offset_s += final_s
    return steps


@given(turns())
def test_whatever_the_snapshots_say_times_rise_and_the_text_is_whole(
    steps: list[tuple[Aligned, float]],
) -> None:
    timeline = Timeline()
    pieces = [piece for step in steps if (piece := timeline.take(*step))]
    characters = [c for piece in pieces for c in piece.characters]
    at_s = 0.0
    for character in characters:
        assert at_s - 1e-9 <= character.start_s <= character.end_s + 1e-9
        at_s = character.end_s
    words = [word for piece in pieces for word in piece.words]
    starts = [word.start_s for word in words]
    assert starts == sorted(starts)
    whole = " ".join(aligned.text for aligned, _ in steps if aligned.final)
    assert "".join(c.text for c in characters) == whole + " "
    assert [word.text for word in words] == whole.split()

"""Where an utterance's columns go, whether they fit, and when it is cut off."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.engine.api import Open, Sampling, Segmentation, StreamId
from shoal.engine.config import Limits
from shoal.engine.defaults import VoiceDefaults
from shoal.engine.jobs import Utterance
from shoal.engine.layout import Layout
from shoal.engine.memory import Memory
from shoal.engine.prefixes import Prefix
from shoal.engine.runner import Int32Array, SlotSampling
from shoal.engine.streams import Context, Spoken, Stream
from shoal.engine.text import TextFeed
from tests.fakes import spec

PAGE = 8
LIMITS = Limits(
    frames_base=20,
    frames_per_byte=2.0,
    expected_frames_per_byte=0.5,
    prefill_chunk_tokens=16,
)
CLOSING = np.full((2, 4), 9, np.int32)


def columns(count: int, first: int = 100) -> Int32Array:
    return np.arange(first, first + count, dtype=np.int32)[:, None].repeat(4, axis=1)


def layout_of(*, pages: int = 64, max_context: int = 1 << 20, own: int = 10) -> Layout:
    """``own`` positions of the default voice; 256 positions are the runner's."""
    memory = Memory(pages, PAGE, pages)
    defaults = VoiceDefaults(Sampling(), None, max_context, columns(own), CLOSING)
    return Layout(spec(pages=pages, page_tokens=PAGE), LIMITS, memory, defaults)


def stream_of(
    *, length: int | None = None, closed: bool = False, most_frames: int | None = None
) -> Stream:
    """``length``: of its context, whose pages are numbered from 50 on."""
    stream = Stream(
        Open(StreamId(1), sampling=Sampling(max_frames_per_segment=most_frames)),
        0.0,
        0,
        SlotSampling(0.0, 1.0, 0, 0),
        TextFeed(Segmentation(), None),
    )
    stream.closed = closed
    if length is not None:
        stream.context = Context([*range(50, 50 + -(-length // PAGE))], length)
    return stream


def prefix_of(length: int) -> Prefix:
    return Prefix(b"voice", length, tuple(range(-(-length // PAGE))))


def saying(count: int, text_bytes: int = 10) -> Utterance:
    return Utterance(columns(count), text_bytes)


def test_the_first_turn_of_a_context_has_nothing_to_close() -> None:
    laid = layout_of().behind_context(stream_of(length=12, closed=True), saying(5))
    assert laid.columns.tolist() == columns(5).tolist()
    assert (laid.at, laid.end) == (12, 17)


def test_a_later_turn_closes_the_one_before() -> None:
    laid = layout_of().behind_context(stream_of(length=12), saying(5))
    assert laid.columns.tolist() == [*CLOSING.tolist(), *columns(5).tolist()]
    assert (laid.at, laid.end) == (12, 19)


def test_a_context_that_starts_anew_tells_the_last_utterance_again() -> None:
    stream = stream_of()
    frames = [columns(1, 500)[0], columns(1, 501)[0]]
    stream.spoken = Spoken(columns(3, 300), frames)
    laid = layout_of().behind_prefix(stream, saying(5), prefix_of(12))
    told = [*columns(3, 300), *frames, *CLOSING, *columns(5)]
    assert laid.columns.tolist() == [column.tolist() for column in told]
    assert (laid.at, laid.end) == (12, 24)


@pytest.mark.parametrize(("max_context", "told"), [(12 + 12 + 15, 7), (12 + 12 + 14, 0)])
def test_it_is_told_again_only_with_room_for_what_follows(max_context: int, told: int) -> None:
    # 15 positions are expected of ten bytes: half of 20 frames, and half a frame a byte.
    stream = stream_of()
    stream.spoken = Spoken(columns(3), [columns(1)[0], columns(1)[0]])
    laid = layout_of(max_context=max_context).behind_prefix(stream, saying(5), prefix_of(12))
    assert len(laid.columns) == told + 5


def test_what_never_sounded_is_not_told_again() -> None:
    stream = stream_of()
    layout = layout_of()
    assert layout.behind_prefix(stream, saying(5), prefix_of(12)).end == 17
    stream.spoken = Spoken(columns(3))
    assert layout.behind_prefix(stream, saying(5), prefix_of(12)).end == 17


@pytest.mark.parametrize(("length", "room"), [(100, True), (101, False)])
def test_a_context_continues_while_it_has_room_for_what_is_expected(
    length: int, room: bool
) -> None:
    layout = layout_of(max_context=100 + 2 + 5 + 15)
    assert layout.continues(stream_of(length=length), saying(5)) is room


def test_without_a_context_there_is_none_to_continue() -> None:
    assert not layout_of().continues(stream_of(), saying(5))


@pytest.mark.parametrize(("length", "room"), [(241, True), (242, False)])
def test_an_utterance_fits_with_half_the_frames_that_any_may_have(length: int, room: bool) -> None:
    assert layout_of().fits(prefix_of(length), saying(5)) is room


@pytest.mark.parametrize(("own", "most"), [(10, 104), (17, 96), (24, 96), (25, 88)])
def test_the_default_voice_and_one_page_to_copy_from_are_no_room(own: int, most: int) -> None:
    layout = layout_of(pages=16, own=own)
    assert layout.fits(prefix_of(most - 15), saying(5))
    assert not layout.fits(prefix_of(most - 14), saying(5))
    assert layout.continues(stream_of(length=most - 22), saying(5))
    assert not layout.continues(stream_of(length=most - 21), saying(5))


@pytest.mark.parametrize(
    ("length", "asked", "frames"),
    [(0, None, 40), (0, 7, 7), (0, 500, 40), (230, None, 21), (251, None, 1)],
    ids=["by its bytes", "as asked", "no more than by its bytes", "by the room", "one in any case"],
)
def test_an_utterance_is_cut_off(length: int, asked: int | None, frames: int) -> None:
    stream = stream_of(length=length, closed=True, most_frames=asked)
    laid = layout_of().behind_context(stream, saying(5))
    assert (laid.frames, laid.most) == (frames, length + 5 + frames)


def test_all_columns_but_the_last_are_prefilled_in_chunks() -> None:
    stream = stream_of(length=40)
    layout = layout_of()
    laid = layout.behind_context(stream_of(length=12, closed=True), saying(20))
    assert stream.context is not None
    first, second = layout.chunks(laid, stream.context, None)
    assert first.columns.tolist() == columns(16).tolist()
    assert second.columns.tolist() == columns(3, 116).tolist()
    assert (first.position, second.position) == (12, 28)
    assert (first.table, second.table) == ((50, 51, 52, 53), (50, 51, 52, 53))
    assert first.copy_page is None and second.copy_page is None


def test_the_first_chunk_copies_the_shared_page_to_where_the_columns_begin() -> None:
    stream = stream_of(length=40)
    layout = layout_of()
    laid = layout.behind_prefix(stream, saying(20), prefix_of(12))
    assert stream.context is not None
    first, second = layout.chunks(laid, stream.context, 7)
    assert (first.copy_page, second.copy_page) == ((7, 51), None)

"""Who gets pages, and who has to go for them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shoal.engine.api import Open, Segmentation, StreamId
from shoal.engine.memory import Memory, prefix_pages
from shoal.engine.prefixes import Prefix
from shoal.engine.runner import SlotSampling
from shoal.engine.streams import Stream
from shoal.engine.text import TextFeed
from tests.fakes import spec

PAGE = 8


def memory_of(pages: int, limit: int | None = None) -> Memory:
    memory = Memory(pages, PAGE, pages if limit is None else limit)
    memory.collected = 0
    return memory


def written(memory: Memory, name: str, pages: int) -> Prefix:
    prefix = memory.reserve_prefix(name.encode(), PAGE * pages - 3)
    assert prefix is not None
    prefix.ready = True
    return prefix


def speaking(memory: Memory, prefix: Prefix, positions: int) -> Stream:
    """A stream with a context of so many positions on a prefix."""
    stream = Stream(
        Open(StreamId(len(memory.prefixes))),
        0.0,
        0,
        SlotSampling(0.0, 1.0, 0, 0),
        TextFeed(Segmentation(), None),
    )
    begun = memory.begin_context(prefix, positions, positions)
    assert begun is not None
    stream.context, copied = begun
    if copied is not None:
        memory.pool.release([copied])
    return stream


@pytest.mark.parametrize(
    ("limit_bytes", "page_bytes", "pages"),
    [(None, 100, 32), (None, 0, 32), (1000, 100, 10), (99, 100, 0), (1 << 40, 100, 64), (5, 0, 32)],
)
def test_a_bound_in_bytes_is_one_in_pages(
    limit_bytes: int | None, page_bytes: int, pages: int
) -> None:
    assert prefix_pages(replace(spec(pages=64), page_bytes=page_bytes), limit_bytes) == pages


def test_a_voice_in_use_stays_when_room_is_made_and_others_go() -> None:
    memory = memory_of(10)
    used, unused = written(memory, "used", 3), written(memory, "unused", 3)
    speaking(memory, used, PAGE * 3)
    assert memory.prefixes.find(used.key) is used  # and so the other one is the older
    assert memory.reserve_prefix(b"new", PAGE * 6) is not None
    assert memory.prefixes.find(unused.key) is None and memory.prefixes.find(used.key) is used
    # Nothing is let go where it would not be enough.
    assert memory.reserve_prefix(b"more", PAGE * 2) is None
    assert memory.prefixes.find(used.key) is used


def test_a_resting_stream_goes_before_its_voice_and_both_make_room() -> None:
    memory = memory_of(8)
    prefix = written(memory, "voice", 3)
    stream = speaking(memory, prefix, PAGE * 4)
    assert memory.reserve_prefix(b"new", PAGE * 6) is None, "it speaks"
    memory.rest(stream)
    assert memory.reserve_prefix(b"small", PAGE * 4) is not None
    assert stream.context is None and memory.prefixes.find(prefix.key) is prefix
    assert memory.reserve_prefix(b"new", PAGE * 3) is not None
    assert memory.prefixes.find(prefix.key) is None


def test_voices_beyond_the_bound_go_though_there_are_pages() -> None:
    memory = memory_of(20, limit=6)
    for name in ("a", "b", "c"):
        written(memory, name, 3)
    assert len(memory.prefixes) == 2 and memory.pool.free == 14
    assert memory.prefixes.find(b"a") is None

from __future__ import annotations

import numpy as np

from shoal.engine.pages import PagePool
from shoal.engine.prefixes import PrefixCache, prefix_key
from shoal.engine.runner import Int32Array


def columns(*rows: list[int]) -> Int32Array:
    return np.array(rows, np.int32)


def cache_of(pages: int = 8, limit: int = 8) -> tuple[PagePool, PrefixCache]:
    pool = PagePool(pages)
    return pool, PrefixCache(pool, limit)


def add(pool: PagePool, cache: PrefixCache, name: bytes, pages: int = 2) -> None:
    taken = pool.take(pages)
    assert taken is not None
    cache.add(name, 8 * pages, taken).ready = True


def test_the_key_covers_every_codebook_and_the_shape() -> None:
    base = columns([5, 1, 2], [6, 3, 4])
    assert prefix_key(base) == prefix_key(base.copy(order="F"))
    for row in range(2):
        for column in range(3):
            other = base.copy()
            other[row, column] += 1
            assert prefix_key(other) != prefix_key(base)
    assert prefix_key(base.reshape(3, 2)) != prefix_key(base)
    assert prefix_key(base[:1]) != prefix_key(base)


def test_the_least_recently_used_goes_first() -> None:
    pool, cache = cache_of()
    for name in (b"a", b"b", b"c"):
        add(pool, cache, name)
    assert cache.find(b"a") is not None
    assert cache.evict_one()
    assert cache.find(b"b") is None
    assert cache.find(b"a") is not None and cache.find(b"c") is not None
    assert pool.free == 4


def test_pinned_and_unwritten_entries_stay() -> None:
    pool, cache = cache_of()
    add(pool, cache, b"pinned")
    entry = cache.find(b"pinned")
    assert entry is not None
    entry.pinned = True
    pages = pool.take(2)
    assert pages is not None
    cache.add(b"unwritten", 16, pages)
    assert not cache.evict_one()
    assert list(cache.evictable_pages({})) == []
    assert len(cache) == 2


def test_a_voice_that_is_being_spoken_with_stays() -> None:
    """To let it go would free nothing, and its next stream would have to prefill it again."""
    pool, cache = cache_of()
    for name in (b"a", b"b"):
        add(pool, cache, name)
    entry = cache.find(b"a")
    assert entry is not None and cache.find(b"b") is not None
    pool.share(entry.pages[:1])  # what a context does; the last page it copies
    assert cache.evict_one() and cache.find(b"b") is None
    assert not cache.evict_one() and cache.find(b"a") is entry
    # The context rests: it could go first, and then the entry.
    assert list(cache.evictable_pages({entry.pages[0]: 1})) == list(entry.pages)
    pool.release(entry.pages[:1])
    assert cache.evict_one() and pool.free == pool.total


def test_what_entries_take_is_bounded_in_bytes() -> None:
    pool, cache = cache_of(pages=10, limit=6)
    for name in (b"a", b"b", b"c", b"d"):
        add(pool, cache, name)
    assert cache.find(b"a") is None
    add(pool, cache, b"e", pages=3)
    found = cache.stats(page_bytes=100)
    assert (found.entries, found.bytes, found.limit_bytes) == (2, 500, 600)
    assert (found.evictions, found.promotions) == (3, 5)
    assert pool.free == 5
    assert cache.find(b"d") is not None and cache.find(b"e") is not None


def test_voices_in_use_may_exceed_the_limit() -> None:
    pool, cache = cache_of(pages=10, limit=4)
    for name in (b"a", b"b", b"c"):
        add(pool, cache, name)
        entry = cache.find(name)
        assert entry is not None
        pool.share(entry.pages[:1])
    assert len(cache) == 3 and cache.stats(1).bytes == 6


def test_dropping_gives_the_pages_back_once() -> None:
    pool, cache = cache_of()
    add(pool, cache, b"a")
    cache.drop(b"a")
    cache.drop(b"a")
    assert pool.free == 8 and len(cache) == 0 and cache.stats(1).bytes == 0


def test_what_is_waited_for_stays_for_another_voice_and_goes_last_in_line_first_to_speak() -> None:
    pool, cache = cache_of(10, limit=4)
    for name in (b"b", b"a"):
        add(pool, cache, name)
    cache.await_entries([b"a", b"b", b"c"])
    add(pool, cache, b"c")
    assert len(cache) == 3 and not cache.evict_one(awaited=False)
    assert list(cache.evictable_pages({}, awaited=False)) == []
    cache.await_entries([b"c", b"a", b"b"])
    assert len(list(cache.evictable_pages({}))) == 6
    assert cache.evict_one() and [cache.has(name) for name in (b"a", b"b", b"c")] == [1, 0, 1]


def test_above_the_limit_it_goes_as_soon_as_nobody_waits_for_it_any_more() -> None:
    pool, cache = cache_of(10, limit=4)
    cache.await_entries([b"a", b"b", b"c"])
    for name in (b"a", b"b", b"c"):
        add(pool, cache, name)
    assert pool.free == 4 and len(cache) == 3
    cache.await_entries([b"a", b"b"])
    assert pool.free == 6 and not cache.has(b"c")
    cache.await_entries([])
    assert len(cache) == 2

"""Prefilled voices: what every context of a voice begins with, held once and shared.

Owns which prefixes are in the KV cache, under a key over every column - tokens and all codebooks -
so that two voices which agree in text and in one codebook never meet. Knows nothing of streams.
One thread: decode's.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from .api import TierStats
from .pages import PagePool
from .runner import Int32Array

PrefixKey = bytes


def prefix_key(columns: Int32Array) -> PrefixKey:
    """Content key of int32 [L, 1 + codebooks]."""
    digest = hashlib.sha256(repr(columns.shape).encode())
    digest.update(columns.astype("<i4", order="C", copy=False).tobytes())
    return digest.digest()


@dataclass(slots=True, eq=False)
class Prefix:
    """A prefix in pages. ``ready`` once its KV was written; ``pinned`` ones are never evicted."""

    key: PrefixKey
    length: int
    pages: tuple[int, ...]
    ready: bool = False
    pinned: bool = False


class PrefixCache:
    """Least recently used first out. An entry holds its pages; so do the contexts built on it, and
    while any does the entry stays: letting it go would free nothing.

    ``limit`` in pages. Entries in use or waited for may exceed it; nothing else does. A voice that
    somebody waits for is not let go for another voice: of more than there is room for, each would
    push out the one before it could be spoken with.
    """

    def __init__(self, pool: PagePool, limit: int) -> None:
        self._pool = pool
        self._limit = limit
        self._entries: OrderedDict[PrefixKey, Prefix] = OrderedDict()
        self._awaited: frozenset[PrefixKey] = frozenset()
        self._pages = 0
        self._evictions = 0
        self.hits = 0
        self.misses = 0
        self.written = 0
        """Prefixes whose KV was, or is being, computed or copied from the host's memory."""

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, key: PrefixKey) -> Prefix | None:
        """The entry, ready or not, now the most recently used."""
        entry = self._entries.get(key)
        if entry is not None:
            self._entries.move_to_end(key)
        return entry

    def has(self, key: PrefixKey) -> bool:
        """Whether there is an entry, ready or not; it is used no more recently for that."""
        return key in self._entries

    def await_entries(self, line: Sequence[PrefixKey]) -> None:
        """For those in ``line`` and nobody else somebody waits to speak; the first in it are let go
        last, even to speak."""
        for key in reversed(line):
            if key in self._entries:
                self._entries.move_to_end(key)
        shorter = not self._awaited <= (awaited := frozenset(line))
        self._awaited = awaited
        if shorter:
            self._keep_limit(0)

    def oldest_first(self) -> Iterator[Prefix]:
        """Entries that are ready and not pinned, in the order in which they would be let go."""
        for entry in self._entries.values():
            if entry.ready and not entry.pinned:
                yield entry

    def add(self, key: PrefixKey, length: int, pages: tuple[int, ...]) -> Prefix:
        """Take over ``pages``, which the caller holds once."""
        assert key not in self._entries
        self._keep_limit(len(pages))
        entry = self._entries[key] = Prefix(key, length, pages)
        self._pages += len(pages)
        self.written += 1
        return entry

    def drop(self, key: PrefixKey) -> None:
        """Forget an entry whose prefill failed."""
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._let_go(entry)

    def evictable_pages(self, resting: Mapping[int, int], *, awaited: bool = True) -> Iterator[int]:
        """The pages of every entry that :meth:`evict_one` could let go, one after another, once
        each page has lost ``resting`` of its holders."""
        for entry in self._entries.values():
            if self._idle(entry, resting, awaited):
                yield from entry.pages

    def evict_one(self, *, awaited: bool = True) -> bool:
        """Let go of the least recently used entry that is ready, not pinned and not in use.
        ``awaited``: also of those that somebody waits for."""
        for key, entry in self._entries.items():
            if self._idle(entry, {}, awaited):
                del self._entries[key]
                self._let_go(entry)
                self._evictions += 1
                return True
        return False

    def stats(self, page_bytes: int) -> TierStats:
        """``page_bytes``: what one page takes on the device."""
        return TierStats(
            entries=len(self._entries),
            bytes=self._pages * page_bytes,
            limit_bytes=self._limit * page_bytes,
            hits=self.hits,
            misses=self.misses,
            evictions=self._evictions,
            promotions=self.written,
        )

    def _keep_limit(self, more: int) -> None:
        """Let go what is above the limit with ``more`` pages and may go."""
        while self._pages + more > self._limit and self.evict_one(awaited=False):
            pass

    def _idle(self, entry: Prefix, resting: Mapping[int, int], awaited: bool) -> bool:
        if entry.pinned or not entry.ready:
            return False
        if not awaited and entry.key in self._awaited:
            return False
        return all(self._pool.holders(page) == 1 + resting.get(page, 0) for page in entry.pages)

    def _let_go(self, entry: Prefix) -> None:
        self._pages -= len(entry.pages)
        self._pool.release(entry.pages)

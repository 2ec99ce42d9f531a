"""Prefilled voices: what every context of a voice begins with, held once and shared.

Owns which prefixes are in the KV cache, under a key over every column - tokens and all codebooks -
so that two voices which agree in text and in one codebook never meet. Knows nothing of streams.
One thread: decode's.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

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
    """Least recently used first out. An entry holds its pages; so do the contexts built on it."""

    def __init__(self, pool: PagePool, limit: int) -> None:
        self._pool = pool
        self._limit = limit
        self._entries: OrderedDict[PrefixKey, Prefix] = OrderedDict()
        self.hits = 0
        self.misses = 0

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, key: PrefixKey) -> Prefix | None:
        """The entry, ready or not, now the most recently used."""
        entry = self._entries.get(key)
        if entry is not None:
            self._entries.move_to_end(key)
        return entry

    def add(self, key: PrefixKey, length: int, pages: tuple[int, ...]) -> Prefix:
        """Take over ``pages``, which the caller holds once."""
        assert key not in self._entries
        while len(self._entries) >= self._limit and self.evict_one():
            pass
        entry = self._entries[key] = Prefix(key, length, pages)
        return entry

    def drop(self, key: PrefixKey) -> None:
        """Forget an entry whose prefill failed."""
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._pool.release(entry.pages)

    def evictable_pages(self) -> Iterator[int]:
        """The pages of every entry that :meth:`evict_one` could let go, one after another."""
        for entry in self._entries.values():
            if entry.ready and not entry.pinned:
                yield from entry.pages

    def evict_one(self) -> bool:
        """Let go of the least recently used entry that is ready and not pinned."""
        for key, entry in self._entries.items():
            if entry.ready and not entry.pinned:
                del self._entries[key]
                self._pool.release(entry.pages)
                return True
        return False

"""The warm tier of voices: KV of prefixes in pages of the host's memory.

Owns which prefixes' KV is there, and the choice of what is copied there while there is time: the
voices that the device would let go next. What is used most lies on the device and needs no second
copy; so voices that the device did let go come before those that it will keep for long. Knows
nothing of how pages are copied, nor of streams. One thread: decode's.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

from .api import TierStats
from .pages import PagePool
from .prefixes import Prefix, PrefixCache, PrefixKey


@dataclass(slots=True, eq=False)
class Kept:
    """A prefix's KV in ``pages`` of the host. ``ready`` once it was copied there."""

    key: PrefixKey
    pages: tuple[int, ...]
    ready: bool = False


class WarmTier:
    """Least recently used first out, except what is being copied, in either direction.

    ``pages``: of the host's memory, 0 for no such tier; ``page_bytes``: what one takes.
    """

    def __init__(self, pages: int, page_bytes: int) -> None:
        self._pool = PagePool(pages)
        self._page_bytes = page_bytes
        self._entries: OrderedDict[PrefixKey, Kept] = OrderedDict()
        self._hits = 0
        self._misses = 0
        self._evictions = 0
        self._saved = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: PrefixKey) -> bool:
        """Whether its KV is there, or on the way."""
        return key in self._entries

    def used(self, key: PrefixKey) -> None:
        """Somebody speaks with the voice, wherever its KV is."""
        if key in self._entries:
            self._entries.move_to_end(key)

    def lend(self, key: PrefixKey) -> tuple[int, ...]:
        """The pages of an entry, which stay until they are given back; none when it is not there.
        Counted as a voice that was looked for."""
        entry = self._entries.get(key)
        if entry is None or not entry.ready:
            self._misses += 1
            return ()
        self._hits += 1
        self._entries.move_to_end(key)
        self._pool.share(entry.pages)
        return entry.pages

    def give_back(self, key: PrefixKey, pages: tuple[int, ...], *, damaged: bool) -> None:
        """``damaged``: what lay in them could not be used."""
        self._pool.release(pages)
        if damaged:
            self._drop(key)

    def begin_save(self, hot: PrefixCache, most: int) -> tuple[Prefix, Kept] | None:
        """The next voice to copy to the host, of at most ``most`` pages, and where to; None when
        all that the device may let go soon is there, or nothing may go for it."""
        soon = list(self._soon(hot))
        for prefix in soon:
            if prefix.key in self._entries or len(prefix.pages) > most:
                continue
            pages = self._take(len(prefix.pages), {one.key for one in soon}, hot)
            if pages is None:
                return None
            entry = self._entries[prefix.key] = Kept(prefix.key, pages)
            return prefix, entry
        return None

    def saved(self, key: PrefixKey, *, error: bool) -> None:
        """A copy to the host ended."""
        if error:
            self._drop(key)
            return
        self._entries[key].ready = True
        self._saved += 1

    def stats(self) -> TierStats:
        """Promotions are copies made."""
        return TierStats(
            entries=len(self._entries),
            bytes=(self._pool.total - self._pool.free) * self._page_bytes,
            limit_bytes=self._pool.total * self._page_bytes,
            hits=self._hits,
            misses=self._misses,
            evictions=self._evictions,
            promotions=self._saved,
        )

    def _soon(self, hot: PrefixCache) -> Iterator[Prefix]:
        """What the device lets go next, one entry at least: as much as half of this tier takes. The
        other half is for what it has let go."""
        room = self._pool.total // 2
        for number, prefix in enumerate(hot.oldest_first()):
            room -= len(prefix.pages)
            if number and room < 0:
                return
            if len(prefix.pages) <= self._pool.total:
                yield prefix

    def _take(self, count: int, soon: set[PrefixKey], hot: PrefixCache) -> tuple[int, ...] | None:
        """``count`` pages, making room; None, and nothing lost, when it cannot be made."""
        free = self._pool.free
        going: list[PrefixKey] = []
        for key in self._dispensable(soon, hot):
            if free >= count:
                break
            going.append(key)
            free += len(self._entries[key].pages)
        if free < count:
            return None
        for key in going:
            self._drop(key)
            self._evictions += 1
        return self._pool.take(count)

    def _dispensable(self, soon: set[PrefixKey], hot: PrefixCache) -> Iterator[PrefixKey]:
        """What may go, first what is also on the device and stays there for now."""
        idle = [
            entry.key
            for entry in self._entries.values()
            if entry.ready and entry.key not in soon and self._pool.holders(entry.pages[0]) == 1
        ]
        yield from (key for key in reversed(idle) if hot.has(key))
        yield from (key for key in idle if not hot.has(key))

    def _drop(self, key: PrefixKey) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._pool.release(entry.pages)

"""KV pages between live contexts, idle contexts and prefixes: who is evicted when they run short.

Owns the pool, the prefix cache and the order of eviction. A page in use by a running context is
never taken from it. One thread: decode's.
"""

from __future__ import annotations

from collections import OrderedDict

from .api import StreamId
from .pages import PagePool
from .prefixes import Prefix, PrefixCache, PrefixKey
from .streams import Context, Stream


class Memory:
    """``page_tokens`` positions a page."""

    def __init__(self, pages: int, page_tokens: int, prefix_limit: int) -> None:
        self.page_tokens = page_tokens
        self.pool = PagePool(pages)
        self.prefixes = PrefixCache(self.pool, prefix_limit)
        self._idle: OrderedDict[StreamId, Stream] = OrderedDict()
        self.collected = -1
        """The last collected step: what an earlier step may still write is not evicted."""

    def pages_for(self, positions: int) -> int:
        """Pages that hold ``positions`` positions."""
        return -(-positions // self.page_tokens)

    def take(self, count: int) -> tuple[int, ...] | None:
        """``count`` pages, evicting what is idle; None when even that is not enough."""
        while self.pool.free < count:
            if not self._evict_idle_context() and not self.prefixes.evict_one():
                return None
        return self.pool.take(count)

    def begin_context(self, prefix: Prefix, positions: int) -> tuple[Context, int | None] | None:
        """A context on ``prefix`` with room for ``positions``, and the shared page to copy first.

        Whole pages of the prefix are shared. A last page that is only partly the prefix's is to be
        copied to ``context.pages[prefix.length // page_tokens]``; its number is the second value,
        and it is held until the caller releases it, so that it outlives the copy.
        """
        whole = prefix.length // self.page_tokens
        # Hold the prefix's pages first: making room must not evict them from under us.
        self.pool.share(prefix.pages)
        own = self.take(self.pages_for(positions) - whole)
        if own is None:
            self.pool.release(prefix.pages)
            return None
        partial = prefix.pages[whole] if whole < len(prefix.pages) else None
        return Context([*prefix.pages[:whole], *own], prefix.length), partial

    def extend(self, context: Context, positions: int) -> bool:
        """Make room for ``positions`` positions in all. False, and nothing done, without pages."""
        missing = self.pages_for(positions) - len(context.pages)
        if missing <= 0:
            return True
        pages = self.take(missing)
        if pages is None:
            return False
        context.pages.extend(pages)
        return True

    def reserve_prefix(self, key: PrefixKey, length: int) -> Prefix | None:
        """A new entry with pages to be written, or None without pages."""
        pages = self.take(self.pages_for(length))
        return None if pages is None else self.prefixes.add(key, length, pages)

    # Idle contexts ----------------------------------------------------------------------------

    def rest(self, stream: Stream) -> None:
        """From here on the stream's context may be evicted."""
        if stream.context is not None:
            self._idle[stream.id] = stream
            self._idle.move_to_end(stream.id)

    def wake(self, stream: Stream) -> None:
        """The stream's context is in use again."""
        self._idle.pop(stream.id, None)

    def forget(self, stream: Stream) -> None:
        """Let go of a resting stream's context."""
        self.wake(stream)
        if stream.context is not None:
            self.pool.release(stream.context.pages)
            stream.context = None

    def _evict_idle_context(self) -> bool:
        for stream in self._idle.values():
            if stream.last_step <= self.collected:
                self.forget(stream)
                return True
        return False

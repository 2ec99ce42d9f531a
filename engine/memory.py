"""KV memory: shared prefixes, streams' contexts, promises of pages, and what is let go for room.

Owns the page pool, the prefix cache and the order of eviction. An utterance is promised the pages
that it may need at most before it begins, so a running one never lacks any and nobody who waits
for pages holds any that cannot be taken. A page in use by a running context is never evicted. One
thread: decode's.
"""

from __future__ import annotations

from collections import Counter, OrderedDict

from .api import StreamId
from .pages import PagePool
from .prefixes import Prefix, PrefixCache, PrefixKey
from .runner import RunnerSpec
from .streams import Context, Stream


def prefix_pages(spec: RunnerSpec, limit_bytes: int | None) -> int:
    """How many pages prefixes that nobody uses may keep: ``limit_bytes`` of them, or half of all.

    Half, because whoever speaks needs room beside the voices; without a limit, voices that will
    not be asked for again would push out the contexts of streams that rest between two turns.
    """
    if limit_bytes is None or not spec.page_bytes:
        return spec.pages // 2
    return min(spec.pages, limit_bytes // spec.page_bytes)


class Memory:
    """``page_tokens`` positions a page; ``prefix_limit`` in pages."""

    def __init__(self, pages: int, page_tokens: int, prefix_limit: int) -> None:
        self.page_tokens = page_tokens
        self.pool = PagePool(pages)
        self.prefixes = PrefixCache(self.pool, prefix_limit)
        self._idle: OrderedDict[StreamId, Stream] = OrderedDict()
        self._promised = 0
        self.collected = -1
        """The last collected step: what an earlier step may still write is not evicted."""

    @property
    def promised(self) -> int:
        """Free pages that are kept for utterances being spoken."""
        return self._promised

    @property
    def spare(self) -> int:
        """Free pages that are kept for nobody."""
        return self.pool.free - self._promised

    def pages_for(self, positions: int) -> int:
        """Pages that hold ``positions`` positions."""
        return -(-positions // self.page_tokens)

    def begin_context(
        self, prefix: Prefix, positions: int, most: int
    ) -> tuple[Context, int | None] | None:
        """A context on ``prefix`` with room for ``positions`` and the promise of ``most``, and the
        shared page to copy first; None, and nothing done, without pages.

        Whole pages of the prefix are shared. A last page that is only partly the prefix's is to be
        copied to ``context.pages[prefix.length // page_tokens]``; its number is the second value,
        and it is held until the caller releases it, so that it outlives the copy.
        """
        whole = prefix.length // self.page_tokens
        # Hold the prefix's pages first: making room must not evict them from under us.
        self.pool.share(prefix.pages)
        if not self._make_room(self.pages_for(most) - whole):
            self.pool.release(prefix.pages)
            return None
        partial = prefix.pages[whole] if whole < len(prefix.pages) else None
        context = Context(list(prefix.pages[:whole]), prefix.length)
        self._promise(context, most)
        self.grow(context, positions)
        return context, partial

    def extend(self, stream: Stream, positions: int, most: int) -> bool:
        """Wake the stream's context and give it room for ``positions`` and the promise of ``most``.

        False, and nothing done, without pages.
        """
        context = stream.context
        assert context is not None and not context.promised
        resting = self._idle.pop(stream.id, None) is not None
        if not self._make_room(self.pages_for(most) - len(context.pages)):
            if resting:
                self.rest(stream)
            return False
        self._promise(context, most)
        self.grow(context, positions)
        return True

    def grow(self, context: Context, positions: int) -> None:
        """Make room for ``positions`` in all, out of what was promised."""
        missing = self.pages_for(positions) - len(context.pages)
        if missing <= 0:
            return
        assert missing <= context.promised
        pages = self.pool.take(missing)
        assert pages is not None
        context.pages.extend(pages)
        context.promised -= missing
        self._promised -= missing

    def settle(self, context: Context) -> None:
        """The utterance is over: what was promised and not needed is anybody's again."""
        self._promised -= context.promised
        context.promised = 0

    def _promise(self, context: Context, most: int) -> None:
        context.promised = max(0, self.pages_for(most) - len(context.pages))
        self._promised += context.promised

    def reserve_prefix(self, key: PrefixKey, length: int) -> Prefix | None:
        """A new entry with pages to be written, or None without pages: those of voices that
        somebody waits for are none."""
        count = self.pages_for(length)
        if not self._make_room(count, awaited=False):
            return None
        pages = self.pool.take(count)
        assert pages is not None
        return self.prefixes.add(key, length, pages)

    # Idle contexts ----------------------------------------------------------------------------

    def rest(self, stream: Stream) -> None:
        """From here on the stream's context may be evicted."""
        if stream.context is not None:
            self._idle[stream.id] = stream
            self._idle.move_to_end(stream.id)

    def wake(self, stream: Stream) -> None:
        """The stream's context is in use again."""
        self._idle.pop(stream.id, None)

    # Eviction ---------------------------------------------------------------------------------

    def _make_room(self, count: int, *, awaited: bool = True) -> bool:
        """Whether ``count`` pages are free and promised to nobody, evicting what is idle.

        Evicts nothing when even everything would not be enough. ``awaited``: voices that somebody
        waits for may go.
        """
        wanted = count + self._promised
        if self.pool.free >= wanted:
            return True
        if self.pool.free + self._evictable(awaited) < wanted:
            return False
        while self.pool.free < wanted:
            if not self._evict_idle_context():
                evicted = self.prefixes.evict_one(awaited=awaited)
                assert evicted
        return True

    def _evictable(self, awaited: bool) -> int:
        """Pages that would be free without the idle contexts and the prefixes that may go."""
        idle: Counter[int] = Counter()
        for stream in self._idle.values():
            if stream.last_step <= self.collected:
                assert stream.context is not None
                idle.update(stream.context.pages)
        idle.update(list(self.prefixes.evictable_pages(idle, awaited=awaited)))
        return sum(self.pool.holders(page) == held for page, held in idle.items())

    def _evict_idle_context(self) -> bool:
        for stream in self._idle.values():
            if stream.last_step <= self.collected:
                self.wake(stream)
                assert stream.context is not None
                self.pool.release(stream.context.pages)
                stream.context = None
                return True
        return False

"""From a voice to a prefilled prefix: single-flight preparation, and prefills that are under way.

Owns which voices are being prepared and for whom, which prefixes are being written, and which is
being copied to the warm tier. Pure; one thread: decode's. Streams get their prefix's columns; the
cache may lose the pages and write them again, from the warm tier's copy or from the columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from .api import Voice
from .config import Limits
from .jobs import Prefilled, PrefillJob, Saved, SaveJob, VoiceDrop, VoiceJob
from .memory import Memory
from .outgoing import Outgoing, chunked
from .prefixes import Prefix, PrefixKey, prefix_key
from .runner import Int32Array
from .streams import Stream
from .warm import WarmTier


@dataclass(slots=True, eq=False)
class _Work:
    """A voice until its job is answered. ``wanted``: also without a stream that waits for it."""

    voice: Voice
    live: bool
    size: int
    """Bytes of its recordings."""
    wanted: bool = False
    dropped: bool = False
    waiting: list[Stream] = field(default_factory=list[Stream])


@dataclass(frozen=True, slots=True)
class _Writing:
    """``lent``: the warm tier's pages that its KV is copied from; none: it is computed."""

    key: PrefixKey
    lent: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Saving:
    """``pages``: of the device, held until the copy ended."""

    job: int
    key: PrefixKey
    pages: tuple[int, ...]


class Voicing:
    """``default`` is the prefix of the default voice; it is prefilled at once and never evicted."""

    def __init__(
        self,
        default: Int32Array,
        memory: Memory,
        warm: WarmTier,
        limits: Limits,
        out: Outgoing,
    ) -> None:
        self._default = default
        self._memory = memory
        self._warm = warm
        self._limits = limits
        self._out = out
        self.refused = 0
        """Voices that were too much beside what is being prepared, or not there in time."""
        self._jobs = 0
        self._preparing: dict[int, _Work] = {}
        self._writing: dict[int, _Writing] = {}
        self._saving: _Saving | None = None
        self._default_key = prefix_key(default)
        self._request(default, self._default_key)

    def prepare(self, voice: Voice, stream: Stream | None) -> bool:
        """Prepare ``voice``, once for all who ask for it meanwhile, and give it to ``stream``;
        False: more recordings are held for others than go together with these."""
        if voice == Voice():
            self._give(self._default, self._default_key, [stream] if stream else [])
            return True
        live = stream is None or not stream.backfill
        work = self._under_way(voice, live)
        if work is None:
            size = _size(voice)
            most = self._limits.voice_bytes // (1 if live else 2)
            held = sum(work.size for work in self._preparing.values())
            if size and held and held + size > most:
                self.refused += 1
                return False
            self._jobs -= 1
            work = self._preparing[self._jobs] = _Work(voice, live, size)
            self._out.voice.append(VoiceJob(self._jobs, voice, live))
        if stream is None:
            work.wanted = True
        else:
            work.waiting.append(stream)
        return True

    def _under_way(self, voice: Voice, live: bool) -> _Work | None:
        """Work to join. Who listens joins no work that comes after everybody's: the voice thread
        has them meet at the recording."""
        for work in self._preparing.values():
            if not work.dropped and (work.live or not live) and work.voice == voice:
                return work
        return None

    def prepared(self, job: int, columns: Int32Array) -> list[Stream]:
        """The streams that now have their prefix's columns, if not yet its KV."""
        work = self._preparing.pop(job)
        if not work.dropped:
            self._give(columns, prefix_key(columns), work.waiting)
        return work.waiting

    def failed(self, job: int) -> list[Stream]:
        """The streams that waited for a voice that cannot be had."""
        return self._preparing.pop(job).waiting

    def forget(self, stream: Stream) -> None:
        """The stream is gone, and with it whatever only it waited for."""
        for job, work in self._preparing.items():
            if stream not in work.waiting:
                continue
            work.waiting.remove(stream)
            if not (work.waiting or work.wanted):
                work.dropped = True
                self._out.voice.append(VoiceDrop(job))

    def overdue(self, now: float) -> list[Stream]:
        """Those who waited too long for their voice's recordings to be encoded."""
        most_s = self._limits.voice_wait_s
        late = [stream for stream in self._listeners() if stream.opened_s + most_s <= now]
        self.refused += len(late)
        return late

    def overdue_s(self) -> float | None:
        """When the next of them will have."""
        opened_s = min((stream.opened_s for stream in self._listeners()), default=None)
        return None if opened_s is None else opened_s + self._limits.voice_wait_s

    def _listeners(self) -> Iterator[Stream]:
        for work in self._preparing.values():
            yield from (stream for stream in work.waiting if not stream.backfill)

    def prefix_of(self, stream: Stream) -> Prefix | None:
        """The stream's prefix, asked for again when it is gone; its KV is there once it is
        ``ready``. None: the voice is being prepared, or there are no pages for it."""
        if stream.prefix is None or stream.prefix_columns is None:
            return None
        entry = self._memory.prefixes.find(stream.prefix)
        if entry is None:
            entry = self._request(stream.prefix_columns, stream.prefix)
        return entry

    def has(self, stream: Stream) -> bool:
        """Whether the KV of the stream's prefix is there."""
        entry = self._memory.prefixes.find(stream.prefix) if stream.prefix else None
        return entry is not None and entry.ready

    def writing(self, stream: Stream) -> bool:
        """Whether the KV of the stream's prefix is being written right now."""
        if stream.prefix is None:
            return False
        entry = self._memory.prefixes.find(stream.prefix)
        return entry is not None and not entry.ready

    def written(self, done: Prefilled) -> PrefixKey | None:
        """A prefill ended: the key of the prefix it was for, None when it was not for one."""
        work = self._writing.pop(done.job, None)
        if work is None:
            return None
        if work.lent:
            self._warm.give_back(work.key, work.lent, damaged=not done.loaded)
        entry = self._memory.prefixes.find(work.key)
        assert entry is not None
        entry.ready = True
        if done.error:
            self._memory.prefixes.drop(work.key)
        self._save_next()
        return work.key

    def saved(self, done: Saved) -> None:
        """A copy to the warm tier ended."""
        saving = self._saving
        assert saving is not None and saving.job == done.job
        self._saving = None
        self._memory.pool.release(saving.pages)
        self._warm.saved(saving.key, error=done.error)
        if not done.error:  # else it would be the next again; with the next voice is soon enough
            self._save_next()

    def _save_next(self) -> None:
        """Have the next voice copied to the warm tier, one at a time: its pages are held until it
        is there, so it waits for a time in which nobody could want them."""
        if self._saving is not None:
            return
        memory = self._memory
        chosen = self._warm.begin_save(memory.prefixes, memory.spare)
        if chosen is None:
            return
        prefix, kept = chosen
        memory.pool.share(prefix.pages)
        self._jobs -= 1
        self._saving = _Saving(self._jobs, prefix.key, prefix.pages)
        self._out.prefill.append(SaveJob(self._jobs, prefix.pages, kept.pages))

    def _give(self, columns: Int32Array, key: PrefixKey, streams: list[Stream]) -> None:
        prefixes = self._memory.prefixes
        cached = prefixes.find(key) is not None
        self._warm.used(key)
        for stream in streams:
            stream.prefix_columns, stream.prefix = columns, key
            stream.prefix_was_cached = cached
        if cached:
            prefixes.hits += 1
            self._save_next()
        else:
            prefixes.misses += 1
            self._request(columns, key)

    def _request(self, columns: Int32Array, key: PrefixKey) -> Prefix | None:
        """Begin to write a prefix; without pages now, a later call will."""
        entry = self._memory.reserve_prefix(key, len(columns))
        if entry is None:
            return None
        entry.pinned = key == self._default_key
        lent = () if entry.pinned else self._warm.lend(key)
        # Its own numbers, apart from the jobs of utterances.
        self._jobs -= 1
        self._writing[self._jobs] = _Writing(key, lent)
        size = self._limits.prefill_chunk_tokens
        chunks = chunked(columns, 0, entry.pages, self._memory, size)
        self._out.prefill.append(PrefillJob(self._jobs, chunks, False, lent))
        return entry


def _size(voice: Voice) -> int:
    own = sum(len(reference.audio) for reference in voice.references)
    return own + sum(_size(speaker) for speaker in voice.speakers)

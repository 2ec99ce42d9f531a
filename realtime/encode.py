"""From a turn's samples to the payloads of its messages, and the threads that do it off the loop.

``TurnEncoder`` is one turn's encoder, volume and chunking; it belongs to whichever thread runs its
jobs, one after another. ``EncodePool`` is those threads for formats that cost more than a
millisecond: each turn has a lane, and what goes through a lane comes back in order.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from typing import Final

from shoal.proto.messages import TtsRequest

from .audio import make_encoder
from .rechunk import Rechunker

FIRST_S: Final = 0.08
"""The least that a turn's first message plays, so that the second can come in time."""
DELAY_S: Final = 0.08
"""More than a resampler and a codec hold back together."""
INLINE_FORMATS: Final = frozenset(("pcm", "wav"))


@dataclass(frozen=True, slots=True)
class Chunk:
    """The payload of one message, and how long it plays."""

    payload: bytes = field(repr=False)
    audio_s: float


class TurnEncoder:
    """See the module. One turn, one container."""

    def __init__(self, request: TtsRequest, model_rate: int) -> None:
        """:raises FormatUnavailable: this machine cannot make the format."""
        self._encoder = make_encoder(
            request.format,
            model_rate,
            request.sample_rate,
            opus_bitrate=request.opus_bitrate_bps,
            volume_db=request.prosody.volume_db,
        )
        self.off_loop = request.format not in INLINE_FORMATS
        self._rechunker = None if self.off_loop else Rechunker()
        self._model_rate = model_rate
        self._byte_rate = 2 * request.sample_rate
        delayed = self.off_loop or request.sample_rate != model_rate
        self._push_out = bytes(2 * int(DELAY_S * model_rate)) if delayed else b""
        self._first = bytearray()
        self._started = False
        self._inside = False
        self._unsent_s = 0.0

    def feed(self, samples: bytes) -> list[Chunk]:
        """Mono s16le at the model's rate."""
        self._inside = True
        if not self._started:
            self._first += samples
            if len(self._first) < 2 * FIRST_S * self._model_rate:
                return []
            samples = self._begin()
        return self._encode(samples)

    def flush(self) -> list[Chunk]:
        """All that was fed so far: where the encoder is behind, silence pushes it out."""
        if not self._inside:
            return []
        self._inside = False
        chunks = self._encode(self._begin() + self._push_out)
        return chunks if self._rechunker is None else chunks + self._sized(self._rechunker.flush())

    def finish(self) -> list[Chunk]:
        """The rest, and the container's end."""
        chunks = self._encode(self._begin()) + self._out(self._encoder.finish())
        return chunks if self._rechunker is None else chunks + self._sized(self._rechunker.flush())

    def _begin(self) -> bytes:
        self._started = True
        first = bytes(self._first)
        self._first.clear()
        return first

    def _encode(self, samples: bytes) -> list[Chunk]:
        self._unsent_s += len(samples) / 2 / self._model_rate
        return self._out(self._encoder.encode(samples))

    def _out(self, data: bytes) -> list[Chunk]:
        if self._rechunker is not None:
            return self._sized(self._rechunker.push(data))
        if not data:
            return []
        seconds, self._unsent_s = self._unsent_s, 0.0
        return [Chunk(data, seconds)]

    def _sized(self, payloads: Sequence[bytes]) -> list[Chunk]:
        return [Chunk(payload, len(payload) / self._byte_rate) for payload in payloads]


# Off the loop -----------------------------------------------------------------------------------

Job = Callable[[], list[Chunk]]
Done = Callable[[list[Chunk] | Exception], None]
ToLoop = Callable[[Callable[[], None]], None]


class EncodePool:
    """Threads that encode. Owned by the event loop's thread, which gets every result."""

    def __init__(self, threads: int, to_loop: ToLoop) -> None:
        self._queues: list[queue.SimpleQueue[tuple[Job, Done] | None]] = [
            queue.SimpleQueue() for _ in range(threads)
        ]
        self._threads = [
            threading.Thread(target=_work, args=(jobs, to_loop), name=f"encode-{i}", daemon=True)
            for i, jobs in enumerate(self._queues)
        ]
        for thread in self._threads:
            thread.start()
        self._next = cycle(self._queues)

    def lane(self) -> Lane:
        """A turn's own: its jobs run one after another, and their results come in order."""
        return Lane(next(self._next))

    def stop(self) -> None:
        """Finish what is queued and join the threads."""
        for jobs in self._queues:
            jobs.put(None)
        for thread in self._threads:
            thread.join()


class Lane:
    """See :meth:`EncodePool.lane`."""

    def __init__(self, jobs: queue.SimpleQueue[tuple[Job, Done] | None]) -> None:
        self._jobs = jobs
        self._pending = 0

    @property
    def busy(self) -> bool:
        """Whether a result is still to come."""
        return self._pending > 0

    def submit(self, job: Job, done: Done) -> None:
        """Run ``job`` on a thread, then ``done`` with what it returned or raised on the loop."""
        self._pending += 1

        def finished(result: list[Chunk] | Exception) -> None:
            self._pending -= 1
            done(result)

        self._jobs.put((job, finished))


def _work(jobs: queue.SimpleQueue[tuple[Job, Done] | None], to_loop: ToLoop) -> None:
    """The body of an encode thread: all that waits is one batch, and goes back as one."""
    while True:
        batch: list[tuple[Done, list[Chunk] | Exception]] = []
        item = jobs.get()
        while item is not None:
            job, done = item
            try:
                batch.append((done, job()))
            except Exception as error:  # the edge of the thread: it fails its turn, not the thread
                batch.append((done, error))
            try:
                item = jobs.get_nowait()
            except queue.Empty:
                break
        if batch:
            to_loop(lambda batch=batch: _give_back(batch))
        if item is None:
            return


def _give_back(batch: Sequence[tuple[Done, list[Chunk] | Exception]]) -> None:
    for done, result in batch:
        done(result)

"""From a turn's samples to the payloads of its messages, and the threads that do it off the loop.

``TurnEncoder`` is one turn's speed, loudness, encoder and chunking; it belongs to whichever thread
runs its jobs, one after another. ``EncodePool`` is those threads for what costs more than handing
it over does (codecs, other speeds, other rates than the model's): each turn has a lane, and what
goes through a lane comes back in order.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from typing import Final

from shoal.proto.messages import TtsRequest

from .audio import make_encoder
from .audio.g711 import ALAW_SILENCE, ULAW_SILENCE
from .audio.samples import loud_samples, quiet_samples
from .audio.voicing import Voicing
from .rechunk import Rechunker

FIRST_S: Final = 0.08
"""The least that a turn's first message plays, so that the second can come in time."""
PUSH_S: Final = 0.005
BATCH_S: Final = 0.002
"""How long an encode thread works before what it has done goes back."""
MOST_PUSHED_S: Final = 0.4
"""More than a resampler and a codec hold back together."""
SAMPLE_BYTES: Final = {"pcm": 2, "wav": 2, "pcm_f32le": 4, "ulaw": 1, "alaw": 1}
"""Of the formats that are cheap to make, and can be cut anywhere between samples."""


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
            mp3_kbps=request.mp3_bitrate_kbps,
            volume_db=request.prosody.volume_db,
        )
        self._voicing = Voicing(request.prosody, model_rate)
        sample_bytes = SAMPLE_BYTES.get(request.format)
        resampled = request.sample_rate != model_rate
        self.off_loop = sample_bytes is None or resampled or self._voicing.dear
        self._rechunker = None if sample_bytes is None else _rechunker(request, sample_bytes)
        self._model_rate = model_rate
        self._byte_rate = (sample_bytes or 0) * request.sample_rate
        self._push = bytes(2 * int(PUSH_S * model_rate))
        self._first = bytearray()
        self._started = False
        self._inside = False
        self._taken_samples = 0  # by the encoder, of what is said and what pushed it out
        self._loud_samples = 0  # the same, up to the last that is not quiet
        self._owed_samples = 0  # of silence that pushed, and that later quiet may stand for
        self._inserted_samples = 0  # the same, with what nothing will stand for
        self._sent_s = 0.0

    @property
    def inserted_s(self) -> float:
        """Seconds of silence in the turn's sound that are not the model's. Less again when quiet
        of the model's was left out for it, so ask after each sound given."""
        return self._inserted_samples / self._model_rate

    def feed(self, samples: bytes) -> list[Chunk]:
        """Mono s16le at the model's rate."""
        self._inside = True
        return self._encode(self._prepared(self._voicing.shape(samples)))

    def flush(self) -> list[Chunk]:
        """All that was fed so far, but for quiet at its end that an encoder may hold: where the
        encoder is further behind, silence pushes it out."""
        if not self._inside:
            return []
        self._inside = False
        chunks = self._encode(self._begun(self._prepared(self._voicing.flush())))
        chunks += self._pushed_out()
        return chunks if self._rechunker is None else chunks + self._sized(self._rechunker.flush())

    def finish(self) -> list[Chunk]:
        """The rest, and the container's end."""
        chunks = self._encode(self._begun(self._prepared(self._voicing.flush())))
        rest = self._encoder.finish()
        if self._inside or not self._taken_samples or self._rechunker is None:
            chunks += self._out(rest)  # otherwise it is the silence that pushed
        return chunks if self._rechunker is None else chunks + self._sized(self._rechunker.flush())

    def _prepared(self, samples: bytes) -> bytes:
        """What may go to the encoder now: not yet the first of a turn, and less of the quiet
        after a pause that already was longer than it should be."""
        if self._owed_samples:
            samples = self._less_quiet(samples)
        if self._started:
            return samples
        self._first += samples
        long_enough = len(self._first) >= 2 * FIRST_S * self._model_rate
        return self._begun(b"") if long_enough else b""

    def _begun(self, samples: bytes) -> bytes:
        """``samples`` behind those that waited for the turn's first message."""
        self._started = True
        first = bytes(self._first)
        self._first.clear()
        return first + samples

    def _less_quiet(self, samples: bytes) -> bytes:
        quiet = quiet_samples(samples)
        less = min(quiet, self._owed_samples)
        self._inserted_samples -= less
        self._owed_samples = self._owed_samples - less if 2 * quiet == len(samples) else 0
        return samples[2 * less :]

    def _pushed_out(self) -> list[Chunk]:
        chunks: list[Chunk] = []
        said_s = self._loud_samples / self._model_rate
        for _ in range(int(MOST_PUSHED_S / PUSH_S)):
            if self._encoder.encoded_s >= said_s - 1 / self._model_rate:
                break
            chunks += self._encode(self._push)
            self._owed_samples += len(self._push) // 2
            self._inserted_samples += len(self._push) // 2
        return chunks

    def _encode(self, samples: bytes) -> list[Chunk]:
        if not samples:
            return []
        loud = loud_samples(samples)
        if loud:
            self._loud_samples = self._taken_samples + loud
        self._taken_samples += len(samples) // 2
        return self._out(self._encoder.encode(samples))

    def _out(self, data: bytes) -> list[Chunk]:
        if self._rechunker is not None:
            return self._sized(self._rechunker.push(data))
        if not data:
            return []
        seconds = self._encoder.encoded_s - self._sent_s
        self._sent_s += seconds
        return [Chunk(data, seconds)]

    def _sized(self, payloads: Sequence[bytes]) -> list[Chunk]:
        return [Chunk(payload, len(payload) / self._byte_rate) for payload in payloads]


def _rechunker(request: TtsRequest, sample_bytes: int) -> Rechunker:
    match request.format:
        case "ulaw":
            return Rechunker(least=1, silence=ULAW_SILENCE)
        case "alaw":
            return Rechunker(least=1, silence=ALAW_SILENCE)
        case _:
            return Rechunker(sample_bytes=sample_bytes)


# Off the loop -----------------------------------------------------------------------------------

Job = Callable[[], list[Chunk]]
Done = Callable[[list[Chunk] | Exception], None]
ToLoop = Callable[[Callable[[], None]], None]


class EncodePool:
    """Threads that encode. Owned by the event loop's thread, which gets every result."""

    def __init__(
        self, threads: int, to_loop: ToLoop, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._queues: list[queue.SimpleQueue[tuple[Job, Done] | None]] = [
            queue.SimpleQueue() for _ in range(threads)
        ]
        self._threads = [
            threading.Thread(
                target=_work, args=(jobs, to_loop, clock), name=f"encode-{i}", daemon=True
            )
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
        """Run ``job`` on a thread, then ``done`` with what it returned or raised on the loop. What
        ``done`` itself raises it is called with once more."""
        self._pending += 1

        def finished(result: list[Chunk] | Exception) -> None:
            self._pending -= 1
            try:
                done(result)
            except Exception as error:  # the edge of a turn: others' results are in the same batch
                done(error)

        self._jobs.put((job, finished))


def _work(
    jobs: queue.SimpleQueue[tuple[Job, Done] | None],
    to_loop: ToLoop,
    clock: Callable[[], float],
) -> None:
    """The body of an encode thread: what is done within a moment goes back as one batch."""
    while True:
        batch: list[tuple[Done, list[Chunk] | Exception]] = []
        item = jobs.get()
        until_s = clock() + BATCH_S
        while item is not None:
            job, done = item
            try:
                batch.append((done, job()))
            except Exception as error:  # the edge of the thread: it fails its turn, not the thread
                batch.append((done, error))
            if clock() >= until_s:
                break
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

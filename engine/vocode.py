"""The codec's thread: frames of codes into PCM, paced by each listener's lead, and delivery.

Owns whose frames are decoded when, and together with whose; the order of what one stream hears is
its :class:`Listener` 's. Knows nothing of text or of the slow stack; slots matter only because
codec state lives in them. Frames of one slot's earlier stretch are decoded before a later one's.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from queue import Empty, SimpleQueue

import numpy as np

from .api import Deliver, Event, Failed, Fault, StreamId
from .jobs import (
    CodecBegin,
    CodecDrop,
    CodecEnd,
    CodecFinish,
    CodecFrames,
    CodecMark,
    CodecMessage,
    CodecPark,
    CodecSilence,
    Sounded,
)
from .listener import Listener, Stretch
from .pacing import due_frames, due_in_s
from .runner import Int16Array, Int32Array, Runner, VocodeBatch

MOST_AT_ONCE_FRAMES = 128
"""Frames that one call to the device decodes at most, all rows together, unless one frame a row is
more: a call ends soon, so that a first sound that became due meanwhile does not wait for hundreds
of rows that are ahead. A GPU is as fast at this many as at more."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class _Row:
    """Frames of one stream that are to be decoded now."""

    stream: StreamId
    listener: Listener
    stretch: Stretch
    frames: int
    lead_s: float


class Vocoder:
    """``run`` is the thread's body; :meth:`take` and :meth:`work` are its parts, for tests.

    What waits is bounded by the scheduler, which lets no stream run further than its limits ahead
    of the listener.
    """

    def __init__(
        self,
        runner: Runner,
        inbox: SimpleQueue[CodecMessage | None],
        deliver: Deliver,
        sounded: Callable[[Sounded], None],
        cancel: Callable[[StreamId], None],
        clock: Callable[[], float],
    ) -> None:
        """``cancel`` asks for the end of a stream that failed here."""
        spec = runner.spec
        self._runner = runner
        self._inbox = inbox
        self._deliver = deliver
        self._sounded = sounded
        self._cancel = cancel
        self._clock = clock
        self._frame_s = spec.frame_samples / spec.sample_rate
        self._sizes = tuple(sorted(spec.pcm_batch_frames, reverse=True))
        self._listeners: dict[StreamId, Listener] = {}
        self._lines: dict[int, deque[Stretch]] = {}
        """Per slot the stretches that still hold frames: the first owns the slot's state."""
        self._failed: set[StreamId] = set()
        """Streams that failed here and that the decode thread has not let go of yet."""
        self._passable: set[StreamId] = set()
        """Streams whose next item may be one that needs no decoding."""
        self._patience_s: float | None = None
        """How long nothing is due if no message comes, as of the last look; None: for ever."""
        self._stopped = False

    def run(self) -> None:
        """Until ``None`` comes."""
        while not self._stopped:
            try:
                self._note(self._inbox.get(timeout=self._patience_s))
            except Empty:
                pass
            self._drain()
            while not self._stopped and self.work():
                self._drain()

    def _note(self, message: CodecMessage | None) -> None:
        if message is None:
            self._stopped = True
        else:
            self.take(message)

    def _drain(self) -> None:
        try:
            while not self._stopped:
                self._note(self._inbox.get_nowait())
        except Empty:
            return

    def take(self, message: CodecMessage) -> None:
        """Note a message; nothing is decoded yet."""
        match message:
            case CodecFrames(streams, codes):
                for stream, frame in zip(streams, codes, strict=True):
                    if (listener := self._listeners.get(stream)) is not None:
                        listener.frame(frame)
                return
            case CodecDrop(stream):
                self._failed.discard(stream)
                self._forget(stream)
                return
            case _:
                stream = message.stream
        if stream in self._failed:
            if isinstance(message, CodecFinish):
                self._failed.discard(stream)
            return
        self._passable.add(stream)
        match message:
            case CodecBegin():
                stretch = self._listener(stream).begin(message)
                self._lines.setdefault(stretch.slot, deque()).append(stretch)
            case CodecPark():
                self._listeners[stream].park()
            case CodecEnd():
                if (listener := self._listeners.get(stream)) is not None:
                    listener.end()
            case CodecSilence() | CodecMark() | CodecFinish():
                self._listener(stream).add(message)

    def _listener(self, stream: StreamId) -> Listener:
        listener = self._listeners.get(stream)
        if listener is None:
            listener = Listener(stream, self._runner.spec, self._sounded)
            self._listeners[stream] = listener
        return listener

    def _forget(self, stream: StreamId) -> None:
        listener = self._listeners.pop(stream, None)
        if listener is not None:
            listener.drop()

    def work(self) -> bool:
        """Deliver what is ready and decode one group of what is due; False when nothing is."""
        now = self._clock()
        events: list[Event] = []
        while self._passable:
            stream = self._passable.pop()
            if (listener := self._listeners.get(stream)) is not None:
                listener.due_s = 0.0
                events += listener.ready(now)
                if listener.finished:
                    del self._listeners[stream]
        rows = self._due(now)
        if events:
            self._deliver(events)
        if rows:
            # The listeners that are worst off first, with everybody who needs as many frames.
            rows.sort(key=lambda row: row.lead_s)
            frames = rows[0].frames
            alike = [row for row in rows if row.frames == frames]
            sound = self._decode(alike[: max(1, MOST_AT_ONCE_FRAMES // frames)], now)
            if sound:
                self._deliver(sound)
        return bool(rows or events)

    def _heads(self, now: float) -> Iterator[tuple[StreamId, Listener, Stretch, deque[Stretch]]]:
        """Whose next item is sound that their slot's state is ready for and that may be due, with
        the slot's line."""
        for stream, listener in self._listeners.items():
            if listener.due_s > now:
                continue
            if (head := listener.head) is not None:
                line = self._lines[head.slot]
                while line[0].over:
                    line.popleft()
                if line[0] is head:
                    yield stream, listener, head, line

    def _due(self, now: float) -> list[_Row]:
        rows: list[_Row] = []
        for stream, listener, stretch, line in self._heads(now):
            lead_s = listener.playout.lead_s(now)
            ready = len(stretch.codes)
            count = due_frames(ready, stretch.complete, lead_s, self._frame_s)
            if not count:
                wait_s = due_in_s(ready, lead_s, self._frame_s)
                listener.due_s = now + (math.inf if wait_s is None else wait_s)
                continue
            if not stretch.complete:
                # One size that the device is fast at; the rest of them can wait for more.
                count = next((size for size in self._sizes if size <= count), count)
            if len(line) > 1:  # whoever has the slot next waits for this one
                lead_s = min(lead_s, *(behind.playout.lead_s(now) for behind in line))
            rows.append(_Row(stream, listener, stretch, min(count, self._sizes[0]), lead_s))
        if not rows:
            times = (item.due_s for item in self._listeners.values() if item.due_s > now)
            until_s = min(times, default=math.inf)
            self._patience_s = None if until_s == math.inf else until_s - now
        return rows

    def _decode(self, rows: list[_Row], now: float) -> list[Event]:
        try:
            pcm = self._samples(rows)
        except Exception:
            log.exception("the codec failed on %d rows", len(rows))
            return [self._broken(row.stream) for row in rows]
        done = self._clock()
        self._drain()  # who was cancelled meanwhile hears nothing of this any more
        events: list[Event] = []
        for row, samples in zip(rows, pcm, strict=True):
            if row.stretch.over:
                self._passable.add(row.stream)
            if self._listeners.get(row.stream) is row.listener:
                events += row.listener.sound(row.stretch, samples, now, done)
        return events

    def _samples(self, rows: list[_Row]) -> Int16Array:
        """int16 [rows, samples] of the rows' next frames, decoded in sizes the device knows."""
        slots = tuple(row.stretch.slot for row in rows)
        fresh = np.array([not row.stretch.begun for row in rows], np.bool_)
        left = rows[0].frames
        parts: list[Int16Array] = []
        while left:
            size = next((size for size in self._sizes if size <= left), left)
            flat: list[Int32Array] = []
            for row in rows:
                flat += row.stretch.take(size)
            columns = np.array(flat, np.int32).reshape(len(rows), size, -1)
            parts.append(self._runner.vocode(VocodeBatch(slots, columns, fresh)))
            fresh = np.zeros_like(fresh)
            left -= size
        return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)

    def _broken(self, stream: StreamId) -> Event:
        if not self._listeners[stream].ends:  # else the decode thread has let go of it
            self._failed.add(stream)
        self._forget(stream)
        self._cancel(stream)
        return Failed(stream, Fault.ENGINE, "the codec failed")

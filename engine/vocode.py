"""The codec's thread: frames of codes into PCM, paced by each listener's lead, and delivery.

Owns the order of everything a stream hears - audio, marks, the end - and the playout clock that
pacing goes by. Knows nothing of text or of the slow stack; slots matter only because codec state
lives in them. Frames of one slot's earlier stretch are always decoded before a later one's.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue

import numpy as np

from .api import (
    Deliver,
    Event,
    Failed,
    Fault,
    Finished,
    Flushed,
    Pcm,
    SegmentStarted,
    StreamId,
    Timing,
)
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
    FirstTimes,
    Sounded,
)
from .pacing import Playout, due_frames, due_in_s
from .runner import Int16Array, Int32Array, Runner, VocodeBatch

MOST_AT_ONCE_FRAMES = 128
"""Frames that one call to the device decodes at most, all rows together, unless one frame a row is
more: a call ends soon, so that a first sound that became due meanwhile does not wait for hundreds
of rows that are ahead. A GPU is as fast at this many as at more."""

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Stretch:
    """Frames decoded from silence on one slot."""

    slot: int
    text: str | None
    times: FirstTimes | None
    playout: Playout
    codes: deque[Int32Array] = field(default_factory=deque["Int32Array"])
    complete: bool = False
    begun: bool = False
    skip: int = 0
    """Frames at its beginning that were delivered before it was parked."""
    decoded: int = 0

    def again(self, slot: int) -> _Stretch:
        """The same from its beginning, on ``slot``, once it was parked."""
        delivered = max(self.skip, self.decoded)
        text, times = (None, None) if delivered else (self.text, self.times)
        return _Stretch(slot, text, times, self.playout, skip=delivered)

    @property
    def over(self) -> bool:
        return self.complete and not self.codes


@dataclass(slots=True, eq=False)
class _Listener:
    """One stream's outgoing side: what waits, in order, and what was sent."""

    items: deque[_Stretch | CodecSilence | CodecMark | CodecFinish] = field(
        default_factory=deque["_Stretch | CodecSilence | CodecMark | CodecFinish"]
    )
    playout: Playout = field(default_factory=Playout)
    parked: _Stretch | None = None
    due_s: float = 0.0
    """Before this time what it holds is not due, unless it gets more."""
    seq: int = 0
    frames: int = 0
    samples: int = 0
    segments: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class _Row:
    """Frames of one stream that are to be decoded now."""

    stream: StreamId
    listener: _Listener
    stretch: _Stretch
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
        self._frame_samples = spec.frame_samples
        self._frame_s = spec.frame_samples / spec.sample_rate
        self._sizes = tuple(sorted(spec.pcm_batch_frames, reverse=True))
        self._listeners: dict[StreamId, _Listener] = {}
        self._lines: dict[int, deque[_Stretch]] = {}
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
                    listener = self._listeners.get(stream)
                    if listener is not None and listener.items:
                        if isinstance(stretch := listener.items[-1], _Stretch):
                            stretch.codes.append(frame)
                            listener.due_s = 0.0
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
            case CodecBegin(_, slot, text, times, again):
                listener = self._listeners.setdefault(stream, _Listener())
                stretch = _Stretch(slot, text, times, listener.playout)
                if again:
                    assert listener.parked is not None
                    stretch, listener.parked = listener.parked.again(slot), None
                self._lines.setdefault(slot, deque()).append(stretch)
                listener.items.append(stretch)
            case CodecPark():
                listener = self._listeners[stream]
                stretch = listener.items.pop()
                assert isinstance(stretch, _Stretch)
                stretch.complete = True
                stretch.codes.clear()
                listener.parked = stretch
            case CodecEnd():
                if (stretch := self._last_stretch(stream)) is not None:
                    stretch.complete = True
            case CodecSilence() | CodecMark() | CodecFinish():
                stretch = self._last_stretch(stream)
                if stretch is not None:  # a stream that fails does so in the middle of one
                    stretch.complete = True
                self._listeners.setdefault(stream, _Listener()).items.append(message)

    def _last_stretch(self, stream: StreamId) -> _Stretch | None:
        listener = self._listeners.get(stream)
        last = listener.items[-1] if listener is not None and listener.items else None
        return last if isinstance(last, _Stretch) else None

    def _forget(self, stream: StreamId) -> None:
        listener = self._listeners.pop(stream, None)
        for item in listener.items if listener is not None else ():
            if isinstance(item, _Stretch):
                item.complete = True
                item.codes.clear()

    def work(self) -> bool:
        """Deliver what is ready and decode one group of what is due; False when nothing is."""
        now = self._clock()
        events: list[Event] = []
        while self._passable:
            stream = self._passable.pop()
            if (listener := self._listeners.get(stream)) is not None:
                listener.due_s = 0.0
                self._pass_ready(stream, now, events)
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

    def _heads(self, now: float) -> Iterator[tuple[StreamId, _Listener, _Stretch, deque[_Stretch]]]:
        """Whose next item is sound that their slot's state is ready for and that may be due, with
        the slot's line."""
        for stream, listener in self._listeners.items():
            if listener.due_s > now:
                continue
            head = listener.items[0] if listener.items else None
            if isinstance(head, _Stretch) and head.codes:
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
            stretch, listener = row.stretch, row.listener
            if stretch.over:
                self._passable.add(row.stream)
            if self._listeners.get(row.stream) is not listener:
                continue
            timing = None
            if not stretch.begun:
                stretch.begun = True
                if stretch.text is not None:
                    events.append(self._segment(row.stream, listener, stretch.text))
                if stretch.times is not None:
                    timing = _timing(stretch.times, now, done)
            # What was decoded before this of the stretch was skipped likewise.
            known = max(0, min(row.frames, stretch.skip - stretch.decoded + row.frames))
            if known < row.frames:
                heard = samples[known * self._frame_samples :].astype("<i2", copy=False)
                count = row.frames - known
                events.append(self._pcm(row.stream, listener, heard.tobytes(), count, done, timing))
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
                codes = row.stretch.codes
                flat += [codes.popleft() for _ in range(size)]
                row.stretch.decoded += size
            columns = np.array(flat, np.int32).reshape(len(rows), size, -1)
            parts.append(self._runner.vocode(VocodeBatch(slots, columns, fresh)))
            fresh = np.zeros_like(fresh)
            left -= size
        return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)

    def _broken(self, stream: StreamId) -> Event:
        items = self._listeners[stream].items
        if not isinstance(items[-1], CodecFinish):  # else the decode thread has let go of it
            self._failed.add(stream)
        self._forget(stream)
        self._cancel(stream)
        return Failed(stream, Fault.ENGINE, "the codec failed")

    def _pass_ready(self, stream: StreamId, now: float, events: list[Event]) -> None:
        """Deliver what needs no decoding and stands first in the stream's line."""
        listener = self._listeners[stream]
        while listener.items:
            match item := listener.items[0]:
                case _Stretch(text=text):
                    if not item.over:
                        return
                    if not item.begun and text is not None:  # the model had nothing to say
                        events.append(self._segment(stream, listener, text))
                case CodecSilence(_, text, frames):
                    if text is not None:
                        events.append(self._segment(stream, listener, text))
                    quiet = bytes(2 * frames * self._frame_samples)
                    events.append(self._pcm(stream, listener, quiet, frames, now, None))
                case CodecMark(_, mark):
                    events.append(Flushed(stream, mark, listener.samples))
                case CodecFinish(_, failure):
                    del self._listeners[stream]
                    events.append(
                        failure
                        or Finished(stream, listener.frames, listener.samples, listener.segments)
                    )
                    return
            listener.items.popleft()

    def _segment(self, stream: StreamId, listener: _Listener, text: str) -> Event:
        listener.segments += 1
        return SegmentStarted(stream, listener.segments - 1, text, listener.samples)

    def _pcm(
        self,
        stream: StreamId,
        listener: _Listener,
        data: bytes,
        frames: int,
        now: float,
        timing: Timing | None,
    ) -> Event:
        if listener.playout.sent(frames * self._frame_s, now):
            self._sounded(Sounded(stream, now, listener.frames))
        listener.seq += 1
        listener.frames += frames
        listener.samples += frames * self._frame_samples
        return Pcm(stream, listener.seq - 1, data, timing)


def _timing(times: FirstTimes, ready_s: float, done_s: float) -> Timing:
    """``ready_s``: the first chunk's frames were there; ``done_s``: so was its sound."""
    wait_s = times.slot_s - times.asked_s
    return Timing(
        wait_s=wait_s,
        prefill_s=times.joined_s - times.text_s - wait_s,
        first_frames_s=ready_s - times.joined_s,
        codec_s=done_s - ready_s,
    )

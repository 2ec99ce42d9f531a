"""The codec's thread: frames of codes into PCM, paced by each listener's lead, and delivery.

Owns the order of everything a stream hears - audio, marks, the end - and the playout clock that
pacing goes by. Knows nothing of text or of the slow stack; slots matter only because codec state
lives in them. Frames of one slot's earlier stretch are always decoded before a later one's.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
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
    CodecSilence,
    FirstTimes,
    Sounded,
)
from .pacing import Playout, due_frames
from .runner import Int32Array, Runner, VocodeBatch

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Stretch:
    """Frames decoded from silence on one slot."""

    slot: int
    text: str | None
    times: FirstTimes | None
    codes: deque[Int32Array] = field(default_factory=deque["Int32Array"])
    complete: bool = False
    begun: bool = False


@dataclass(slots=True, eq=False)
class _Listener:
    """One stream's outgoing side: what waits, in order, and what was sent."""

    items: deque[_Stretch | CodecSilence | CodecMark | CodecFinish] = field(
        default_factory=deque["_Stretch | CodecSilence | CodecMark | CodecFinish"]
    )
    playout: Playout = field(default_factory=Playout)
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
    """``run`` is the thread's body; :meth:`take` and :meth:`work` are its parts, for tests."""

    def __init__(
        self,
        runner: Runner,
        inbox: SimpleQueue[CodecMessage | None],
        deliver: Deliver,
        sounded: Callable[[Sounded], None],
        cancel: Callable[[StreamId], None],
        silence_s: float,
        clock: Callable[[], float],
    ) -> None:
        spec = runner.spec
        self._runner = runner
        self._inbox = inbox
        self._deliver = deliver
        self._sounded = sounded
        self._cancel = cancel
        self._clock = clock
        self._frame_samples = spec.frame_samples
        self._rate = spec.sample_rate
        self._frame_s = spec.frame_samples / spec.sample_rate
        self._sizes = spec.pcm_batch_frames
        self._silence_frames = max(1, round(silence_s / self._frame_s))
        self._listeners: dict[StreamId, _Listener] = {}
        self._order: deque[tuple[int, _Stretch]] = deque()
        """Stretches that still hold frames, in the order they began: who owns a slot's state."""

    def run(self) -> None:
        """Until ``None`` comes."""
        while (message := self._inbox.get()) is not None:
            self.take(message)
            if not self._drain():
                return
            while self.work():
                if not self._drain():
                    return

    def _drain(self) -> bool:
        try:
            while True:
                message = self._inbox.get_nowait()
                if message is None:
                    return False
                self.take(message)
        except Empty:
            return True

    def take(self, message: CodecMessage) -> None:
        """Note a message; nothing is decoded yet."""
        match message:
            case CodecFrames(streams, codes):
                for stream, frame in zip(streams, codes, strict=True):
                    listener = self._listeners.get(stream)
                    if listener is not None:
                        stretch = listener.items[-1]
                        assert isinstance(stretch, _Stretch)
                        stretch.codes.append(frame)
                return
            case CodecBegin(stream, slot, text, times):
                stretch = _Stretch(slot, text, times)
                self._order.append((slot, stretch))
                self._listeners.setdefault(stream, _Listener()).items.append(stretch)
            case CodecEnd(stream):
                listener = self._listeners.get(stream)
                if listener is not None:
                    stretch = listener.items[-1]
                    assert isinstance(stretch, _Stretch)
                    stretch.complete = True
            case CodecDrop(stream):
                listener = self._listeners.pop(stream, None)
                for item in listener.items if listener is not None else ():
                    if isinstance(item, _Stretch):
                        item.complete = True
                        item.codes.clear()
            case (
                CodecSilence(stream=stream) | CodecMark(stream=stream) | CodecFinish(stream=stream)
            ):
                self._listeners.setdefault(stream, _Listener()).items.append(message)

    def work(self) -> bool:
        """Decode one group of what is due and deliver it; False when nothing is."""
        now = self._clock()
        events: list[Event] = []
        for stream in list(self._listeners):
            self._pass_ready(stream, now, events)
        rows = self._due(now)
        if rows:
            # The listeners that are worst off first, with everybody who needs as many frames.
            rows.sort(key=lambda row: row.lead_s)
            group = [row for row in rows if row.frames == rows[0].frames]
            events.extend(self._decode(group, now))
        if events:
            self._deliver(events)
        return bool(rows or events)

    def _due(self, now: float) -> list[_Row]:
        while self._order and self._order[0][1].complete and not self._order[0][1].codes:
            self._order.popleft()
        owners: dict[int, _Stretch] = {}
        for slot, stretch in self._order:
            if stretch.codes or not stretch.complete:
                owners.setdefault(slot, stretch)
        rows: list[_Row] = []
        for stream, listener in self._listeners.items():
            stretch = listener.items[0] if listener.items else None
            if not isinstance(stretch, _Stretch) or owners.get(stretch.slot) is not stretch:
                continue
            lead = listener.playout.lead_s(now)
            first = listener.playout.since_s is None or lead <= 0.0
            count = due_frames(len(stretch.codes), stretch.complete, first, lead, self._frame_s)
            if count:
                allowed = max(size for size in self._sizes if size <= max(count, self._sizes[0]))
                rows.append(_Row(stream, listener, stretch, min(allowed, count), lead))
        return rows

    def _decode(self, rows: list[_Row], now: float) -> list[Event]:
        codes = np.stack(
            [np.stack([row.stretch.codes.popleft() for _ in range(row.frames)]) for row in rows]
        )
        batch = VocodeBatch(
            tuple(row.stretch.slot for row in rows),
            codes,
            np.array([not row.stretch.begun for row in rows], np.bool_),
        )
        try:
            pcm = self._runner.vocode(batch)
        except Exception:
            log.exception("the codec failed on %d rows", len(rows))
            return [self._broken(row.stream) for row in rows]
        done = self._clock()
        events: list[Event] = []
        for row, samples in zip(rows, pcm, strict=True):
            stretch, listener = row.stretch, row.listener
            timing = None
            if not stretch.begun:
                stretch.begun = True
                if stretch.text is not None:
                    events.append(self._segment(row.stream, listener, stretch.text))
                if stretch.times is not None:
                    times = stretch.times
                    timing = Timing(
                        wait_s=max(0.0, times.slot_s - times.text_s),
                        prefill_s=times.prefilled_s - times.slot_s,
                        first_frames_s=now - times.prefilled_s,
                        codec_s=done - now,
                    )
            events.append(self._pcm(row.stream, listener, samples.astype("<i2").tobytes(), timing))
            listener.frames += row.frames
        return events

    def _broken(self, stream: StreamId) -> Event:
        self.take(CodecDrop(stream))
        self._cancel(stream)
        return Failed(stream, Fault.ENGINE, "the codec failed")

    def _pass_ready(self, stream: StreamId, now: float, events: list[Event]) -> None:
        """Deliver what needs no decoding and stands first in the stream's line."""
        listener = self._listeners[stream]
        while listener.items:
            match item := listener.items[0]:
                case _Stretch():
                    if not item.complete or item.codes:
                        return
                case CodecSilence(_, text):
                    events.append(self._segment(stream, listener, text))
                    quiet = bytes(2 * self._silence_frames * self._frame_samples)
                    events.append(self._pcm(stream, listener, quiet, None))
                    listener.frames += self._silence_frames
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
        self, stream: StreamId, listener: _Listener, samples: bytes, timing: Timing | None
    ) -> Event:
        now = self._clock()
        count = len(samples) // 2
        if listener.playout.sent(count / self._rate, now):
            self._sounded(Sounded(stream, now))
        listener.seq += 1
        listener.samples += count
        return Pcm(stream, listener.seq - 1, samples, timing)

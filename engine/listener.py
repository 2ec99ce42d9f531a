"""One stream's outgoing side: what waits for it, in order, what of it is heard, and what was sent.

Owns the stretches of frames that wait, how they are parked and begun again, and the events that
sound, marks and the end become. Knows no slots' order and no device; lives on the codec's thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from .api import Event, Finished, Flushed, Pcm, SegmentStarted, StreamId, Timing
from .jobs import (
    CodecBegin,
    CodecFinish,
    CodecMark,
    CodecSilence,
    FirstTimes,
    Sounded,
)
from .pacing import Playout
from .runner import Int16Array, Int32Array, RunnerSpec
from .spans import Span


@dataclass(slots=True, eq=False)
class Stretch:
    """Frames decoded from silence on one slot."""

    slot: int
    text: str | None
    times: FirstTimes | None
    playout: Playout
    span: Span = field(default=Span())
    codes: deque[Int32Array] = field(default_factory=deque["Int32Array"])
    complete: bool = False
    begun: bool = False
    skip: int = 0
    """Frames at its beginning that were delivered before it was parked."""
    decoded: int = 0

    def again(self, slot: int) -> Stretch:
        """The same from its beginning, on ``slot``, once it was parked."""
        delivered = max(self.skip, self.decoded)
        text, times = (None, None) if delivered else (self.text, self.times)
        return Stretch(slot, text, times, self.playout, self.span, skip=delivered)

    def take(self, count: int) -> list[Int32Array]:
        """Its next ``count`` frames, which are decoded now."""
        self.decoded += count
        return [self.codes.popleft() for _ in range(count)]

    def stop(self) -> None:
        """What waits of it is dropped, and nothing more comes."""
        self.complete = True
        self.codes.clear()

    @property
    def over(self) -> bool:
        return self.complete and not self.codes


Plain = CodecSilence | CodecMark | CodecFinish
"""What needs no decoding."""


class Listener:
    """Who hears one stream. ``sounded`` is told when they had nothing left to play and get more."""

    def __init__(
        self, stream: StreamId, spec: RunnerSpec, sounded: Callable[[Sounded], None]
    ) -> None:
        self.playout = Playout()
        self.due_s = 0.0
        """Before this time what it holds is not due, unless it gets more."""
        self.finished = False
        self._stream = stream
        self._sounded = sounded
        self._frame_samples = spec.frame_samples
        self._frame_s = spec.frame_samples / spec.sample_rate
        self._items: deque[Stretch | Plain] = deque()
        self._parked: Stretch | None = None
        self._seq = 0
        self._frames = 0
        self._samples = 0
        self._segments = 0

    @property
    def head(self) -> Stretch | None:
        """The stretch that is next, if frames of it wait."""
        head = self._items[0] if self._items else None
        return head if isinstance(head, Stretch) and head.codes else None

    @property
    def ends(self) -> bool:
        """Whether nothing more comes behind what waits."""
        return bool(self._items) and isinstance(self._items[-1], CodecFinish)

    def _last(self) -> Stretch | None:
        last = self._items[-1] if self._items else None
        return last if isinstance(last, Stretch) else None

    def begin(self, message: CodecBegin) -> Stretch:
        """The stretch that follows, new or the one that was parked."""
        if message.again:
            assert self._parked is not None
            stretch, self._parked = self._parked.again(message.slot), None
        else:
            text, times = message.text, message.times
            stretch = Stretch(message.slot, text, times, self.playout, message.span)
        self._items.append(stretch)
        return stretch

    def frame(self, codes: Int32Array) -> None:
        """int32 [codebooks], for the last stretch."""
        if (stretch := self._last()) is not None:
            stretch.codes.append(codes)
            self.due_s = 0.0

    def park(self) -> None:
        stretch = self._items.pop()
        assert isinstance(stretch, Stretch)
        stretch.stop()
        self._parked = stretch

    def end(self) -> None:
        """The last stretch is complete."""
        if (stretch := self._last()) is not None:
            stretch.complete = True

    def add(self, item: Plain) -> None:
        self.end()  # a stream that fails does so in the middle of a stretch
        self._items.append(item)

    def drop(self) -> None:
        """Nothing that waits is decoded any more."""
        for item in self._items:
            if isinstance(item, Stretch):
                item.stop()

    def ready(self, now: float) -> list[Event]:
        """What stands first and needs no decoding; it does not stand here any longer."""
        events: list[Event] = []
        while self._items and not self.finished:
            match item := self._items[0]:
                case Stretch(text=text):
                    if not item.over:
                        break
                    if not item.begun and text is not None:  # the model had nothing to say
                        events.append(self._segment(text, item.span))
                case CodecSilence(_, text, frames, span):
                    if text is not None:
                        events.append(self._segment(text, span))
                    quiet = bytes(2 * frames * self._frame_samples)
                    events.append(self._pcm(quiet, frames, now, None))
                case CodecMark(_, mark):
                    events.append(Flushed(self._stream, mark, self._samples))
                case CodecFinish(_, failure):
                    self.finished = True
                    done = Finished(self._stream, self._frames, self._samples, self._segments)
                    events.append(failure or done)
            self._items.popleft()
        return events

    def sound(
        self, stretch: Stretch, samples: Int16Array, ready_s: float, done_s: float
    ) -> list[Event]:
        """The next frames of ``stretch``, whose sound is ``samples`` int16 [frames * samples].

        ``ready_s``: when they were there; ``done_s``: when their sound was.
        """
        events: list[Event] = []
        timing = None
        if not stretch.begun:
            stretch.begun = True
            if stretch.text is not None:
                events.append(self._segment(stretch.text, stretch.span))
            if stretch.times is not None:
                timing = _timing(stretch.times, ready_s, done_s)
        frames = len(samples) // self._frame_samples
        # What was decoded before this of the stretch was skipped likewise.
        known = max(0, min(frames, stretch.skip - stretch.decoded + frames))
        if known < frames:
            heard = samples[known * self._frame_samples :].astype("<i2", copy=False)
            events.append(self._pcm(heard.tobytes(), frames - known, done_s, timing))
        return events

    def _segment(self, text: str, span: Span) -> Event:
        self._segments += 1
        return SegmentStarted(self._stream, self._segments - 1, text, self._samples, span)

    def _pcm(self, data: bytes, frames: int, now: float, timing: Timing | None) -> Event:
        due_s = now + self.playout.lead_s(now)
        if self.playout.sent(frames * self._frame_s, now):
            self._sounded(Sounded(self._stream, now, self._frames))
        self._seq += 1
        self._frames += frames
        self._samples += frames * self._frame_samples
        return Pcm(self._stream, self._seq - 1, data, timing, due_s)


def _timing(times: FirstTimes, ready_s: float, done_s: float) -> Timing:
    """``ready_s``: the first chunk's frames were there; ``done_s``: so was its sound."""
    wait_s = times.slot_s - times.asked_s
    return Timing(
        wait_s=wait_s,
        prefill_s=times.joined_s - times.text_s - wait_s,
        first_frames_s=ready_s - times.joined_s,
        codec_s=done_s - ready_s,
    )

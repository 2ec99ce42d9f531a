"""``FakeEngine``: the engine's port with a tone instead of a voice. No torch, no weights.

For tests, demos and load-test dry runs. It keeps the port's promises: slots that a stream holds
only while it speaks, a bounded wait, cancel and pause at a step's boundary, batches of events in
order. Text is cut by the rules of the real engine, but every sentence is a segment, however short,
so that what it says is a function of text, flushes, voice and seed alone while text comes without
long pauses. One thread owns all state; commands come in by a queue.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from .api import (
    Cancel,
    Command,
    Deliver,
    EndText,
    EngineInfo,
    EngineStats,
    Event,
    Failed,
    Fault,
    Finished,
    Flush,
    Flushed,
    OnFatal,
    Open,
    Opened,
    Pause,
    Pcm,
    Prepare,
    Priority,
    PushText,
    Resume,
    Sampling,
    SegmentStarted,
    StreamId,
    Timing,
    Voice,
    VoiceInfo,
)
from .fake_tone import frame, frame_count, pitch_hz
from .spans import Span
from .text import FlushMark, Segment, TextFeed, TextLimitError
from .voices import UnknownVoice, VoiceStore

CHUNK_FRAMES = 2
SILENCE_FRAMES = 2
"""What is heard instead of text with nothing to speak in it."""
HELD_SEGMENTS = 2
_TICK_S = 0.02  # how often is looked whether somebody waited too long, or text was long enough
_AUDIO_MAGIC = (b"RIFF", b"ID3", b"fLaC", b"OggS", b"\xff\xfb", b"\xff\xf3", b"\xff\xf2")


@dataclass(slots=True)
class _Stream:
    """One turn; owned by the engine's thread."""

    open: Open
    feed: TextFeed
    ready: deque[Segment | FlushMark] = field(default_factory=deque["Segment | FlushMark"])
    paused: bool = False
    slot: bool = False
    waiting_since_s: float | None = None
    first_text_s: float | None = None
    slot_s: float = 0.0
    speaking: int = 0  # frames that the segment still has
    spoken: int = 0  # and those that it had
    held: list[bytes] = field(default_factory=list[bytes])  # frames not yet delivered
    seq: int = 0
    timed: bool = False
    frames: int = 0
    samples: int = 0
    segments: int = 0

    @property
    def backfill(self) -> bool:
        return self.open.priority is Priority.BATCH

    @property
    def has_work(self) -> bool:
        return bool(self.speaking or self.held or self.ready)

    def read(self, now_s: float) -> None:
        """Take what its text is ready to give. There is always more to hear first: no early cut."""
        while len(self.ready) < HELD_SEGMENTS:
            item = self.feed.take(now_s, True)
            if item is None:
                return
            self.ready.append(item)


class FakeEngine:
    """See the module. ``speed`` is how many times faster than real time one slot speaks."""

    def __init__(
        self,
        *,
        slots: int = 4,
        speed: float = 20.0,
        sample_rate: int = 24_000,
        frame_samples: int = 1_200,
        wait_s: float = 1.0,
        max_waiting: int = 8,
        voices: Sequence[str] = ("default",),
        warm_up_s: float = 0.0,
        fails_on: str = "",
        store: VoiceStore | None = None,
    ) -> None:
        """``fails_on``: a segment that contains it makes its stream fail, as a fault of ours.
        ``store`` has further voices; each sounds like its id."""
        self._info = EngineInfo(
            model="fake-tone",
            sample_rate=sample_rate,
            frame_samples=frame_samples,
            codebooks=0,
            slots=slots,
            max_positions=0,
            device="none",
            sampling=Sampling(temperature=0.0, top_p=1.0, top_k=0, max_frames_per_segment=2048),
            note="a fake engine: tones instead of speech",
        )
        self._step_s = frame_samples / sample_rate / speed
        self._wait_s = wait_s
        self._max_waiting = max_waiting
        self._voices = tuple(voices)
        self._warm_up_s = warm_up_s
        self._fails_on = fails_on
        self._store = store
        self._commands: queue.SimpleQueue[Command | None] = queue.SimpleQueue()
        self._streams: dict[StreamId, _Stream] = {}
        self._stats = EngineStats()
        self._frames = 0
        self._thread: threading.Thread | None = None

    @property
    def info(self) -> EngineInfo:
        return self._info

    def start(self, deliver: Deliver, on_fatal: OnFatal) -> None:
        time.sleep(self._warm_up_s)
        self._thread = threading.Thread(
            target=self._run, args=(deliver, on_fatal), name="fake-engine", daemon=True
        )
        self._thread.start()

    def submit(self, command: Command) -> None:
        self._commands.put(command)

    def stats(self) -> EngineStats:
        return self._stats

    def voices(self) -> Sequence[VoiceInfo]:
        stored = self._store.list() if self._store is not None else ()
        return [*(VoiceInfo(voice, 10.0, 0.0) for voice in self._voices), *stored]

    def stop(self) -> None:
        if self._thread is not None:
            self._commands.put(None)
            self._thread.join()
            self._thread = None

    # The thread ---------------------------------------------------------------------------------

    def _run(self, deliver: Deliver, on_fatal: OnFatal) -> None:
        try:
            while self._take_commands(events := []):
                self._admit(events)
                stepped = self._step(events)
                self._snapshot()
                if events:
                    deliver(events)
                if stepped:
                    time.sleep(self._step_s)
        except Exception as error:  # the edge of the thread
            on_fatal(error)

    def _take_commands(self, events: list[Event]) -> bool:
        """Apply what has come in; block while there is nothing else to do. False: stop."""
        streams = self._streams.values()
        ticks = any(s.waiting_since_s is not None or not s.feed.empty for s in streams)
        block = not any(s.slot and not s.paused and s.has_work for s in streams)
        while True:
            try:
                command = self._commands.get(block, timeout=_TICK_S if ticks else None)
            except queue.Empty:
                return True
            if command is None:
                return False
            self._apply(command, events)
            block = False

    def _apply(self, command: Command, events: list[Event]) -> None:
        match command:
            case Prepare():
                return
            case Open(stream=stream, voice=voice, segmentation=rules):
                self._streams[stream] = _Stream(command, TextFeed(replace(rules, min_chars=0)))
                if problem := self._problem(voice):
                    self._fail(stream, Fault.CLIENT, problem, events)
                else:
                    events.append(Opened(stream, prefill_s=0.0, cached=True))
            case Cancel(stream=stream):
                self._streams.pop(stream, None)
            case _:
                known = self._streams.get(command.stream)
                if known is not None:
                    self._apply_to(known, command, events)

    def _apply_to(
        self,
        stream: _Stream,
        command: PushText | Flush | EndText | Pause | Resume,
        events: list[Event],
    ) -> None:
        try:
            match command:
                case PushText(text=text):
                    if stream.first_text_s is None:
                        stream.first_text_s = time.monotonic()
                    stream.feed.push(text, time.monotonic())
                case Flush(mark=mark):
                    stream.feed.flush(mark)
                case EndText():
                    stream.feed.end()
                case Pause():
                    stream.paused = True
                case Resume():
                    stream.paused = False
        except TextLimitError as error:
            self._fail(command.stream, Fault.CLIENT, str(error), events)

    def _problem(self, voice: Voice) -> str:
        if voice.speakers:
            return next((text for one in voice.speakers if (text := self._problem(one))), "")
        if voice.voice_id is not None:
            return "" if self._knows(voice.voice_id) else "Reference not found"
        for number, reference in enumerate(voice.references, 1):
            if not reference.audio.startswith(_AUDIO_MAGIC):
                return f"reference {number} is not audio"
        return ""

    def _knows(self, voice_id: str) -> bool:
        if voice_id in self._voices:
            return True
        if self._store is None:
            return False
        try:
            self._store.load(voice_id)
        except UnknownVoice:
            return False
        return True

    def _admit(self, events: list[Event]) -> None:
        """Give free slots to who waits longest; refuse who waited too long or finds a queue."""
        now_s = time.monotonic()
        free = self._info.slots - sum(s.slot for s in self._streams.values())
        waiting: list[tuple[bool, float, StreamId]] = []
        for stream_id, stream in list(self._streams.items()):
            self._settle(stream_id, stream, events)
            if not stream.has_work or stream.slot:
                continue
            if stream.waiting_since_s is None:
                stream.waiting_since_s = now_s
            waiting.append((stream.backfill, stream.waiting_since_s, stream_id))
        # A frame is all that a stream of batch priority ever holds up.
        live = sum(not batch for batch, _, _ in waiting)
        for stream in self._streams.values():
            if stream.slot and stream.backfill and free < live:
                stream.slot, stream.waiting_since_s, free = False, now_s, free + 1
        for place, (batch, since_s, stream_id) in enumerate(sorted(waiting)):
            stream = self._streams[stream_id]
            if place < free:
                stream.slot, stream.slot_s, stream.waiting_since_s = True, now_s, None
            elif not batch and (
                now_s - since_s > self._wait_s or place - free >= self._max_waiting
            ):
                self._fail(stream_id, Fault.BUSY, "Concurrency limit exceeded", events)

    def _settle(self, stream_id: StreamId, stream: _Stream, events: list[Event]) -> None:
        """Answer marks and the end where no audio stands before them."""
        stream.read(time.monotonic())
        while not stream.speaking and not stream.held and stream.ready:
            match stream.ready[0]:
                case FlushMark(mark):
                    events.append(Flushed(stream_id, mark, stream.samples))
                case Segment(text, speakable, _, span):
                    if speakable or stream.paused:
                        return
                    self._begin(stream_id, stream, text, span, events)
                    quiet = bytes(2 * SILENCE_FRAMES * self._info.frame_samples)
                    stream.frames += SILENCE_FRAMES
                    self._deliver_sound(stream_id, stream, quiet, None, events)
            stream.ready.popleft()
            stream.read(time.monotonic())
        if stream.feed.ended and not stream.has_work:
            events.append(Finished(stream_id, stream.frames, stream.samples, stream.segments))
            del self._streams[stream_id]
        elif not stream.has_work:
            stream.slot, stream.waiting_since_s = False, None

    def _step(self, events: list[Event]) -> bool:
        """One frame for every stream that holds a slot. False when none did anything."""
        stepped = False
        for stream_id, stream in list(self._streams.items()):
            if stream.slot and not stream.paused and stream.has_work:
                stepped = True
                self._speak(stream_id, stream, events)
        return stepped

    def _speak(self, stream_id: StreamId, stream: _Stream, events: list[Event]) -> None:
        if not stream.speaking and isinstance(segment := stream.ready[0], Segment):
            stream.ready.popleft()
            if self._fails_on and self._fails_on in segment.text:
                self._fail(stream_id, Fault.ENGINE, "the engine failed", events)
                return
            info = self._info
            stream.speaking = frame_count(segment.text, info.sample_rate, info.frame_samples)
            stream.spoken = 0
            self._begin(stream_id, stream, segment.text, segment.span, events)
        stream.held.append(self._next_frame(stream))
        stream.speaking -= 1
        stream.spoken += 1
        stream.frames += 1
        self._frames += 1
        if len(stream.held) < CHUNK_FRAMES and stream.speaking:
            return
        samples = b"".join(stream.held)
        stream.held.clear()
        self._deliver_sound(stream_id, stream, samples, self._timing(stream), events)
        self._settle(stream_id, stream, events)

    @staticmethod
    def _begin(
        stream_id: StreamId, stream: _Stream, text: str, span: Span, events: list[Event]
    ) -> None:
        events.append(SegmentStarted(stream_id, stream.segments, text, stream.samples, span))
        stream.segments += 1

    @staticmethod
    def _deliver_sound(
        stream_id: StreamId,
        stream: _Stream,
        samples: bytes,
        timing: Timing | None,
        events: list[Event],
    ) -> None:
        events.append(Pcm(stream_id, stream.seq, samples, timing))
        stream.seq += 1
        stream.samples += len(samples) // 2

    def _next_frame(self, stream: _Stream) -> bytes:
        at_hz = pitch_hz(stream.open.voice.voice_id or "", stream.open.sampling.seed or 0)
        return frame(stream.spoken, at_hz, self._info.sample_rate, self._info.frame_samples)

    def _timing(self, stream: _Stream) -> Timing | None:
        if stream.timed or stream.first_text_s is None:
            return None
        stream.timed = True
        now_s = time.monotonic()
        return Timing(stream.slot_s - stream.first_text_s, 0.0, now_s - stream.slot_s, 0.0)

    def _fail(self, stream: StreamId, fault: Fault, message: str, events: list[Event]) -> None:
        if self._streams.pop(stream, None) is not None:
            events.append(Failed(stream, fault, message))

    def _snapshot(self) -> None:
        streams = list(self._streams.values())
        now_s = time.monotonic()
        waits = [now_s - s.waiting_since_s for s in streams if s.waiting_since_s is not None]
        self._stats = replace(
            self._stats,
            slots_busy=sum(s.slot for s in streams),
            batch_slots=sum(s.slot and s.backfill for s in streams),
            streams_open=len(streams),
            streams_waiting=len(waits),
            oldest_wait_s=max(waits, default=0.0),
            steps=self._stats.steps + 1,
            frames=self._frames,
            last_step_s=self._step_s,
        )

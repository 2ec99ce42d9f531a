"""The engine's decisions: which stream is prepared, seated, fed, refused or ended, and when.

Owns all streams and everything they hold. Pure: the clock is an argument, commands and messages
come in as calls, and what is to be sent lies in :attr:`Scheduler.out` afterwards. Knows nothing of
threads, queues or the device. One thread: decode's.

A stream is opened, its voice prepared and prefilled; it then costs nothing but an evictable cache
entry. Text makes segments, which are composed into utterances; the first utterance asks for a
slot. A stream that has begun to speak keeps its turn: only streams that still wait for their first
slot are refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .api import (
    Cancel,
    Command,
    EndText,
    EngineStats,
    Failed,
    Fault,
    Flush,
    Open,
    Opened,
    Pause,
    Prepare,
    PushText,
    Resume,
    Sampling,
    StreamId,
)
from .batch import Batch, Outgoing
from .config import Limits
from .jobs import (
    CodecDrop,
    CodecFinish,
    CodecMark,
    CodecSilence,
    Composed,
    ComposeJob,
    Prefilled,
    Sounded,
    ToDecode,
    VoiceFailed,
    VoiceReady,
)
from .memory import Memory
from .prefixes import Prefix
from .runner import Int32Array, RunnerSpec, SlotSampling, StepPlan, StepResult
from .streams import Phase, Stream
from .text import FlushMark, Segment, TextFeed, TextLimitError
from .voicing import Voicing

BUSY = "all slots are busy, try again in a moment"


@dataclass(frozen=True, slots=True, eq=False)
class VoiceDefaults:
    """What the loaded model brings: sampling, bounds, the default voice's prefix, ``closing``."""

    sampling: Sampling
    max_segment_chars: int | None
    max_context: int
    prefix: Int32Array
    closing: Int32Array


class Scheduler:
    """``fresh_seed`` gives a seed for a stream that brings none."""

    def __init__(
        self,
        spec: RunnerSpec,
        limits: Limits,
        defaults: VoiceDefaults,
        fresh_seed: Callable[[], int],
    ) -> None:
        self._spec = spec
        self._limits = limits
        self._defaults = defaults
        self._fresh_seed = fresh_seed
        self.out = Outgoing()
        self._memory = Memory(spec.pages, spec.page_tokens, limits.prefixes)
        self._batch = Batch(
            spec, limits, self._memory, defaults.closing, defaults.max_context, self.out
        )
        self._streams: dict[StreamId, Stream] = {}
        self._awake: dict[StreamId, Stream] = {}
        self._opened = 0
        self._jobs = 0
        self._turns: dict[int, Stream] = {}
        self._voicing = Voicing(
            defaults.prefix, self._memory, limits.prefill_chunk_tokens, self.out
        )

    # Commands ---------------------------------------------------------------------------------

    def command(self, command: Command, now: float) -> None:
        """Take a command in. Ids that are not known are ignored."""
        match command:
            case Open():
                self._open(command, now)
                return
            case Prepare(voice):
                self._voicing.prepare(voice, None)
                return
            case _:
                stream = self._streams.get(command.stream)
        if stream is None:
            return
        match command:
            case PushText(_, text):
                self._push(stream, text, now)
            case Flush(_, mark):
                self._guarded(stream, lambda: stream.feed.flush(mark))
            case EndText():
                stream.feed.end()
                stream.ending = True
            case Cancel():
                self.out.codec.append(CodecDrop(stream.id))
                self._remove(stream)
                return
            case Pause():
                stream.paused = True
            case Resume():
                stream.paused = False
        self._awake[stream.id] = stream

    def _open(self, command: Open, now: float) -> None:
        if command.stream in self._streams:
            return
        if len(self._streams) >= self._limits.streams:
            self.out.events.append(Failed(command.stream, Fault.BUSY, "too many open streams"))
            return
        self._opened += 1
        stream = Stream(
            opened=command,
            opened_s=now,
            order=self._opened,
            sampling=self._resolved(command.sampling),
            feed=TextFeed(command.segmentation, self._defaults.max_segment_chars),
        )
        self._streams[stream.id] = stream
        self._voicing.prepare(command.voice, stream)
        self._awake[stream.id] = stream

    def _resolved(self, asked: Sampling) -> SlotSampling:
        own = self._defaults.sampling

        def chosen(value: float | None, default: float | None) -> float:
            picked = default if value is None else value
            assert picked is not None
            return picked

        return SlotSampling(
            temperature=float(chosen(asked.temperature, own.temperature)),
            top_p=float(chosen(asked.top_p, own.top_p)),
            top_k=int(chosen(asked.top_k, own.top_k)),
            seed=self._fresh_seed() if asked.seed is None else asked.seed,
        )

    def _push(self, stream: Stream, text: str, now: float) -> None:
        if stream.first_text_s is None and text.strip():
            stream.first_text_s = now
        self._guarded(stream, lambda: stream.feed.push(text, now))

    def _guarded(self, stream: Stream, action: Callable[[], None]) -> None:
        try:
            action()
        except TextLimitError as error:
            self._fail(stream, Fault.CLIENT, str(error))

    # Messages ---------------------------------------------------------------------------------

    def message(self, message: ToDecode, now: float) -> None:
        """Take in what another engine thread reports."""
        match message:
            case Composed(stream=sid):
                stream = self._streams.get(sid)
                if stream is not None:
                    stream.composing = False
                    stream.ready.append(message)
                    self._awake[sid] = stream
            case Prefilled(job, error):
                self._prefilled(job, error)
            case VoiceReady(job, columns):
                if len(columns) >= self._defaults.max_context:
                    for stream in self._voicing.failed(job):
                        self._fail(stream, Fault.CLIENT, "the references are too long")
                else:
                    for stream in self._voicing.prepared(job, columns):
                        self._awake[stream.id] = stream
            case VoiceFailed(job, fault, text):
                for stream in self._voicing.failed(job):
                    self._fail(stream, fault, text)
            case Sounded(sid, at_s):
                stream = self._streams.get(sid)
                if stream is not None and not stream.sounded:
                    stream.sounded, stream.playing_since_s = True, at_s

    def _prefilled(self, job: int, error: bool) -> None:
        key = self._voicing.written(job, error)
        if key is not None:
            for stream in [s for s in self._streams.values() if s.prefix == key]:
                self._awake[stream.id] = stream
                if error:
                    self._fail(stream, Fault.ENGINE, "the voice could not be prepared")
            return
        stream = self._turns.pop(job)
        self._batch.prefilled(stream)
        if stream.id not in self._streams:
            self._batch.remove(stream)
        elif error:
            self._fail(stream, Fault.ENGINE, "the text could not be prefilled")

    def _announce(self, stream: Stream, now: float) -> None:
        if not stream.announced and self._voicing.prefix_of(stream) is not None:
            stream.announced = True
            waited = now - stream.opened_s
            self.out.events.append(Opened(stream.id, waited, stream.prefix_was_cached))

    # Every turn of the loop -------------------------------------------------------------------

    def advance(self, now: float) -> None:
        """Move every stream on that can move: text to segments, segments to slots."""
        waiting: list[Stream] = []
        for stream in list(self._awake.values()):
            self._announce(stream, now)
            self._read(stream, now)
            if stream.phase is Phase.IDLE:
                self._next_utterance(stream, now)
            if stream.id in self._streams and stream.phase is Phase.WAITING:
                waiting.append(stream)
        self._seat(waiting, now)

    def _read(self, stream: Stream, now: float) -> None:
        """Take what the stream's text is ready to give."""
        while not stream.composing and len(stream.ready) < self._limits.held_results:
            lead = stream.lead_s(now, self._batch.frame_s)
            speaking = stream.phase is not Phase.IDLE or (
                lead is not None and lead > self._limits.speaking_lead_s
            )
            item = stream.feed.take(now, speaking)
            match item:
                case None:
                    return
                case Segment(text, speakable=True):
                    stream.composing = True
                    self.out.prefill.append(ComposeJob(stream.id, text))
                case Segment(text):
                    stream.ready.append(Composed(stream.id, text, ()))
                case FlushMark():
                    stream.ready.append(item)

    def _next_utterance(self, stream: Stream, now: float) -> None:
        """Between utterances: begin the next, or pass what needs no model, or come to rest."""
        while not stream.utterances and stream.ready:
            match item := stream.ready.popleft():
                case FlushMark(mark):
                    self.out.codec.append(CodecMark(stream.id, mark))
                case Composed(text=text, utterances=()):
                    self.out.codec.append(CodecSilence(stream.id, text))
                case Composed():
                    stream.utterances.extend(item.utterances)
                    stream.text = item.text
            self._read(stream, now)
        if stream.utterances:
            stream.phase = Phase.WAITING
            stream.waiting_since_s = now
            return
        if stream.composing:
            return
        if stream.ending and stream.feed.ended:
            self.out.codec.append(CodecFinish(stream.id))
            self._remove(stream)
            return
        self._batch.unseat(stream)
        if not stream.feed.pending and stream.announced:
            self._awake.pop(stream.id, None)

    def _seat(self, waiting: list[Stream], now: float) -> None:
        """Give slots: those who have one or have begun to speak first, then in order of arrival."""
        waiting.sort(key=lambda s: (s.slot is None, not s.started, s.waiting_since_s, s.order))
        new = 0
        for stream in waiting:
            assert stream.waiting_since_s is not None
            prefix = self._voicing.prefix_of(stream)
            utterance = stream.utterances[0]
            if prefix is not None and not self._batch.fits(prefix, utterance):
                self._fail(stream, Fault.CLIENT, "text and voice exceed the model's context")
                continue
            if prefix is not None or self._batch.continues(stream, utterance):
                if self._batch.seat(stream):
                    self._start(stream, prefix, now)
            if stream.phase is not Phase.WAITING or stream.started:
                continue
            new += 1
            # A voice that is still being prepared is not the server's being full.
            overdue = now - stream.waiting_since_s > self._limits.wait_s and prefix is not None
            if overdue or new > self._limits.waiting:
                self._fail(stream, Fault.BUSY, BUSY)

    def _start(self, stream: Stream, prefix: Prefix | None, now: float) -> None:
        self._jobs += 1
        job = self._batch.start(stream, stream.utterances[0], prefix, self._jobs)
        if job is None:
            self._batch.unseat(stream)
            return
        stream.utterances.popleft()
        stream.waiting_since_s = None
        if not stream.started:
            stream.slot_s = now
        self._turns[job.job] = stream
        self.out.prefill.append(job)

    def plan(self, now: float) -> StepPlan | None:
        """The next step, already counted as launched."""
        plan = self._batch.plan(now)
        in_flight = self._batch.steps - 1 - self._memory.collected
        if plan is None and self._batch.starved and not in_flight:
            # Everybody who could run lacks pages, and nobody holds any that could be taken.
            newest = max(self._batch.starved, key=lambda stream: stream.order)
            self._fail(newest, Fault.BUSY, "no memory is left for this conversation")
        return plan

    def result(self, result: StepResult, now: float) -> None:
        """Take a collected step in."""
        for stream in self._batch.collect(result):
            self._awake[stream.id] = stream

    def next_wake_s(self, now: float) -> float | None:
        """When :meth:`advance` or :meth:`plan` may have something to do without any message."""
        times = [self._batch.wake_s]
        for stream in self._awake.values():
            if not stream.composing and len(stream.ready) < self._limits.held_results:
                times.append(stream.feed.deadline())
            if stream.waiting_since_s is not None and not stream.started:
                times.append(stream.waiting_since_s + self._limits.wait_s)
        due = [when for when in times if when is not None]
        return max(now, min(due)) if due else None

    # Ends -------------------------------------------------------------------------------------

    def _fail(self, stream: Stream, fault: Fault, text: str) -> None:
        self.out.codec.append(CodecFinish(stream.id, Failed(stream.id, fault, text)))
        self._remove(stream)

    def _remove(self, stream: Stream) -> None:
        self._streams.pop(stream.id, None)
        self._awake.pop(stream.id, None)
        self._voicing.forget(stream)
        if stream.job is None:
            self._batch.remove(stream)

    # Figures ----------------------------------------------------------------------------------

    def stats(self, now: float, last_step_s: float) -> EngineStats:
        """A snapshot."""
        waits = [
            now - stream.waiting_since_s
            for stream in self._awake.values()
            if stream.waiting_since_s is not None and stream.slot is None
        ]
        leads = [
            lead
            for stream in self._batch.seated()
            if (lead := stream.lead_s(now, self._batch.frame_s)) is not None
            and stream.phase is Phase.RUNNING
        ]
        memory = self._memory
        return EngineStats(
            slots_busy=self._batch.busy,
            streams_open=len(self._streams),
            streams_waiting=len(waits),
            oldest_wait_s=max(waits, default=0.0),
            pages_used=memory.pool.total - memory.pool.free,
            pages_total=memory.pool.total,
            prefix_entries=len(memory.prefixes),
            prefix_hits=memory.prefixes.hits,
            prefix_misses=memory.prefixes.misses,
            steps=self._batch.steps,
            frames=self._batch.frames,
            last_step_s=last_step_s,
            min_lead_s=min(leads, default=0.0),
        )

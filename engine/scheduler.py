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
from dataclasses import replace

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
    Priority,
    PushText,
    Resume,
    StreamId,
    Voice,
)
from .batch import Batch
from .config import Limits
from .defaults import VoiceDefaults
from .figures import engine_stats
from .jobs import (
    CodecDrop,
    CodecFinish,
    Composed,
    Prefilled,
    Saved,
    Sounded,
    ToDecode,
    VoiceFailed,
    VoiceReady,
)
from .layout import Layout
from .memory import Memory, prefix_pages
from .outgoing import Outgoing
from .prefixes import PrefixKey
from .reading import Reading
from .runner import RunnerSpec, StepPlan, StepResult
from .seating import Seating
from .streams import Phase, Stream
from .text import TextFeed, TextLimitError
from .voicing import Voicing
from .warm import WarmTier

VOICES_BUSY = "too many recordings are being prepared, try again later"
VOICE_LATE = "the voice was not prepared in time, too many are, try again later"
BATCH_BUSY = "as much batch work as is allowed is under way, try again later"


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
        self._memory = Memory(spec.pages, spec.page_tokens, prefix_pages(spec, limits.prefix_bytes))
        layout = Layout(spec, limits, self._memory, defaults)
        self._batch = Batch(spec, limits, self._memory, layout, self.out)
        self._streams: dict[StreamId, Stream] = {}
        self._awake: dict[StreamId, Stream] = {}
        self._opened = 0
        self._warm = WarmTier(spec.host_pages, spec.page_bytes)
        self._voicing = Voicing(defaults.prefix, self._memory, self._warm, limits, self.out)
        self._reading = Reading(self._batch, limits, self.out)
        self._seating = Seating(self._batch, layout, self._voicing, limits, self.out, self._fail)

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
                self._guarded(stream, lambda: stream.feed.push(text, now))
            case Flush(_, mark):
                self._guarded(stream, lambda: stream.feed.flush(mark))
            case EndText():
                stream.feed.end()
                stream.ending = True
            case Cancel():
                self.out.codec.append(CodecDrop(stream.id))
                self._remove(stream)
            case Pause():
                stream.paused = True
            case Resume():
                stream.paused = False
        if stream.id in self._streams:
            self._awake[stream.id] = stream

    def _open(self, command: Open, now: float) -> None:
        if command.stream in self._streams:
            return
        if len(self._streams) >= self._limits.streams:
            self.out.events.append(Failed(command.stream, Fault.BUSY, "too many open streams"))
            return
        if command.priority is Priority.BATCH:
            if sum(s.backfill for s in self._streams.values()) >= self._limits.batch_streams:
                self.out.events.append(Failed(command.stream, Fault.BUSY, BATCH_BUSY))
                return
        self._opened += 1
        stream = Stream(
            opened=replace(command, voice=Voice()),  # its recordings are needed once
            opened_s=now,
            order=self._opened,
            sampling=self._defaults.resolved(command.sampling, self._fresh_seed()),
            feed=TextFeed(command.segmentation, self._defaults.max_segment_chars),
        )
        self._streams[stream.id] = stream
        self._awake[stream.id] = stream
        if not self._voicing.prepare(command.voice, stream):
            self._fail(stream, Fault.BUSY, VOICES_BUSY)

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
                if stream is None:
                    return
                if message.error:
                    self._fail(stream, Fault.ENGINE, "the text could not be prepared")
                    return
                stream.composing = False
                stream.ready.append(message)
                self._awake[sid] = stream
            case Prefilled():
                self._prefilled(message)
            case Saved():
                self._voicing.saved(message)
            case VoiceReady():
                self._voice_ready(message)
            case VoiceFailed(job, fault, text):
                for stream in self._voicing.failed(job):
                    self._fail(stream, fault, text)
            case Sounded(sid, at_s, frames_before):
                stream = self._streams.get(sid)
                if stream is not None:
                    stream.playing_since_s, stream.frames_before = at_s, frames_before

    def _voice_ready(self, voice: VoiceReady) -> None:
        job, columns = voice.job, voice.columns
        most = int(self._defaults.max_context * self._limits.prefix_share)
        if len(columns) <= most:
            for stream in self._voicing.prepared(job, columns):
                stream.note = voice.note
                self._awake[stream.id] = stream
            return
        text = (
            f"the references are too long for this model: {len(columns)} positions of text and "
            f"sound, at most {most}; a shorter recording will do"
        )
        for stream in self._voicing.failed(job):
            self._fail(stream, Fault.CLIENT, text)

    def _prefilled(self, done: Prefilled) -> None:
        key, error = self._voicing.written(done), done.error
        if key is None:
            stream = self._seating.prefilled(done.job)
            self._batch.prefilled(stream)
            if error and stream.id in self._streams:
                self._fail(stream, Fault.ENGINE, "the text could not be prefilled")
            return
        for stream in [s for s in self._streams.values() if s.prefix == key]:
            self._awake[stream.id] = stream
            # Those who speak have what they need.
            if error and (stream.phase is Phase.WAITING or not stream.announced):
                self._fail(stream, Fault.ENGINE, "the voice could not be prefilled")

    # Every turn of the loop -------------------------------------------------------------------

    def advance(self, now: float) -> None:
        """Move every stream on that can move: text to segments, segments to slots."""
        waiting: list[Stream] = []
        arriving = False
        self._seating.begin()
        self._memory.prefixes.await_entries(self._awaited())
        for stream in self._voicing.overdue(now):
            self._fail(stream, Fault.BUSY, VOICE_LATE)
        for stream in self._awake.values():
            if not stream.announced and self._voicing.has(stream):
                self._announce(stream, now)
        for stream in list(self._awake.values()):
            if stream.backfill and stream.phase is Phase.WAITING:  # there may be very many
                waiting.append(stream)
                continue
            if not stream.announced:
                self._ask_for_voice(stream, now)
                if stream.id not in self._streams:
                    continue
            self._reading.read(stream, now)
            if stream.phase is Phase.IDLE and stream.announced:
                if self._reading.next_utterance(stream, now):
                    self.out.codec.append(CodecFinish(stream.id))
                    self._remove(stream)
                elif stream.at_rest:
                    self._awake.pop(stream.id, None)
            if stream.phase is Phase.WAITING and stream.id in self._streams:
                waiting.append(stream)
            arriving |= stream.arriving
            if stream.only_speaks:
                self._awake.pop(stream.id, None)
        self._batch.arriving = arriving
        self._seating.seat(waiting, now)

    def _awaited(self) -> list[PrefixKey]:
        """The voices of those who wait to speak, the first in line first."""
        line = [
            (not stream.started, stream.order, stream.prefix)
            for stream in self._awake.values()
            if stream.prefix is not None and stream.waits_to_speak
        ]
        return [prefix for _, _, prefix in sorted(line)]

    def _announce(self, stream: Stream, now: float) -> None:
        stream.announced = True
        stream.waiting_since_s = None
        waited = now - stream.opened_s
        opened = Opened(stream.id, waited, stream.prefix_was_cached, stream.note)
        self.out.events.append(opened)

    def _ask_for_voice(self, stream: Stream, now: float) -> None:
        prefix = self._voicing.prefix_of(stream)
        if prefix is None and stream.prefix is not None:
            self._seating.lacks_pages(stream, now)

    def plan(self, now: float) -> StepPlan | None:
        """The next step, already counted as launched."""
        return self._batch.plan(now)

    def result(self, result: StepResult) -> None:
        """Take a collected step in."""
        leaving = self._batch.slots.leaving
        for stream in self._batch.collect(result):
            self._awake[stream.id] = stream
        self._seating.freed |= self._batch.slots.leaving < leaving

    def next_wake_s(self, now: float) -> float | None:
        """When :meth:`advance` or :meth:`plan` may have something to do without any message."""
        if self._seating.freed:
            return now
        times = [self._batch.wake_s, self._voicing.overdue_s()]
        for stream in self._awake.values():
            times.append(self._reading.due_s(stream, now))
            if stream.waiting_since_s is not None and not (stream.started or stream.backfill):
                if not self._voicing.writing(stream):
                    times.append(stream.waiting_since_s + self._limits.wait_s)
        due = [when for when in times if when is not None]
        return max(now, min(due)) if due else None

    # Ends -------------------------------------------------------------------------------------

    def _fail(self, stream: Stream, fault: Fault, text: str) -> None:
        self.out.codec.append(CodecFinish(stream.id, Failed(stream.id, fault, text)))
        self._remove(stream)

    def _remove(self, stream: Stream) -> None:
        self._seating.freed |= stream.waits_to_speak  # what was kept for it
        self._streams.pop(stream.id, None)
        self._awake.pop(stream.id, None)
        self._voicing.forget(stream)
        self._batch.remove(stream)

    # Figures ----------------------------------------------------------------------------------

    def stats(self, now: float, last_step_s: float) -> EngineStats:
        """A snapshot."""
        awake = self._awake.values()
        hot = self._memory.prefixes.stats(self._spec.page_bytes)
        figures = engine_stats(
            self._batch, self._memory.pool, hot, len(self._streams), awake, now, last_step_s
        )
        return replace(figures, warm=self._warm.stats(), voices_refused=self._voicing.refused)

"""The decode batch: which streams sit in slots, what each step feeds, what its results mean.

Owns the slots, the steps' numbers, and the way of an utterance from its prefill to its end. Pure:
no clock, no queue, no device; what is to be sent is appended to an ``Outgoing``. One thread:
decode's.

A step is planned before the results of the step before it are known. A row whose end the host has
not seen yet runs once more; the device knows that it ended and changes nothing, and its result is
dropped by generation. Slot and pages are free once the last step launched with them was collected.
Every step that an utterance may take was promised its page beforehand (see :class:`Memory`).
"""

from __future__ import annotations

import logging
import math

from .api import StreamId
from .backfill import began, rewind, spare
from .config import Limits
from .jobs import (
    CodecBegin,
    CodecEnd,
    CodecFrames,
    CodecPark,
    CodecSilence,
    FirstTimes,
    PrefillJob,
    Utterance,
)
from .layout import Layout
from .memory import Memory
from .outgoing import Outgoing
from .pacing import choose
from .prefixes import Prefix
from .runner import Join, PageGrant, RunnerSpec, StepPlan, StepResult
from .slots import SlotTable
from .streams import Phase, Spoken, Stream

log = logging.getLogger(__name__)


class Batch:
    """See the module. ``layout`` says where an utterance goes."""

    def __init__(
        self,
        spec: RunnerSpec,
        limits: Limits,
        memory: Memory,
        layout: Layout,
        out: Outgoing,
    ) -> None:
        self._limits = limits
        self._memory = memory
        self._layout = layout
        self._out = out
        self._frame_s = spec.frame_samples / spec.sample_rate
        self.slots = SlotTable(spec.max_slots, memory.pool)
        self._seated: dict[int, Stream] = {}
        self._step = 0
        self.frames = 0
        self.cut_off = 0
        """Utterances ended at their frame limit: the model did not stop by itself."""
        self.parked = 0
        self.arriving = False
        """A live stream has text and no sound yet: batch priority keeps out of its steps."""
        self.wake_s: float | None = None
        """When a stream that sat out the last planned step may be due again."""

    @property
    def frame_s(self) -> float:
        return self._frame_s

    def frames_of(self, seconds: float) -> int:
        """The fewest frames that last ``seconds``."""
        return max(1, math.ceil(seconds / self._frame_s - 1e-6))

    @property
    def steps(self) -> int:
        return self._step

    @property
    def busy(self) -> int:
        """Slots that are not free."""
        return self.slots.total - self.slots.free

    def seated(self) -> tuple[Stream, ...]:
        """Streams with a slot."""
        return tuple(self._seated.values())

    # Utterances -------------------------------------------------------------------------------

    def seat(self, stream: Stream) -> bool:
        """Give ``stream`` a slot; True when it has one."""
        if stream.slot is None:
            slot = self.slots.take()
            if slot is None:
                return False
            stream.slot = slot
            self._seated[slot] = stream
        return True

    def start(
        self, stream: Stream, utterance: Utterance, prefix: Prefix | None, job: int
    ) -> PrefillJob | None:
        """Give the utterance its place behind the stream's context, or behind ``prefix``, which
        may be None only when the context :meth:`Layout.continues`.

        Returns the prefill to run, or None when there are no pages now; then nothing changed but
        that a full context was let go.
        """
        if self._layout.continues(stream, utterance):
            assert stream.context is not None
            context, held = stream.context, None
            laid = self._layout.behind_context(stream, utterance)
            if not self._memory.extend(stream, laid.end, laid.most):
                return None
            began(stream, utterance, afresh=False)
        else:
            assert prefix is not None
            self.let_go(stream)
            laid = self._layout.behind_prefix(stream, utterance, prefix)
            begun = self._memory.begin_context(prefix, laid.end, laid.most)
            if begun is None:
                return None
            context, held = begun
            began(stream, utterance, afresh=True)
        stream.context = context
        stream.held_page = held
        stream.job = job
        stream.phase = Phase.PREFILLING
        stream.join_column = laid.columns[-1]
        stream.join_position = stream.next_position = laid.end - 1
        stream.spoken = Spoken(utterance.columns)
        stream.closed = False
        stream.frames_left = laid.frames
        chunks = self._layout.chunks(laid, context, held)
        return PrefillJob(job, chunks, urgent=not stream.backfill)

    def prefilled(self, stream: Stream) -> None:
        """The utterance's KV is written: the next step starts it, if the stream is still there."""
        stream.job = None
        if stream.held_page is not None:
            self._memory.pool.release([stream.held_page])
            stream.held_page = None
        if stream.slot is None:
            self.let_go(stream)
        else:
            stream.phase = Phase.JOINING

    def unseat(self, stream: Stream) -> None:
        """Nothing to say: the slot is free after the last step with it, the context rests."""
        if stream.slot is not None:
            self._leave_slot(stream)
            self._memory.rest(stream)

    def park(self, stream: Stream, now: float) -> None:
        """A live stream needs the room: give it all back; the stream waits to begin again."""
        if rewind(stream):
            self._out.codec.append(CodecPark(stream.id))
        self.parked += 1
        self.remove(stream)
        stream.phase = Phase.WAITING
        stream.waiting_since_s = now

    def _leave_slot(self, stream: Stream) -> None:
        assert stream.slot is not None
        del self._seated[stream.slot]
        self.slots.release(stream.slot, (), stream.last_step, self._memory.collected)
        stream.slot = None

    def let_go(self, stream: Stream) -> None:
        """Drop the stream's context; its pages are free after its last step."""
        self._memory.wake(stream)
        if stream.context is not None:
            self._memory.settle(stream.context)
            pages = tuple(stream.context.pages)
            stream.context = None
            self.slots.release(None, pages, stream.last_step, self._memory.collected)

    def remove(self, stream: Stream) -> None:
        """Take all from the stream: its slot now, its pages when no prefill of it is under way."""
        stream.phase = Phase.IDLE
        if stream.slot is not None:
            self._leave_slot(stream)
        if stream.job is None:
            self.let_go(stream)

    # Steps ------------------------------------------------------------------------------------

    def plan(self, now: float) -> StepPlan | None:
        """The next step's rows, or None when nobody is due."""
        rows: list[int] = []
        joins: list[Join] = []
        grants: list[PageGrant] = []
        page_tokens = self._memory.page_tokens
        for stream in self._due(now):
            assert stream.slot is not None and stream.context is not None
            if stream.phase is Phase.JOINING:
                joins.append(self._join(stream, now))
            elif stream.next_position >= (had := len(stream.context.pages)) * page_tokens:
                self._memory.grow(stream.context, stream.next_position + 1)
                grants.extend(PageGrant(stream.slot, page) for page in stream.context.pages[had:])
            rows.append(stream.slot)
            stream.next_position += 1
            stream.last_step = self._step
        if not rows:
            return None
        plan = StepPlan(self._step, tuple(rows), tuple(joins), tuple(grants))
        self._step += 1
        return plan

    def _due(self, now: float) -> list[Stream]:
        """Streams that run now: most urgent first, those far ahead left out; batch priority last,
        and only with time to spare."""
        able: list[Stream] = []
        backfill: list[Stream] = []
        leads: list[float | None] = []
        starting = False
        for stream in self._seated.values():
            if stream.backfill:
                if stream.phase in (Phase.JOINING, Phase.RUNNING) and not stream.paused:
                    backfill.append(stream)
            elif stream.phase is Phase.PREFILLING:
                starting |= stream.playing_since_s is None
            elif stream.phase in (Phase.JOINING, Phase.RUNNING) and not stream.paused:
                able.append(stream)
                leads.append(stream.lead_s(now, self._frame_s))
        chosen, wait_s = choose(leads, starting, self._limits)
        self.wake_s = None if wait_s is None else now + wait_s
        due = [able[index] for index in chosen]
        return due + backfill if spare(leads, starting or self.arriving, self._limits) else due

    def _join(self, stream: Stream, now: float) -> Join:
        assert stream.slot is not None and stream.context is not None
        assert stream.join_column is not None
        stream.generation = self.slots.next_generation(stream.slot)
        stream.phase = Phase.RUNNING
        stream.begin_playing_anew(now, self._frame_s)
        times = None
        if not stream.started:
            assert stream.text_s is not None
            times = FirstTimes(stream.text_s, stream.asked_s, stream.slot_s, now)
        stream.started = True
        if not stream.silent:
            begin = CodecBegin(
                stream.id, stream.slot, stream.text, times, stream.resuming, stream.span
            )
            self._out.codec.append(begin)
            stream.text, stream.resuming = None, False
        return Join(
            slot=stream.slot,
            generation=stream.generation,
            position=stream.join_position,
            draw=stream.draws,
            column=stream.join_column,
            table=tuple(stream.context.pages),
            sampling=stream.sampling,
        )

    def collect(self, result: StepResult) -> list[Stream]:
        """Take a step's results in; returns the streams whose utterance ended with it."""
        self._memory.collected = result.step
        self.slots.settle(result.step)
        ended: list[Stream] = []
        mute: set[StreamId] = set()
        unheard: set[StreamId] = set()
        sounding: list[StreamId] = []
        rows: list[int] = []
        ends = result.ended.tolist()
        for row, (slot, generation, column) in enumerate(
            zip(result.slots, result.generations, result.columns, strict=True)
        ):
            stream = self._seated.get(slot)
            if (
                stream is None
                or stream.phase is not Phase.RUNNING
                or stream.generation != generation
            ):
                continue
            stream.draws += 1
            if stream.silent:
                unheard.add(stream.id)
            if ends[row]:
                if stream.spoken is not None and not stream.spoken.frames:
                    mute.add(stream.id)
                self._end(stream, cut_off=False)
                ended.append(stream)
                continue
            assert stream.spoken is not None
            stream.spoken.frames.append(column)
            stream.frames_left -= 1
            stream.frames += 1
            self.frames += 1
            if not stream.silent:
                sounding.append(stream.id)
                rows.append(row)
            if stream.frames_left == 0:
                self._end(stream, cut_off=True)
                ended.append(stream)
        if sounding:
            self._out.codec.append(CodecFrames(tuple(sounding), result.columns[rows, 1:]))
        for stream in ended:
            if stream.id in unheard:
                stream.silent -= 1
                continue
            self._out.codec.append(CodecEnd(stream.id))
            if stream.id in mute:
                frames = self.frames_of(self._limits.silence_s)
                stream.frames += frames
                self._out.codec.append(CodecSilence(stream.id, None, frames))
        return ended

    def _end(self, stream: Stream, *, cut_off: bool) -> None:
        assert stream.slot is not None and stream.spoken is not None
        assert stream.context is not None
        stream.generation = self.slots.next_generation(stream.slot)
        stream.phase = Phase.IDLE
        self._memory.settle(stream.context)
        if cut_off:
            # The device has not ended the row: what it writes next must meet nobody else's KV,
            # and what the model said is no example to go on from.
            self.cut_off += 1
            log.warning("stream %d: utterance cut off at its frame limit", stream.id)
            stream.spoken = None
            self.let_go(stream)
            return
        stream.context.length = stream.join_position + 1 + len(stream.spoken.frames)

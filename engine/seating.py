"""Who sits: slots and pages for utterances that are ready, live ones first.

Owns the order of seating, who is refused for want of a slot, and which stream of batch priority
makes room for whom. One thread: decode's.
"""

from __future__ import annotations

from collections.abc import Callable

from .api import Fault
from .backfill import reserved, victims
from .batch import Batch
from .config import Limits
from .layout import Layout
from .outgoing import Outgoing
from .prefixes import Prefix
from .streams import Stream
from .voicing import Voicing

BUSY = "all slots are busy, try again in a moment"


class Seating:
    """``fail`` ends a stream with a fault and a message."""

    def __init__(
        self,
        batch: Batch,
        layout: Layout,
        voicing: Voicing,
        limits: Limits,
        out: Outgoing,
        fail: Callable[[Stream, Fault, str], None],
    ) -> None:
        self._batch = batch
        self._layout = layout
        self._voicing = voicing
        self._limits = limits
        self._out = out
        self._fail = fail
        self._jobs = 0
        self._turns: dict[int, Stream] = {}
        self._short = 0
        self._scarce = False
        """There were no pages for a stream of batch priority: there are none for the next."""
        self.freed = False
        """Something became free that somebody may wait for."""

    def begin(self) -> None:
        """A turn of the loop: nobody was found short yet."""
        self._short, self._scarce, self.freed = 0, False, False

    def lacks_pages(self, stream: Stream, now: float) -> None:
        """There are no pages for the stream's voice. One that has text waits no longer for them
        than for a slot."""
        self._short += not stream.backfill
        if not stream.waits_to_speak:
            return
        if stream.waiting_since_s is None:
            stream.waiting_since_s = now
        if self._overdue(stream, now):
            self._fail(stream, Fault.BUSY, BUSY)

    def prefilled(self, job: int) -> Stream:
        """Whose the finished job was."""
        return self._turns.pop(job)

    def seat(self, waiting: list[Stream], now: float) -> None:
        """Give slots: those who have one or have begun to speak first, then in order of arrival;
        batch priority last, and it makes room for who found none."""
        waiting.sort(
            key=lambda s: (s.backfill, s.slot is None, not s.started, s.waiting_since_s, s.order)
        )
        new = 0
        for stream in waiting:
            if stream.backfill and stream.slot is None and not self._room_for_backfill():
                break  # and the rest are all alike
            if stream.job is not None:  # parked, and what it gave up is still being written
                continue
            if self._layout.continues(stream, stream.utterances[0]):
                prefix, able = None, True
            else:
                prefix = self._voicing.prefix_of(stream)
                able = prefix is not None and prefix.ready
                if prefix is not None and not self._layout.fits(prefix, stream.utterances[0]):
                    self._fail(stream, Fault.CLIENT, "text and voice exceed the model's context")
                    continue
            if stream.backfill:
                if able:
                    self._seat_backfill(stream, prefix, now)
                continue
            if able and self._batch.seat(stream) and self._start(stream, prefix, now):
                continue
            self._short += able or prefix is None
            if stream.started:
                continue
            new += 1
            if new > self._limits.waiting or self._overdue(stream, now):
                self._fail(stream, Fault.BUSY, BUSY)
        # What left a slot and is in a step still makes room for one stream each.
        leaving = self._batch.busy - len(self._batch.seated())
        if self._short > leaving:
            for stream in victims(self._batch.seated(), self._short - leaving):
                self._batch.park(stream, now)
                self.freed = True

    def _room_for_backfill(self) -> bool:
        slots = self._batch.slots
        return not (self._short or self._scarce) and slots.free > reserved(
            slots.total, self._limits
        )

    def _seat_backfill(self, stream: Stream, prefix: Prefix | None, now: float) -> None:
        if self._short:
            return
        if self._batch.seat(stream) and not self._start(stream, prefix, now):
            self._scarce = True
            if stream.context is None:
                self._batch.unseat(stream)
            else:
                # Its context must not be told anew in the middle: one of them begins again.
                self._short += 1

    def _overdue(self, stream: Stream, now: float) -> bool:
        """A new stream has waited too long for a slot; one that waits for its voice has not."""
        assert stream.waiting_since_s is not None
        if now < stream.waiting_since_s + self._limits.wait_s:
            return False
        return not self._voicing.writing(stream)

    def _start(self, stream: Stream, prefix: Prefix | None, now: float) -> bool:
        self._jobs += 1
        job = self._batch.start(stream, stream.utterances[0], prefix, self._jobs)
        if job is None:
            if not stream.backfill:
                self._batch.unseat(stream)
            return False
        stream.utterances.popleft()
        if not stream.started:
            assert stream.waiting_since_s is not None
            stream.asked_s, stream.slot_s = stream.waiting_since_s, now
        stream.waiting_since_s = None
        self._turns[job.job] = stream
        self._out.prefill.append(job)
        return True

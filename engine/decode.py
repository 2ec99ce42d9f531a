"""The decode thread: the loop around the scheduler and the runner's steps.

Owns the scheduler, and with it every stream. A turn of the loop takes in what arrived, lets the
scheduler move, launches step ``n`` and only then waits for step ``n - 1``: while the host deals
with one step's results the device is busy with the next. A text passes this thread three times on
its way to its first step, so the loop does not sleep through a step in the runner's ``collect``:
while the step cannot be over yet it listens to its inbox and passes on what came.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue

from .api import Command, Deliver, EngineStats
from .jobs import (
    CodecMessage,
    Composed,
    Prefilled,
    Saved,
    Sounded,
    ToDecode,
    ToPrefill,
    ToVoice,
    VoiceFailed,
    VoiceReady,
)
from .outgoing import Outgoing
from .runner import Runner, StepPlan
from .scheduler import Scheduler

STEPS_IN_FLIGHT = 2
"""One step runs while the results of the one before it are read."""

STEP_SHARE = 0.75
"""Of the time that the quicker of the last two steps took (and of as much a row, where the next has
fewer), how long the next is surely not over. One that ends earlier is noticed late, which costs
nothing while another is queued behind it; the device must not run out of those, so the time of a
step that was over before it was waited for counts for nothing, and neither does one slow step."""
LEAST_REST_S = 0.0005
STATS_S = 0.05
"""How old what others read of a busy engine may be."""

Inbound = Command | ToDecode


class DecodeLoop:
    """``run`` is the thread's body. ``stats`` may be read from any thread; exact when idle."""

    def __init__(
        self,
        runner: Runner,
        scheduler: Scheduler,
        inbox: SimpleQueue[Inbound | None],
        to_prefill: SimpleQueue[ToPrefill | None],
        to_voice: Callable[[ToVoice], None],
        to_codec: SimpleQueue[CodecMessage | None],
        deliver: Deliver,
        clock: Callable[[], float],
    ) -> None:
        self._runner = runner
        self._scheduler = scheduler
        self._inbox = inbox
        self._to_prefill = to_prefill
        self._to_voice = to_voice
        self._to_codec = to_codec
        self._deliver = deliver
        self._clock = clock
        self._in_flight: deque[tuple[StepPlan, float]] = deque()
        self._last_step_s = 0.0
        self._collected_s = 0.0
        self._periods: deque[tuple[float, float]] = deque([(0.0, 0.0)] * 2, 2)
        """From the end of the step before to that of the last two steps, and the same a row; 0: the
        device had rested, or nobody knows."""
        self._busy = False
        """A step was in flight when the last one was collected."""
        self._ended = False
        self._unplanned = True
        """Something was taken in since the last plan, so it is no guide to how long to sleep. To
        begin with, the default voice is to be prefilled before anybody asks."""
        self._stats_due_s = 0.0
        self.stats = EngineStats()

    def run(self) -> None:
        """Until ``None`` comes."""
        while self._receive():
            self.turn()

    def turn(self) -> None:
        """One turn; messages are waited for only while a step runs anyway."""
        now = self._clock()
        self._scheduler.advance(now)
        plan = self._scheduler.plan(now)
        self._unplanned = False
        self._send(self._scheduler.out)
        if plan is not None:
            self._runner.launch(plan)
            self._in_flight.append((plan, now))
        if self._in_flight and (plan is None or len(self._in_flight) == STEPS_IN_FLIGHT):
            step, launched_s = self._in_flight.popleft()
            rows = len(step.slots)
            (older_s, older_row_s), (last_s, last_row_s) = self._periods
            surely_s = min(older_s, last_s, rows * min(older_row_s, last_row_s))
            self._listen(self._collected_s + STEP_SHARE * surely_s)
            asked_s = self._clock()
            result = self._runner.collect(step.step)
            now = self._clock()
            self._last_step_s = now - launched_s
            # Without another step in flight the device rests, and this one did not begin then.
            known = self._busy and now - asked_s >= LEAST_REST_S
            period_s = now - self._collected_s if known else 0.0
            self._periods.append((period_s, period_s / rows))
            self._collected_s, self._busy = now, bool(self._in_flight)
            self._scheduler.result(result)
            self._unplanned = True
            self._send(self._scheduler.out)
        if now >= self._stats_due_s or not self._in_flight:
            self._stats_due_s = now + STATS_S
            self.stats = self._scheduler.stats(now, self._last_step_s)

    def _listen(self, until_s: float) -> None:
        """Pass on what arrives before ``until_s``: steps are planned later, the rest can go now."""
        while not self._ended and (left_s := until_s - self._clock()) > LEAST_REST_S:
            try:
                message = self._inbox.get(timeout=left_s)
            except Empty:
                return
            try:
                while self._note(message):
                    message = self._inbox.get_nowait()
                self._ended = True
            except Empty:
                pass
            self._scheduler.advance(self._clock())
            self._send(self._scheduler.out)

    def _receive(self) -> bool:
        """Take in everything that waits; sleep for it when there is nothing else to do."""
        if self._ended:
            return False
        try:
            if not self._in_flight and not self._unplanned:
                now = self._clock()
                wake = self._scheduler.next_wake_s(now)
                timeout = None if wake is None else max(0.0, wake - now)
                if not self._note(self._inbox.get(timeout=timeout)):
                    return False
            while True:
                if not self._note(self._inbox.get_nowait()):
                    return False
        except Empty:
            return True

    def _note(self, message: Inbound | None) -> bool:
        now = self._clock()
        match message:
            case None:
                return False
            case Composed() | Prefilled() | Saved() | VoiceReady() | VoiceFailed() | Sounded():
                self._scheduler.message(message, now)
            case _:
                self._scheduler.command(message, now)
        self._unplanned = True
        return True

    def _send(self, out: Outgoing) -> None:
        for job in out.prefill:
            self._to_prefill.put(job)
        for job in out.voice:
            self._to_voice(job)
        # Before the codec's thread can deliver what follows them.
        if out.events:
            self._deliver(tuple(out.events))
        for message in out.codec:
            self._to_codec.put(message)
        out.prefill.clear()
        out.voice.clear()
        out.codec.clear()
        out.events.clear()

"""A decode loop and everything around it, for tests of the decode thread."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from queue import SimpleQueue

from shoal.engine.api import EndText, Event, Open, PushText, StreamId
from shoal.engine.config import Limits
from shoal.engine.decode import DecodeLoop, Inbound
from shoal.engine.defaults import VoiceDefaults
from shoal.engine.jobs import (
    CodecMessage,
    Composed,
    ComposeJob,
    Prefilled,
    PrefillJob,
    ToPrefill,
    ToVoice,
    Utterance,
)
from shoal.engine.runner import StepPlan, StepResult
from shoal.engine.scheduler import Scheduler
from tests.fakes import ManualClock, ScriptedRunner, spec
from tests.rig import GREEDY, WIDE, columns_of, turn_of


class Inbox(SimpleQueue[Inbound | None]):
    """Counts how often somebody waited at it. ``asleep`` while somebody may do so for ever."""

    def __init__(self) -> None:
        self.waits = 0
        self.asleep = threading.Event()

    def get(self, block: bool = True, timeout: float | None = None) -> Inbound | None:
        self.waits += 1
        if block and timeout is None and self.empty():
            self.asleep.set()
        found = super().get(block, timeout)
        self.asleep.clear()
        return found


class Ordered(ScriptedRunner):
    """Notes the order of calls."""

    def __init__(self) -> None:
        super().__init__(spec())
        self.calls: list[str] = []

    def launch(self, plan: StepPlan) -> None:
        self.calls.append(f"launch {plan.step}")
        super().launch(plan)

    def collect(self, step: int) -> StepResult:
        self.calls.append(f"collect {step}")
        return super().collect(step)


class Desk:
    """A loop, with its prefill and voice threads done by hand."""

    def __init__(
        self,
        clock: ManualClock | None = None,
        runner: Ordered | None = None,
        to_prefill: SimpleQueue[ToPrefill | None] | None = None,
        inbox: Inbox | None = None,
    ) -> None:
        self.runner = runner or Ordered()
        self.clock = clock or ManualClock()
        self.inbox = inbox or Inbox()
        self.to_prefill = to_prefill or SimpleQueue[ToPrefill | None]()
        self.to_codec: SimpleQueue[CodecMessage | None] = SimpleQueue()
        self.voices: list[ToVoice] = []
        self.events: list[Event] = []
        limits: Limits = WIDE
        self.loop = DecodeLoop(
            self.runner,
            Scheduler(
                self.runner.spec,
                limits,
                VoiceDefaults(GREEDY, None, 1 << 20, columns_of("system"), columns_of("\n")),
                lambda: 1,
            ),
            self.inbox,
            self.to_prefill,
            self.voices.append,
            self.to_codec,
            self._deliver,
            self.clock,
        )

    def _deliver(self, events: Sequence[Event]) -> None:
        self.events.extend(events)

    def prefill(self) -> None:
        """Do the prefill thread's work, and report it."""
        while not self.to_prefill.empty():
            match self.to_prefill.get():
                case ComposeJob(stream, text):
                    turn = Utterance(turn_of(text), len(text))
                    self.inbox.put(Composed(stream, text, (turn,)))
                case PrefillJob(job, chunks):
                    for chunk in chunks:
                        self.runner.prefill(chunk)
                    self.inbox.put(Prefilled(job))
                case None:
                    pass

    def turn(self) -> None:
        self.prefill()
        self.take_in()
        self.loop.turn()
        self.clock.tick(0.01)

    def take_in(self) -> None:
        while not self.inbox.empty():
            self.loop._note(self.inbox.get_nowait())  # pyright: ignore[reportPrivateUsage]

    def codec(self) -> list[CodecMessage]:
        found: list[CodecMessage] = []
        while not self.to_codec.empty():
            message = self.to_codec.get()
            assert message is not None
            found.append(message)
        return found

    def speak(self, stream: StreamId, text: str) -> None:
        self.inbox.put(Open(stream))
        self.inbox.put(PushText(stream, text))
        self.inbox.put(EndText(stream))

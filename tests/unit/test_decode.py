"""The decode thread's loop: run-ahead, what it waits on, and what it sends."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue

import pytest

from shoal.engine.api import (
    EndText,
    Event,
    Failed,
    Fault,
    Flush,
    Open,
    Opened,
    PushText,
    StreamId,
    Voice,
)
from shoal.engine.decode import STEPS_IN_FLIGHT, Inbound
from shoal.engine.jobs import (
    CodecEnd,
    CodecFinish,
    CodecFrames,
    CodecMark,
    CodecMessage,
    Composed,
    ComposeJob,
    Prefilled,
    PrefillJob,
    ToPrefill,
    Utterance,
    VoiceFailed,
)
from shoal.engine.runner import StepPlan, StepResult
from tests.decode_desk import Desk, Inbox, Ordered
from tests.fakes import ManualClock
from tests.rig import turn_of

A, B = StreamId(1), StreamId(2)


def test_a_step_is_launched_before_the_one_before_it_is_read() -> None:
    desk = Desk()
    desk.speak(A, "say 6")
    for _ in range(20):
        desk.turn()
    steps = 8  # six frames, the end, and one more that was under way
    wanted = ["launch 0"]
    for step in range(1, steps):
        wanted += [f"launch {step}", f"collect {step - 1}"]
    assert desk.runner.calls == [*wanted, f"collect {steps - 1}"]
    assert STEPS_IN_FLIGHT == 2
    messages = desk.codec()
    frames = [m for m in messages if isinstance(m, CodecFrames)]
    assert len(frames) == 6
    assert isinstance(messages[-2], CodecEnd) and messages[-1] == CodecFinish(A)
    assert desk.loop.stats.frames == 6 and desk.loop.stats.steps == steps


class Slow(Ordered):
    """A step ends 10 ms after the one before it, by the clock."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self.device_clock = clock
        self.before_collect: Callable[[], None] = lambda: None

    def collect(self, step: int) -> StepResult:
        self.before_collect()
        self.device_clock.tick(0.01)
        return super().collect(step)


def test_what_arrives_during_a_step_is_passed_on_before_its_end() -> None:
    clock = ManualClock()
    desk = Desk(clock, Slow(clock))
    assert isinstance(desk.runner, Slow)
    desk.speak(A, "endless")
    for _ in range(6):
        desk.prefill()
        desk.take_in()
        desk.loop.turn()
    assert desk.runner.calls[-2:] == ["launch 3", "collect 2"]
    composing: list[bool] = []
    desk.runner.before_collect = lambda: composing.append(not desk.to_prefill.empty())
    desk.speak(B, "text")
    desk.loop.turn()
    assert composing == [True], "the text is on its way while the step runs"


class Instant(SimpleQueue[ToPrefill | None]):
    """A prefill thread that is done before anybody looks; every text makes two utterances."""

    inbox: Inbox
    runner: Ordered

    def put(self, item: ToPrefill | None, block: bool = True, timeout: float | None = None) -> None:
        match item:
            case ComposeJob(stream, text):
                turn = Utterance(turn_of(text), len(text))
                self.inbox.put(Composed(stream, text, (turn, turn)))
            case PrefillJob(job, chunks):
                for chunk in chunks:
                    self.runner.prefill(chunk)
                self.inbox.put(Prefilled(job))
            case None:
                pass


def test_an_utterance_prefilled_during_the_last_step_of_the_one_before_begins() -> None:
    clock, instant = ManualClock(), Instant()
    desk = Desk(clock, Slow(clock), instant)
    instant.inbox, instant.runner = desk.inbox, desk.runner
    desk.speak(A, "say 6")
    thread = threading.Thread(target=desk.loop.run, daemon=True)
    thread.start()
    ends = 0
    while desk.to_codec.get(timeout=30) != CodecFinish(A):
        ends += 1
    assert ends >= 14, "two utterances of six frames and their ends"
    desk.inbox.put(None)
    thread.join(30)
    assert not thread.is_alive()


class Waited(Inbox):
    """Nothing comes, and time passes with waiting for it."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self._clock = clock

    def get(self, block: bool = True, timeout: float | None = None) -> Inbound | None:
        if self.empty() and timeout is not None:
            self._clock.tick(timeout)
            raise Empty
        return super().get(block, timeout)


class Timed(Ordered):
    """A device that takes one step after another, each as long as ``takes_s`` says."""

    def __init__(self, clock: ManualClock, takes_s: Callable[[int], float]) -> None:
        super().__init__()
        self.free_s = 0.0
        self._clock = clock
        self._takes_s = takes_s
        self._ends_s: list[float] = []

    def launch(self, plan: StepPlan) -> None:
        super().launch(plan)
        self.free_s = max(self.free_s, self._clock()) + self._takes_s(plan.step)
        self._ends_s.append(self.free_s)

    def collect(self, step: int) -> StepResult:
        self._clock.now = max(self._clock(), self._ends_s[step])
        return super().collect(step)


@pytest.mark.parametrize("slow", [(), (20,), (20, 21), (20, 22, 24)])
def test_a_slow_step_does_not_make_those_behind_it_slow(slow: tuple[int, ...]) -> None:
    clock = ManualClock()
    desk = Desk(
        clock, Timed(clock, lambda step: 0.3 if step in slow else 0.01), None, Waited(clock)
    )
    desk.speak(A, "say 60")
    begun_s = 0.0
    for _ in range(60):
        desk.prefill()
        desk.take_in()
        begun_s = begun_s or clock()
        desk.loop.turn()
    steps = len(desk.runner.log.steps)
    assert steps > 50
    must_s = 0.01 * (steps - len(slow)) + 0.3 * len(slow)
    late_s = clock() - begun_s - must_s
    assert late_s < (0.25 if len(slow) == 2 else 0.02)


def test_the_end_may_come_during_a_step() -> None:
    clock = ManualClock()
    desk = Desk(clock, Slow(clock))
    desk.speak(A, "endless")
    for _ in range(6):
        desk.prefill()
        desk.take_in()
        desk.loop.turn()
    desk.inbox.put(None)
    desk.loop.turn()
    desk.loop.run()
    assert desk.inbox.empty()


def test_frames_leave_with_the_step_after_theirs() -> None:
    desk = Desk()
    desk.speak(A, "say 20")
    seen: list[int] = []
    for _ in range(12):
        desk.turn()
        seen.append(sum(isinstance(message, CodecFrames) for message in desk.codec()))
    begin = seen.index(1)
    assert seen[begin:] == [1] * (12 - begin)


def test_opened_and_refused_leave_at_once_and_voices_go_to_their_thread() -> None:
    desk = Desk()
    desk.turn()
    desk.inbox.put(Open(A))
    desk.inbox.put(Open(B, Voice("ann")))
    desk.turn()
    desk.turn()
    assert [type(event) for event in desk.events] == [Opened]
    assert [job.voice for job in desk.voices] == [Voice("ann")]
    desk.inbox.put(VoiceFailed(desk.voices[0].job, Fault.CLIENT, "none"))
    desk.turn()
    assert desk.codec() == [CodecFinish(B, Failed(B, Fault.CLIENT, "none"))]


def test_with_nothing_to_do_the_loop_waits_at_its_inbox_and_does_not_look_again() -> None:
    desk = Desk()
    desk.inbox.put(Open(A))
    thread = threading.Thread(target=desk.loop.run, daemon=True)
    thread.start()
    while not desk.events:
        desk.prefill()
    assert desk.inbox.asleep.wait(30), "for what comes, and for no time of its own"
    waits = desk.inbox.waits
    assert waits <= 6
    threading.Event().wait(0.2)
    assert desk.inbox.waits == waits
    desk.inbox.put(None)
    thread.join(30)
    assert not thread.is_alive()


def test_the_loop_wakes_for_a_deadline_of_the_text_alone() -> None:
    class RealClock(ManualClock):
        def __call__(self) -> float:
            return time.monotonic()

    desk = Desk(RealClock())
    thread = threading.Thread(target=desk.loop.run, daemon=True)
    thread.start()
    desk.inbox.put(Open(A))
    desk.inbox.put(PushText(A, "Half a sentence without its end, yet with a clause,"))
    job = desk.to_prefill.get(timeout=30)
    while not isinstance(job, ComposeJob):
        job = desk.to_prefill.get(timeout=30)
        assert desk.inbox.waits < 20
    desk.inbox.put(None)
    thread.join(30)
    assert job.text.startswith("Half a sentence")


def test_the_default_voice_is_prefilled_before_anybody_asks() -> None:
    desk = Desk()
    thread = threading.Thread(target=desk.loop.run, daemon=True)
    thread.start()
    job = desk.to_prefill.get(timeout=30)
    assert isinstance(job, PrefillJob)
    desk.inbox.put(None)
    thread.join(30)
    assert not thread.is_alive()


class Codec(SimpleQueue[CodecMessage | None]):
    """Notes how many events had been delivered when something was put in."""

    def __init__(self, events: list[Event]) -> None:
        self._events = events
        self.delivered: list[int] = []

    def put(
        self, item: CodecMessage | None, block: bool = True, timeout: float | None = None
    ) -> None:
        self.delivered.append(len(self._events))
        super().put(item, block, timeout)


def test_a_stream_is_opened_before_the_codec_can_say_anything_of_it() -> None:
    desk = Desk()
    codec = desk.loop._to_codec = Codec(desk.events)  # pyright: ignore[reportPrivateUsage]
    for _ in range(3):
        desk.turn()
    desk.inbox.put(Open(A))
    desk.inbox.put(Flush(A))
    desk.inbox.put(EndText(A))
    desk.turn()
    assert [codec.get_nowait(), codec.get_nowait()] == [CodecMark(A, 0), CodecFinish(A)]
    assert isinstance(desk.events[0], Opened) and codec.delivered == [1, 1]

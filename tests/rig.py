"""The scheduler at work without threads: commands in, what every listener got out.

``Rig`` does what the engine's other threads do, in the order and as late as a test wants it, and
takes steps the way the decode loop does: step n is launched before step n - 1 is collected.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from shoal.engine.api import (
    Command,
    EndText,
    Event,
    Failed,
    Fault,
    Open,
    Opened,
    Priority,
    PushText,
    Sampling,
    Segmentation,
    StreamId,
    Voice,
)
from shoal.engine.config import Limits
from shoal.engine.defaults import VoiceDefaults
from shoal.engine.jobs import (
    CodecBegin,
    CodecDrop,
    CodecEnd,
    CodecFinish,
    CodecFrames,
    CodecMark,
    CodecMessage,
    CodecPark,
    CodecSilence,
    Composed,
    ComposeJob,
    Prefilled,
    PrefillJob,
    Saved,
    SaveJob,
    Sounded,
    ToDecode,
    ToPrefill,
    ToVoice,
    Utterance,
    VoiceDrop,
    VoiceFailed,
    VoiceReady,
)
from shoal.engine.pacing import Playout
from shoal.engine.runner import Int32Array, PrefillChunk, RunnerSpec, StepPlan
from shoal.engine.scheduler import Scheduler
from tests.fakes import NEVER, ManualClock, ScriptedRunner, opener, spec

GREEDY = Sampling(temperature=0.0, top_p=0.9, top_k=30, seed=0, max_frames_per_segment=1 << 20)
WIDE = Limits(frames_base=40, frames_per_byte=4.0, expected_frames_per_byte=0.5)
FREE = replace(WIDE, frames_base=600)
ROOMY = spec(max_positions=4096, pages=600)


def columns_of(text: str, codebooks: int = 3) -> Int32Array:
    """A column a character, none of which opens a turn."""
    columns = np.zeros((len(text), 1 + codebooks), np.int32)
    columns[:, 0] = [20 + ord(character) % 997 for character in text]
    return columns


def frames_in(text: str) -> int:
    """How many frames a scripted turn of ``text`` has: the number in it, else one a character."""
    if "endless" in text:
        return NEVER
    found = re.search(r"\d+", text)
    return int(found[0]) if found else len(text)


def turn_of(text: str) -> Int32Array:
    """A user turn: the text, then the column that makes the model speak."""
    return np.concatenate([columns_of(text), opener(frames_in(text))[None]])


@dataclass
class Heard:
    """What one listener got."""

    codes: list[tuple[int, ...]] = field(default_factory=list[tuple[int, ...]])
    order: list[str] = field(default_factory=list[str])
    ends: list[Event | None] = field(default_factory=list[Event | None])
    dropped: bool = False
    playout: Playout = field(default_factory=Playout)
    frames: int = 0
    open_stretch: bool = False
    stretch: int = 0
    """Frames of the present or parked stretch that were heard."""
    again: int = 0
    """Frames of it that come again before anything new."""
    first_s: float | None = None

    @property
    def done(self) -> bool:
        return bool(self.ends) or self.dropped


class Rig:
    """``work_per_turn``: how many pieces of the prefill thread's work are done in a turn of the
    loop; ``step_s``: how long a turn takes by the clock."""

    def __init__(
        self,
        sizes: RunnerSpec | None = None,
        limits: Limits = WIDE,
        *,
        max_context: int = 1 << 20,
        prefix: str = "system",
        work_per_turn: int = 1000,
        step_s: float = 0.01,
        voice: Callable[[Voice], Int32Array | None] | None = None,
    ) -> None:
        self.runner = ScriptedRunner(sizes or spec())
        self.clock = ManualClock()
        self.scheduler = Scheduler(
            self.runner.spec,
            limits,
            VoiceDefaults(GREEDY, None, max_context, columns_of(prefix), columns_of("\n")),
            lambda: 1,
        )
        self.work_per_turn = work_per_turn
        self.step_s = step_s
        self.fail_compose = False
        self.hold_voices = False
        self.heard: dict[StreamId, Heard] = {}
        self.events: list[Event] = []
        self.plans: list[StepPlan] = []
        self._voice = voice or (lambda asked: columns_of(f"voice {asked.voice_id}"))
        self._flying: deque[int] = deque()
        self._texts: deque[ComposeJob] = deque()
        self._prefills: deque[tuple[PrefillJob, deque[PrefillChunk]]] = deque()
        self.saves: deque[SaveJob] = deque()
        self.hold_saves = False
        self.voices: deque[ToVoice] = deque()
        self._opened = 0

    # Commands ---------------------------------------------------------------------------------

    def send(self, command: Command) -> None:
        self.scheduler.command(command, self.clock())
        self._dispatch()

    def open(
        self,
        voice_id: str | None = None,
        seed: int = 0,
        frames: int | None = None,
        priority: Priority = Priority.LIVE,
    ) -> StreamId:
        self._opened += 1
        stream = StreamId(self._opened)
        self.heard[stream] = Heard()
        sampling = Sampling(seed=seed, max_frames_per_segment=frames)
        rules = Segmentation(min_chars=0)
        self.send(Open(stream, Voice(voice_id), sampling, rules, priority))
        return stream

    def say(self, stream: StreamId, text: str, *, end: bool = True) -> None:
        self.send(PushText(stream, text))
        if end:
            self.send(EndText(stream))

    def speak(self, text: str, voice_id: str | None = None, seed: int = 0) -> StreamId:
        stream = self.open(voice_id, seed)
        self.say(stream, text)
        return stream

    # The loop ---------------------------------------------------------------------------------

    def turn(self) -> None:
        """One turn of the decode loop, and of everybody else."""
        self.clock.tick(self.step_s)
        self.work(self.work_per_turn)
        now = self.clock()
        self.scheduler.advance(now)
        plan = self.scheduler.plan(now)
        self._dispatch()
        if plan is not None:
            self.runner.launch(plan)
            self.plans.append(plan)
            self._flying.append(plan.step)
        if self._flying and (plan is None or len(self._flying) == 2):
            self.scheduler.result(self.runner.collect(self._flying.popleft()))
            self._dispatch()

    def turns(self, count: int) -> None:
        for _ in range(count):
            self.turn()

    def until(self, holds: Callable[[], bool], most: int = 5000) -> None:
        for _ in range(most):
            if holds():
                return
            self.turn()
        raise AssertionError(f"not within {most} turns")

    def finish(self, most: int = 5000) -> None:
        """Until every stream ended and nothing is left to be done."""
        self.until(lambda: all(heard.done for heard in self.heard.values()), most)
        self.until(lambda: not self._flying and not self._prefills)

    def idle_pages(self) -> int:
        """Pages in use with every stream gone: the prefixes', and nothing else."""
        return self.scheduler.stats(self.clock(), 0.0).pages_used

    def events_of(self, stream: StreamId) -> Iterator[Event]:
        for event in self.events:
            match event:
                case Opened(sid) | Failed(sid):
                    if sid == stream:
                        yield event
                case _:
                    pass

    # The other threads ------------------------------------------------------------------------

    def work(self, pieces: int) -> None:
        """Do what waits for the prefill thread and for the voice thread."""
        while self.voices and not self.hold_voices:
            job = self.voices.popleft()
            if isinstance(job, VoiceDrop):
                continue  # it was answered already
            columns = self._voice(job.voice)
            if columns is None:
                self._report(VoiceFailed(job.job, *_UNKNOWN))
            else:
                self._report(VoiceReady(job.job, columns))
        for _ in range(pieces):
            if self._texts:
                self._compose(self._texts.popleft())
            elif self._prefills:
                self._prefill()
            elif self.saves and not self.hold_saves:
                self._save(self.saves.popleft())
            else:
                return

    def _compose(self, job: ComposeJob) -> None:
        pieces = () if "blank" in job.text else tuple(job.text.split("|"))
        utterances = tuple(Utterance(turn_of(piece), len(piece)) for piece in pieces)
        self._report(Composed(job.stream, job.text, utterances, self.fail_compose, job.span))

    def _prefill(self) -> None:
        job, chunks = self._prefills[0]
        error = loaded = False
        try:
            if job.host_pages and len(chunks) == len(job.chunks) and not self.runner.fail_copies:
                self.runner.load_pages(job.host_pages, job.chunks[-1].table)
                loaded = True
                chunks.clear()
            elif chunks:
                self.runner.prefill(chunks.popleft())
        except RuntimeError:
            error = True
        if error or not chunks:
            self._prefills.popleft()
            self._report(Prefilled(job.job, error, loaded))

    def _save(self, job: SaveJob) -> None:
        try:
            self.runner.save_pages(job.pages, job.host_pages)
        except RuntimeError:
            self._report(Saved(job.job, error=True))
        else:
            self._report(Saved(job.job))

    def _report(self, message: ToDecode) -> None:
        self.scheduler.message(message, self.clock())
        self._dispatch()

    def _dispatch(self) -> None:
        out = self.scheduler.out
        prefill, codec, voice, events = out.prefill[:], out.codec[:], out.voice[:], out.events[:]
        for line in (out.prefill, out.codec, out.voice, out.events):
            line.clear()
        self.voices.extend(voice)
        self.events.extend(events)
        for event in events:
            if isinstance(event, Failed):
                self.heard[event.stream].ends.append(event)
        for job in prefill:
            self._take(job)
        for message in codec:
            self._hear(message)

    def _take(self, job: ToPrefill) -> None:
        match job:
            case ComposeJob():
                self._texts.append(job)
            case PrefillJob():
                self._prefills.append((job, deque(job.chunks)))
            case SaveJob():
                self.saves.append(job)

    def _hear(self, message: CodecMessage) -> None:
        if isinstance(message, CodecFrames):
            for stream, frame in zip(message.streams, message.codes.tolist(), strict=True):
                heard = self.heard[stream]
                if not heard.dropped:
                    assert heard.open_stretch, f"frame of stream {stream} outside a stretch"
                    if heard.again:
                        assert heard.codes[-heard.again] == tuple(frame), (
                            "another frame than before"
                        )
                        heard.again -= 1
                        continue
                    heard.stretch += 1
                    heard.codes.append(tuple(frame))
                    self._sound(stream, heard, 1)
            return
        heard = self.heard[message.stream]
        assert not heard.done, f"{type(message).__name__} after the end of {message.stream}"
        match message:
            case CodecBegin(text=text, again=again):
                assert not heard.open_stretch
                heard.open_stretch = True
                heard.again = heard.stretch if again else 0
                heard.stretch = heard.stretch if again else 0
                if text is not None:
                    heard.order.append(text)
            case CodecPark():
                assert heard.open_stretch
                heard.open_stretch = False
            case CodecEnd():
                assert heard.open_stretch and not heard.again
                heard.open_stretch = False
            case CodecSilence(_, text, frames):
                heard.order.append(f"silence {text}")
                self._sound(message.stream, heard, frames)
            case CodecMark(_, mark):
                heard.order.append(f"mark {mark}")
            case CodecFinish(_, failure):
                heard.ends.append(failure)
            case CodecDrop():
                heard.dropped = True

    def _sound(self, stream: StreamId, heard: Heard, frames: int) -> None:
        now = self.clock()
        heard.first_s = now if heard.first_s is None else heard.first_s
        frame_s = self.runner.spec.frame_samples / self.runner.spec.sample_rate
        if heard.playout.sent(frames * frame_s, now):
            self.scheduler.message(Sounded(stream, now, heard.frames), now)
        heard.frames += frames


_UNKNOWN = (Fault.CLIENT, "Reference not found")


def starts_with(columns: Int32Array, text: str) -> bool:
    """Whether ``columns`` begin with those of ``text``."""
    return columns[: len(text), 0].tolist() == columns_of(text)[:, 0].tolist()


def failure(rig: Rig, stream: StreamId) -> Failed:
    """The failure that ``stream`` ended with."""
    (end,) = rig.heard[stream].ends
    assert isinstance(end, Failed)
    return end


def alone(text: str, voice_id: str | None = None, seed: int = 0, **kwargs: object) -> Heard:
    """What a listener gets of ``text`` with nobody else there."""
    rig = Rig(**kwargs)  # pyright: ignore[reportArgumentType]
    stream = rig.speak(text, voice_id, seed)
    rig.finish()
    return rig.heard[stream]

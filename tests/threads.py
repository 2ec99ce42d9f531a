"""The engine's threads, real ones on a scripted runner, at random speeds.

Time runs ``HASTE`` times as fast for the decode loop, the prefill thread and the codec thread. Each
time one of them goes to sleep, whatever would make it look again is done by hand, now and just
before it would wake by itself: nothing may come of that.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue

import numpy as np

from shoal.engine.api import (
    Cancel,
    Command,
    Event,
    Failed,
    Finished,
    StreamId,
)
from shoal.engine.config import Limits
from shoal.engine.decode import DecodeLoop, Inbound
from shoal.engine.defaults import VoiceDefaults
from shoal.engine.jobs import (
    CodecBegin,
    CodecFrames,
    CodecMessage,
    CodecPark,
    CodecSilence,
    Composed,
    ComposeJob,
    ToPrefill,
    ToVoice,
    Utterance,
    VoiceJob,
    VoiceReady,
)
from shoal.engine.prefill import Prefiller
from shoal.engine.runner import Int16Array, PrefillChunk, RunnerSpec, StepResult, VocodeBatch
from shoal.engine.scheduler import Scheduler
from shoal.engine.vocode import Vocoder
from tests.fakes import ScriptedRunner
from tests.rig import GREEDY, columns_of, turn_of

HASTE = 20.0
LIMIT_S = 30.0
FAR_S = 30.0
SLACK_S = 1.1e-3  # the codec thread wakes a millisecond late, so as not to wake twice


class Clock:
    """One thread's: ``HASTE`` times as fast as the machine's, or held still."""

    def __init__(self) -> None:
        self.last = 0.0
        self.held: float | None = None

    def __call__(self) -> float:
        self.last = time.monotonic() * HASTE if self.held is None else self.held
        return self.last


Probe = Callable[[float | None], None]


class Commands(SimpleQueue[Inbound | None]):
    """Timeouts are in the clock's seconds; ``probe`` is told of each before it is waited out."""

    probe: Probe

    def get(self, block: bool = True, timeout: float | None = None) -> Inbound | None:
        self.probe(timeout)
        return super().get(block, None if timeout is None else timeout / HASTE)


class Sounds(SimpleQueue[CodecMessage | None]):
    """The same, and notes all that was put in, in order."""

    probe: Probe

    def __init__(self) -> None:
        self.noted: list[CodecMessage] = []

    def put(
        self, item: CodecMessage | None, block: bool = True, timeout: float | None = None
    ) -> None:
        if item is not None:
            self.noted.append(item)
        super().put(item, block, timeout)

    def get(self, block: bool = True, timeout: float | None = None) -> CodecMessage | None:
        self.probe(timeout)
        return super().get(block, None if timeout is None else timeout / HASTE)


class Uneven(ScriptedRunner):
    """Everything takes a moment, now and then a long one."""

    def __init__(self, sizes: RunnerSpec, seed: int, breaks: float) -> None:
        """``breaks``: of the calls that may fail without the end of all, how many do."""
        super().__init__(sizes)
        self._breaks = breaks
        self._chance = {
            name: random.Random(f"{name} {seed}") for name in ("step", "prefill", "codec")
        }

    def _rest(self, what: str) -> None:
        chance = self._chance[what]
        most_s = chance.choice((0.0, 0.0, 0.001, 0.002, 0.01))
        if most_s:
            time.sleep(chance.random() * most_s)
        if what != "step" and chance.random() < self._breaks:
            raise RuntimeError("broken, as asked")

    def collect(self, step: int) -> StepResult:
        self._rest("step")
        return super().collect(step)

    def prefill(self, *chunks: PrefillChunk) -> None:
        self._rest("prefill")
        super().prefill(*chunks)

    def save_pages(self, pages: Sequence[int], host_pages: Sequence[int]) -> None:
        self._rest("prefill")
        super().save_pages(pages, host_pages)

    def load_pages(self, host_pages: Sequence[int], pages: Sequence[int]) -> None:
        self._rest("prefill")
        super().load_pages(host_pages, pages)

    def vocode(self, batch: VocodeBatch) -> Int16Array:
        self._rest("codec")
        return super().vocode(batch)


class Pieces:
    """A composer: an utterance between two bars, none for what is blank."""

    def compose(self, job: ComposeJob) -> Composed:
        pieces = () if "blank" in job.text else tuple(job.text.split("|"))
        turns = tuple(Utterance(turn_of(piece), len(piece)) for piece in pieces)
        return Composed(job.stream, job.text, turns)


@dataclass
class Heard:
    """What one stream delivered, and what it was asked."""

    events: list[Event] = field(default_factory=list[Event])
    text: str = ""
    marks: list[int] = field(default_factory=list[int])
    cancelled: bool = False
    batch: bool = False

    @property
    def over(self) -> bool:
        return self.cancelled or any(isinstance(e, Finished | Failed) for e in self.events)


class Threads:
    """See the module."""

    def __init__(self, seed: int, sizes: RunnerSpec, limits: Limits, breaks: float) -> None:
        self.runner = Uneven(sizes, seed, breaks)
        self.clock, self.codec_clock = Clock(), Clock()
        self.scheduler = Scheduler(
            sizes,
            limits,
            VoiceDefaults(GREEDY, None, 1 << 20, columns_of("system"), columns_of("\n")),
            lambda: 1,
        )
        self.inbox, self.to_codec = Commands(), Sounds()
        self.to_prefill: SimpleQueue[ToPrefill | None] = SimpleQueue()
        self.to_voice: SimpleQueue[ToVoice | None] = SimpleQueue()
        self.loop = DecodeLoop(
            self.runner,
            self.scheduler,
            self.inbox,
            self.to_prefill,
            self.to_voice.put,
            self.to_codec,
            self._deliver,
            self.clock,
        )
        composer: object = Pieces()
        self.prefiller = Prefiller(self.runner, composer, self.to_prefill, self.inbox.put)  # type: ignore[arg-type]
        self.vocoder = Vocoder(
            self.runner,
            self.to_codec,
            self._deliver,
            self.inbox.put,
            lambda stream: self.inbox.put(Cancel(stream)),
            self.codec_clock,
        )
        self.inbox.probe = self._loop_sleeps
        self.to_codec.probe = self._codec_sleeps
        self.heard: dict[StreamId, Heard] = {}
        self.troubles: list[BaseException] = []
        self.probes: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._threads = [
            threading.Thread(target=self._run, args=(body,), daemon=True)
            for body in (self.loop.run, self.prefiller.run, self.vocoder.run, self._voices)
        ]
        for thread in self._threads:
            thread.start()

    def _run(self, body: Callable[[], None]) -> None:
        try:
            body()
        except BaseException as error:
            self.troubles.append(error)

    def _deliver(self, events: Sequence[Event]) -> None:
        with self._lock:
            for event in events:
                self.heard[event.stream].events.append(event)

    def _voices(self) -> None:
        chance = random.Random(1)
        while (job := self.to_voice.get()) is not None:
            if not isinstance(job, VoiceJob):
                continue  # it was answered already
            time.sleep(chance.random() * 0.01)
            self.inbox.put(VoiceReady(job.job, columns_of(f"voice {job.voice.voice_id}")))

    def submit(self, command: Command) -> None:
        self.inbox.put(command)

    # Before a sleep ---------------------------------------------------------------------------

    def _loop_sleeps(self, timeout: float | None) -> None:
        if self.runner.in_flight or (timeout is not None and timeout <= 0.0):
            return
        now = self.clock.last
        for at in (now, now + (FAR_S if timeout is None else timeout - 1e-6)):
            self.probes["decode"] += 1
            self.scheduler.advance(at)
            plan = self.scheduler.plan(at)
            assert plan is None, f"{plan} was slept over, {at - now} s of {timeout}"
            out = self.scheduler.out
            # Text of batch priority may be looked at once more while the one before is prefilled.
            for job in [job for job in out.prefill if isinstance(job, ComposeJob)]:
                if self.heard[job.stream].batch:
                    out.prefill.remove(job)
                    self.to_prefill.put(job)
            assert not (out.prefill or out.codec or out.voice or out.events), f"{out}"

    def _codec_sleeps(self, timeout: float | None) -> None:
        if timeout is not None and timeout <= SLACK_S:
            return
        now, vocoder = self.codec_clock.last, self.vocoder
        for at in (now, now + (FAR_S if timeout is None else timeout - SLACK_S)):
            self.probes["codec"] += 1
            self.codec_clock.held = at
            listeners = vocoder._listeners  # pyright: ignore[reportPrivateUsage]
            vocoder._passable.update(listeners)  # pyright: ignore[reportPrivateUsage]
            for listener in listeners.values():
                listener.due_s = 0.0
            assert not vocoder.work(), f"sound was slept over, {at - now} s of {timeout}"
        self.codec_clock.held = None

    # The end ----------------------------------------------------------------------------------

    def until(self, holds: Callable[[], bool], what: str) -> None:
        end_s = time.monotonic() + LIMIT_S
        while not holds():
            if self.troubles:
                raise self.troubles[0]
            open_ = [stream for stream, heard in self.heard.items() if not heard.over]
            assert time.monotonic() < end_s, f"{what}: {open_}, {self.loop.stats}"
            time.sleep(0.002)

    def stop(self) -> None:
        self.inbox.put(None)
        self.to_prefill.put(None)
        self.to_codec.put(None)
        self.to_voice.put(None)
        for thread in self._threads:
            thread.join(LIMIT_S)
            assert not thread.is_alive()
        if self.troubles:
            raise self.troubles[0]

    def stretches(self) -> dict[StreamId, bytes]:
        """What each stream should sound like by what the codec was given."""
        sound: dict[StreamId, list[list[tuple[int, ...]] | int]] = {}
        before: dict[StreamId, list[tuple[int, ...]]] = {}
        for message in self.to_codec.noted:
            match message:
                case CodecFrames(streams, codes):
                    for stream, frame in zip(streams, codes.tolist(), strict=True):
                        last = sound[stream][-1]
                        assert isinstance(last, list)
                        last.append(tuple(frame))
                case CodecBegin(stream, again=again):
                    parts = sound.setdefault(stream, [])
                    known = before.pop(stream, [])
                    if again:
                        last = parts.pop()
                        assert isinstance(last, list)
                        before[stream] = max(known, last, key=len)
                    parts.append([])
                case CodecSilence(stream, _, frames):
                    sound.setdefault(stream, []).append(frames)
                case CodecPark() | _:
                    pass
        for stream, parked in before.items():  # which may have ended before it was said again
            last = sound[stream][-1]
            if isinstance(last, list) and parked[: len(last)] == last:
                sound[stream][-1] = max(parked, last, key=len)
        return {stream: b"".join(map(_pcm, parts)) for stream, parts in sound.items()}


def _pcm(part: list[tuple[int, ...]] | int) -> bytes:
    if isinstance(part, int):
        return bytes(2 * 40 * part)
    state, levels = 0, list[int]()
    for frame in part:
        state = (31 * state + sum(frame) + 1) % 32003
        levels.append(state)
    return np.repeat(np.array(levels, "<i2"), 40).tobytes()

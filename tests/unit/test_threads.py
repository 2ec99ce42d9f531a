"""The engine's threads side by side at random speeds: nobody is left behind, and nobody oversleeps.

The decode loop, the prefill thread and the codec thread are the real ones, on a scripted runner.
Time runs ``HASTE`` times as fast for them. Each time one of them goes to sleep, whatever would
make it look again is done by hand, now and just before it would wake by itself: nothing may come
of that.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from queue import SimpleQueue

import numpy as np
import pytest

from shoal.engine.api import (
    Cancel,
    Command,
    EndText,
    Event,
    Failed,
    Fault,
    Finished,
    Flush,
    Flushed,
    Open,
    Opened,
    Pause,
    Pcm,
    Priority,
    PushText,
    Resume,
    Sampling,
    Segmentation,
    SegmentStarted,
    StreamId,
    Voice,
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
    Utterance,
    VoiceJob,
    VoiceReady,
)
from shoal.engine.prefill import Prefiller
from shoal.engine.runner import Int16Array, PrefillChunk, RunnerSpec, StepResult, VocodeBatch
from shoal.engine.scheduler import Scheduler
from shoal.engine.vocode import Vocoder
from tests.fakes import ScriptedRunner, spec
from tests.rig import GREEDY, WIDE, columns_of, frames_in, turn_of

HASTE = 20.0
LIMIT_S = 30.0
FAR_S = 30.0
SLACK_S = 1.1e-3  # the codec thread wakes a millisecond late, so as not to wake twice
PATIENT = replace(WIDE, wait_s=1e6, streams=1000, waiting=1000, batch_streams=1000)
HASTY = replace(PATIENT, wait_s=2.0, waiting=3)
WORDS = ("say 3", "four words of text", "blank", "a|b 7|c", "say 30", "nothing 0", "one 1")


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
        self.to_voice: SimpleQueue[VoiceJob | None] = SimpleQueue()
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
        for message in self.to_codec.noted:
            match message:
                case CodecFrames(streams, codes):
                    for stream, frame in zip(streams, codes.tolist(), strict=True):
                        last = sound[stream][-1]
                        assert isinstance(last, list)
                        last.append(tuple(frame))
                case CodecBegin(stream, again=again):
                    parts = sound.setdefault(stream, [])
                    if again:
                        parts.pop()
                    parts.append([])
                case CodecSilence(stream, _, frames):
                    sound.setdefault(stream, []).append(frames)
                case CodecPark() | _:
                    pass
        return {stream: b"".join(map(_pcm, parts)) for stream, parts in sound.items()}


def _pcm(part: list[tuple[int, ...]] | int) -> bytes:
    if isinstance(part, int):
        return bytes(2 * 40 * part)
    state, levels = 0, list[int]()
    for frame in part:
        state = (31 * state + sum(frame) + 1) % 32003
        levels.append(state)
    return np.repeat(np.array(levels, "<i2"), 40).tobytes()


def _one(threads: Threads, stream: StreamId, chance: random.Random) -> None:
    """A client with its own thread: a turn in pieces, and perhaps a change of mind."""
    heard = threads.heard[stream]
    heard.batch = chance.random() < 0.25
    voice = Voice(chance.choice((None, None, "a", "b", "c")))
    rules = Segmentation(min_chars=chance.choice((0, 50)))
    priority = Priority.BATCH if heard.batch else Priority.LIVE
    threads.submit(Open(stream, voice, Sampling(seed=int(stream)), rules, priority))
    paused, fate = False, chance.random()
    for _ in range(chance.randrange(0, 7)):
        time.sleep(chance.choice((0.0, 0.0, 0.002, 0.02, 0.1)) * chance.random())
        match chance.randrange(8):
            case 0:
                heard.marks.append(len(heard.marks))
                threads.submit(Flush(stream, heard.marks[-1]))
            case 1:
                paused = not paused
                threads.submit(Pause(stream) if paused else Resume(stream))
            case _:
                text = chance.choice(WORDS) + chance.choice((". ", ". ", " ", ""))
                heard.text += text
                threads.submit(PushText(stream, text))
    if fate < 0.2:
        time.sleep(chance.random() * 0.1)
        heard.cancelled = True
        threads.submit(Cancel(stream))
        return
    threads.submit(EndText(stream))
    if paused:
        time.sleep(chance.random() * 0.05)
        threads.submit(Resume(stream))


def _check(stream: StreamId, heard: Heard, sound: bytes, faults: set[Fault]) -> None:
    """Everything came once and in order, and nothing was left out."""
    events = heard.events
    failed = isinstance(events[-1], Failed) and events[-1].fault in faults if events else False
    if heard.cancelled or failed:
        assert sum(isinstance(event, Finished | Failed) for event in events) <= 1
        got = b"".join(e.samples for e in events if isinstance(e, Pcm))
        assert sound.startswith(got)
        return
    assert isinstance(events[0], Opened)
    end = events[-1]
    assert isinstance(end, Finished), f"{stream}: {end}"
    chunks = [e for e in events if isinstance(e, Pcm)]
    assert [e.seq for e in chunks] == list(range(len(chunks)))
    assert b"".join(e.samples for e in chunks) == sound
    assert end.samples == len(sound) // 2
    segments = [e for e in events if isinstance(e, SegmentStarted)]
    assert [e.index for e in segments] == list(range(len(segments))) and end.segments == len(
        segments
    )
    assert "".join("".join(e.text.split()) for e in segments) == "".join(heard.text.split())
    frames = 0
    for segment in segments:
        silent = "blank" in segment.text
        pieces = ["2"] if silent else segment.text.split("|")
        frames += sum(frames_in(piece) or 2 for piece in pieces)
    assert end.frames == frames
    assert [e.mark for e in events if isinstance(e, Flushed)] == heard.marks
    assert sum(1 for e in events if isinstance(e, Opened | Finished | Failed)) == 2


@pytest.mark.parametrize("seed", range(4))
def test_every_stream_ends_whole_and_no_thread_oversleeps(seed: int) -> None:
    _storm(seed, PATIENT, 0.0, set())


@pytest.mark.parametrize("seed", range(2))
def test_who_is_refused_leaves_nothing_behind(seed: int) -> None:
    _storm(seed, HASTY, 0.0, {Fault.BUSY})


@pytest.mark.parametrize("seed", range(2))
def test_what_breaks_ends_its_streams_and_leaves_nothing_behind(seed: int) -> None:
    _storm(seed, PATIENT, 0.02, {Fault.ENGINE})


def _storm(seed: int, limits: Limits, breaks: float, faults: set[Fault]) -> None:
    """``faults``: those with which streams may end."""
    chance = random.Random(seed)
    sizes = spec(slots=chance.choice((1, 2, 4)), pages=chance.choice((48, 160)), max_positions=256)
    threads = Threads(seed, sizes, limits, breaks)
    clients: list[threading.Thread] = []
    for number in range(1, 41):
        stream = StreamId(number)
        threads.heard[stream] = Heard()
        own = random.Random(f"{seed} {number}")
        clients.append(threading.Thread(target=_one, args=(threads, stream, own)))
        clients[-1].start()
        time.sleep(chance.choice((0.0, 0.005, 0.03)))
    for client in clients:
        client.join()
    threads.until(lambda: all(heard.over for heard in threads.heard.values()), "streams go on")
    threads.until(lambda: not threads.loop.stats.streams_open, "streams are left")
    threads.until(lambda: not threads.loop.stats.slots_busy, "slots are left")
    threads.stop()
    memory = threads.scheduler._memory  # pyright: ignore[reportPrivateUsage]
    held = sum(len(prefix.pages) for prefix in memory.prefixes._entries.values())  # pyright: ignore[reportPrivateUsage]
    assert (memory.pool.total - memory.pool.free, memory.promised) == (held, 0)
    assert not threads.vocoder._listeners  # pyright: ignore[reportPrivateUsage]
    assert min(threads.probes.values()) > 10
    sound = threads.stretches()
    ends = [heard.events[-1] for heard in threads.heard.values() if heard.events]
    failed = {end.fault for end in ends if isinstance(end, Failed)}
    assert failed == faults
    for stream, heard in threads.heard.items():
        _check(stream, heard, sound.get(stream, b""), faults)

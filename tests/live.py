"""A started engine with a real model, and what every stream of it delivered."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import Empty, SimpleQueue

from shoal.engine.api import (
    EndText,
    Event,
    Failed,
    Finished,
    Open,
    Pcm,
    PushText,
    Sampling,
    SegmentStarted,
    StreamId,
    Voice,
)
from shoal.engine.config import EngineConfig
from shoal.engine.loading import load_model
from shoal.engine.runner import (
    Float32Array,
    Int16Array,
    Int32Array,
    Join,
    PrefillChunk,
    Runner,
    RunnerSpec,
    StepPlan,
    StepResult,
    VocodeBatch,
)
from shoal.engine.service import SpeechEngine

ENOUGH_S = 240.0


class Recording:
    """A runner that notes what goes through it, and hands everything on."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self.joins: dict[tuple[int, int], Join] = {}
        self.plans: list[StepPlan] = []
        self.prefills: list[PrefillChunk] = []
        self.saved: list[tuple[int, ...]] = []
        self.loaded: list[tuple[int, ...]] = []
        self.codes: dict[int, list[tuple[int, ...]]] = {}
        """By seed: the columns that a stream drew."""
        self.launching: Callable[[], None] = lambda: None
        """Called on the decode thread before every step: what it submits comes between two."""

    @property
    def spec(self) -> RunnerSpec:
        return self._runner.spec

    def warm_up(self) -> None:
        self._runner.warm_up()

    def launch(self, plan: StepPlan) -> None:
        self.launching()
        self.plans.append(plan)
        for join in plan.joins:
            self.joins[join.slot, join.generation] = join
        self._runner.launch(plan)

    def collect(self, step: int) -> StepResult:
        result = self._runner.collect(step)
        rows = zip(result.slots, result.generations, result.columns, strict=True)
        for slot, generation, column in rows:
            seed = self.joins[slot, generation].sampling.seed
            self.codes.setdefault(seed, []).append(tuple(column.tolist()))
        return result

    def prefill(self, *chunks: PrefillChunk) -> None:
        self.prefills.extend(chunks)
        self._runner.prefill(*chunks)

    def save_pages(self, pages: Sequence[int], host_pages: Sequence[int]) -> None:
        self._runner.save_pages(pages, host_pages)
        self.saved.append(tuple(pages))

    def load_pages(self, host_pages: Sequence[int], pages: Sequence[int]) -> None:
        self._runner.load_pages(host_pages, pages)
        self.loaded.append(tuple(pages))

    def vocode(self, batch: VocodeBatch) -> Int16Array:
        return self._runner.vocode(batch)

    def encode(self, samples: Float32Array) -> Int32Array:
        return self._runner.encode(samples)

    def close(self) -> None:
        self._runner.close()


@dataclass
class Take:
    """What one stream delivered."""

    events: list[Event] = field(default_factory=list[Event])

    @property
    def pcm(self) -> bytes:
        return b"".join(event.samples for event in self.events if isinstance(event, Pcm))

    @property
    def segments(self) -> list[SegmentStarted]:
        return [event for event in self.events if isinstance(event, SegmentStarted)]

    @property
    def end(self) -> Finished | Failed | None:
        last = self.events[-1] if self.events else None
        return last if isinstance(last, Finished | Failed) else None


class Live:
    """A started engine, its runner, and what every stream delivered."""

    def __init__(self, engine: SpeechEngine, runner: Recording) -> None:
        self.engine = engine
        self.runner = runner
        self.takes: dict[StreamId, Take] = {}
        self.fatal: list[BaseException] = []
        self._events: SimpleQueue[Event] = SimpleQueue()
        self._opened = 0
        engine.start(self._deliver, self.fatal.append)

    def _deliver(self, events: Sequence[Event]) -> None:
        for event in events:
            self._events.put(event)

    def open(self, sampling: Sampling, voice: Voice | None = None) -> StreamId:
        self._opened += 1
        stream = StreamId(self._opened)
        self.takes[stream] = Take()
        self.engine.submit(Open(stream, voice or Voice(), sampling))
        return stream

    def speak(self, text: str, sampling: Sampling, voice: Voice | None = None) -> StreamId:
        stream = self.open(sampling, voice)
        self.engine.submit(PushText(stream, text))
        self.engine.submit(EndText(stream))
        return stream

    def wait(self, *streams: StreamId, within_s: float = ENOUGH_S) -> None:
        """Until ``streams`` ended."""
        until = time.monotonic() + within_s
        while any(self.takes[stream].end is None for stream in streams):
            try:
                self._take(self._events.get(timeout=max(0.01, until - time.monotonic())))
            except Empty:
                raise AssertionError(f"not ended within {within_s} s") from None

    def drain(self) -> None:
        while not self._events.empty():
            self._take(self._events.get())

    def _take(self, event: Event) -> None:
        take = self.takes[event.stream]
        assert take.end is None, "an event after the end"
        take.events.append(event)

    def quiet(self) -> None:
        """Until no slot is busy any more."""
        until = time.monotonic() + ENOUGH_S
        while self.engine.stats().slots_busy or self.engine.stats().streams_open:
            assert time.monotonic() < until
            time.sleep(0.005)


@contextmanager
def live(model: Path, slots: int = 8) -> Generator[Live]:
    config = EngineConfig(model=model, device="cpu", slots=slots)
    loaded = load_model(config, lambda _: None)
    runner = Recording(loaded.runner)
    engine = Live(SpeechEngine(config, model=replace(loaded, runner=runner)), runner)
    yield engine
    engine.engine.stop()
    assert engine.fatal == []

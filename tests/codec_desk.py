"""A vocoder and everything around it, for tests of the codec's thread."""

from __future__ import annotations

from collections.abc import Sequence
from queue import SimpleQueue

import numpy as np

from shoal.engine.api import Event, Pcm, StreamId
from shoal.engine.jobs import CodecFrames, CodecMessage, Sounded
from shoal.engine.runner import Int16Array, Int32Array
from shoal.engine.vocode import Vocoder
from tests.fakes import ManualClock, ScriptedRunner, spec

FRAME = 40  # samples, 50 ms


class Desk:
    """A vocoder and everything around it."""

    def __init__(self, runner: ScriptedRunner | None = None) -> None:
        self.runner = runner or ScriptedRunner(spec())
        self.clock = ManualClock()
        self.events: list[Event] = []
        self.batches: list[int] = []
        self.sounded: list[Sounded] = []
        self.cancelled: list[StreamId] = []
        self.inbox: SimpleQueue[CodecMessage | None] = SimpleQueue()
        self.vocoder = Vocoder(
            self.runner,
            self.inbox,
            self._deliver,
            self.sounded.append,
            self.cancelled.append,
            self.clock,
        )

    def _deliver(self, events: Sequence[Event]) -> None:
        self.events.extend(events)
        self.batches.append(len(events))

    def take(self, *messages: CodecMessage) -> None:
        for message in messages:
            self.vocoder.take(message)

    def frames(self, codes: Int32Array, *streams: StreamId) -> None:
        """One step's frames: row i of ``codes`` is stream i's."""
        self.take(CodecFrames(streams, codes))

    def work(self) -> None:
        while self.vocoder.work():
            pass

    def pcm(self, stream: StreamId) -> Int16Array:
        """One sample a frame: all of a frame's are the same."""
        data = b"".join(e.samples for e in self.events if isinstance(e, Pcm) and e.stream == stream)
        return np.frombuffer(data, "<i2")[::FRAME]

    def chunks(self, stream: StreamId) -> list[int]:
        return [
            len(e.samples) // 2 // FRAME
            for e in self.events
            if isinstance(e, Pcm) and e.stream == stream
        ]


def codes_of(count: int, seed: int = 0) -> Int32Array:
    return np.random.default_rng(seed).integers(0, 1000, (count, 3)).astype(np.int32)


def feed(desk: Desk, stream: StreamId, codes: Int32Array, *, work: bool = True) -> None:
    for frame in codes:
        desk.frames(frame[None], stream)
        if work:
            desk.work()

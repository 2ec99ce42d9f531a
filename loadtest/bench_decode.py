"""What a turn of the decode thread costs by itself: the loop and the scheduler over a null device.

Run the file. It prints microseconds of Python per turn (p50, p99) with 1, 16, 64 and 256 streams
that all speak in every step.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Sequence
from queue import SimpleQueue

import numpy as np

from shoal.engine.api import Open, PushText, Sampling, Segmentation, StreamId
from shoal.engine.config import Limits
from shoal.engine.decode import DecodeLoop, Inbound
from shoal.engine.defaults import VoiceDefaults
from shoal.engine.jobs import (
    CodecMessage,
    Composed,
    ComposeJob,
    Prefilled,
    PrefillJob,
    SaveJob,
    ToPrefill,
    Utterance,
)
from shoal.engine.runner import (
    Float32Array,
    Int16Array,
    Int32Array,
    PrefillChunk,
    RunnerSpec,
    StepPlan,
    StepResult,
    VocodeBatch,
)
from shoal.engine.scheduler import Scheduler

STREAMS = (1, 16, 64, 256)
_CODEBOOKS = 10
_FRAME_S = 2048 / 44_100


class NullRunner:
    """Every step is done at once, and no row ever ends."""

    def __init__(self, slots: int) -> None:
        self.spec = RunnerSpec(
            codebooks=_CODEBOOKS,
            frame_samples=2048,
            sample_rate=44_100,
            max_slots=slots,
            page_tokens=64,
            pages=slots * 64 + 16,
            max_positions=4096,
            end_token=1,
            pcm_batch_frames=(1, 2, 4, 8, 16),
        )
        self._generations = [0] * slots
        self._plan: dict[int, StepPlan] = {}

    def warm_up(self) -> None:
        """Nothing to do."""

    def launch(self, plan: StepPlan) -> None:
        for join in plan.joins:
            self._generations[join.slot] = join.generation
        self._plan[plan.step] = plan

    def collect(self, step: int) -> StepResult:
        slots = self._plan.pop(step).slots
        rows = len(slots)
        return StepResult(
            step,
            slots,
            tuple(self._generations[slot] for slot in slots),
            np.ones((rows, 1 + _CODEBOOKS), np.int32),
            np.zeros(rows, np.bool_),
        )

    def prefill(self, *chunks: PrefillChunk) -> None:
        """Nothing to do."""

    def save_pages(self, pages: Sequence[int], host_pages: Sequence[int]) -> None:
        raise NotImplementedError  # it has no pages in the host's memory

    def load_pages(self, host_pages: Sequence[int], pages: Sequence[int]) -> None:
        raise NotImplementedError

    def vocode(self, batch: VocodeBatch) -> Int16Array:
        raise NotImplementedError

    def encode(self, samples: Float32Array) -> Int32Array:
        raise NotImplementedError

    def close(self) -> None:
        """Nothing to do."""


class Clock:
    """Stands still while a turn runs."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def measure(streams: int, turns: int) -> tuple[float, float]:
    """Microseconds a turn, p50 and p99, of turns in which all ``streams`` run."""
    runner, clock = NullRunner(streams), Clock()
    columns = np.zeros((64, 1 + _CODEBOOKS), np.int32)
    sampling = Sampling(0.7, 0.7, 30, None, 1 << 20)
    scheduler = Scheduler(
        runner.spec,
        Limits(frames_per_byte=1e5, waiting=streams, streams=streams, park_lead_s=1e9),
        VoiceDefaults(sampling, None, 4096, columns, columns[:1]),
        lambda: 1,
    )
    inbox: SimpleQueue[Inbound | None] = SimpleQueue()
    to_prefill: SimpleQueue[ToPrefill | None] = SimpleQueue()
    to_codec: SimpleQueue[CodecMessage | None] = SimpleQueue()
    loop = DecodeLoop(
        runner,
        scheduler,
        inbox,
        to_prefill,
        lambda _job: None,
        to_codec,
        lambda _events: None,
        clock,
    )
    for number in range(streams):
        stream = StreamId(number)
        scheduler.command(Open(stream, sampling=sampling, segmentation=Segmentation()), clock())
        scheduler.command(PushText(stream, "Speak for as long as you can. And then? "), clock())
    for _ in range(8):
        loop.turn()
        while not to_prefill.empty():
            match to_prefill.get():
                case ComposeJob(stream, text):
                    said = Composed(stream, text, (Utterance(columns, len(text)),))
                    scheduler.message(said, clock())
                case PrefillJob(job):
                    scheduler.message(Prefilled(job), clock())
                case SaveJob() | None:
                    pass
    taken: list[float] = []
    gc.collect()
    gc.freeze()
    gc.disable()
    before = scheduler.stats(clock(), 0.0).frames
    for _ in range(turns):
        clock.now += _FRAME_S
        begun = time.perf_counter()
        loop.turn()
        taken.append(time.perf_counter() - begun)
        while not to_codec.empty():
            to_codec.get()
    gc.enable()
    made = scheduler.stats(clock(), 0.0).frames - before
    if made < streams * (turns - 2):
        raise RuntimeError(f"{made} frames of {streams * turns}: not all streams ran")
    p50, p99 = np.percentile(np.array(taken) * 1e6, [50, 99])
    return float(p50), float(p99)


def main() -> None:
    parser = argparse.ArgumentParser(description="Python time of one turn of the decode thread")
    parser.add_argument("--turns", type=int, default=1500)
    turns: int = parser.parse_args().turns
    print("streams   p50 us   p99 us")
    for streams in STREAMS:
        p50, p99 = measure(streams, turns)
        print(f"{streams:7d}  {p50:7.0f}  {p99:7.0f}")


if __name__ == "__main__":
    main()

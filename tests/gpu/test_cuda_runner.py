"""The CUDA runner on a GPU, with the built-in voice: bits, isolation, no waiting, no allocating."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np
import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA GPU", allow_module_level=True)

from shoal.engine.codec import load_codec
from shoal.engine.config import BUILTIN_VOICE, EngineConfig
from shoal.engine.cpu_runner import CpuRunner
from shoal.engine.cuda.load import device_runner
from shoal.engine.model.config import read_config
from shoal.engine.model.weights import load_weights
from shoal.engine.prompt import PromptBuilder
from shoal.engine.runner import (
    Join,
    PrefillChunk,
    Runner,
    SlotSampling,
    StepPlan,
    VocodeBatch,
)
from shoal.engine.tokenizer import load_tokenizer

SLOTS = 8
FRAMES = 24
GPU = torch.device("cuda")


def make(dtype: Literal["bf16", "fp8"], *, pdl: bool = False) -> Runner:
    shape = read_config(BUILTIN_VOICE)
    config = EngineConfig(BUILTIN_VOICE, "cuda", dtype, slots=SLOTS, pages=64)
    runner = device_runner(
        config,
        shape,
        load_weights(BUILTIN_VOICE, shape),
        load_tokenizer(BUILTIN_VOICE),
        load_codec(BUILTIN_VOICE, device=GPU),
        GPU,
        lambda _line: None,
        pdl=pdl,
    )
    runner.warm_up()
    return runner


class Driver:
    """Steps a runner by hand; one per runner, since steps are numbered."""

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        tokenizer = load_tokenizer(BUILTIN_VOICE)
        shape = read_config(BUILTIN_VOICE)
        self.prompt = PromptBuilder(
            tokenizer, shape.codebooks, shape.semantic_ids(tokenizer.semantic)
        )
        self.step = 0

    def start(self, slot: int, text: str, seed: int) -> Join:
        columns = np.concatenate([self.prompt.prefix(), self.prompt.user_turn(text)])
        table = tuple(range(slot * 6, slot * 6 + 6))
        self.runner.prefill(PrefillChunk(columns[:-1], 0, table))
        sampling = SlotSampling(temperature=0.7, top_p=0.9, top_k=30, seed=seed)
        return Join(slot, 1, len(columns) - 1, 0, columns[-1], table, sampling)

    def run(self, slots: Sequence[int], joins: Sequence[Join], frames: int) -> np.ndarray:
        """int32 [frames, rows, 1 + codebooks], two steps in flight."""
        drawn: list[np.ndarray] = []
        pending: list[int] = []
        for index in range(frames):
            plan = StepPlan(self.step, tuple(slots), tuple(joins) if not index else ())
            self.runner.launch(plan)
            pending.append(self.step)
            self.step += 1
            if len(pending) == 2:
                drawn.append(self.runner.collect(pending.pop(0)).columns)
        drawn.extend(self.runner.collect(step).columns for step in pending)
        return np.stack(drawn)


@pytest.fixture(scope="module")
def fp8() -> Iterator[Driver]:
    runner = make("fp8")
    yield Driver(runner)
    runner.close()


TEXT = "The birch canoe slid on the smooth planks."


def test_a_stream_draws_the_same_alone_and_among_neighbours(fp8: Driver) -> None:
    alone = fp8.run((0,), (fp8.start(0, TEXT, 5),), FRAMES)
    for slots in ((0, 1), (3, 0, 5, 7, 2), tuple(range(SLOTS))):
        joins = [
            fp8.start(slot, TEXT if slot == 0 else f"Neighbour number {slot}.", 5 + slot)
            for slot in slots
        ]
        among = fp8.run(slots, joins, FRAMES)
        assert np.array_equal(among[:, slots.index(0)], alone[:, 0]), slots


def test_programmatic_launch_changes_no_bit(fp8: Driver) -> None:
    runner = make("fp8", pdl=True)
    early = Driver(runner)
    slots = tuple(range(SLOTS))
    for _ in range(5):
        joins = [[d.start(slot, TEXT, 40 + slot) for slot in slots] for d in (fp8, early)]
        plain, launched = fp8.run(slots, joins[0], FRAMES), early.run(slots, joins[1], FRAMES)
        assert np.array_equal(plain, launched)
    runner.close()


def test_steady_steps_neither_wait_nor_allocate(fp8: Driver) -> None:
    slots = tuple(range(SLOTS))
    fp8.run(slots, [fp8.start(slot, TEXT, slot) for slot in slots], 4)
    torch.cuda.set_sync_debug_mode("error")
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    try:
        fp8.run(slots, (), FRAMES)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before


def test_bf16_draws_the_cpu_s_first_frames(fp8: Driver) -> None:
    cpu = CpuRunner.load(BUILTIN_VOICE, slots=SLOTS, pages=64)
    gpu = make("bf16")
    drawn = [Driver(runner) for runner in (cpu, gpu)]
    texts = ["Hi.", "Hello there.", TEXT, "Thank you very much."]
    first = [
        [d.run((0,), (d.start(0, text, 3),), 1)[0, 0].tolist() for text in texts] for d in drawn
    ]
    cpu.close()
    gpu.close()
    same = sum(a[0] == b[0] for a, b in zip(*first, strict=True))
    assert same >= 3, first  # a near tie may fall either way in bf16


def test_the_codec_streams_what_the_cpu_decodes(fp8: Driver) -> None:
    codes = np.random.default_rng(0).integers(0, 1000, (3, 12, 8), dtype=np.int32)
    cpu = CpuRunner.load(BUILTIN_VOICE, slots=SLOTS, pages=8)
    whole = cpu.vocode(VocodeBatch((0, 1, 2), codes, np.ones(3, np.bool_)))
    cpu.close()
    parts: list[np.ndarray] = []
    at = 0
    for frames in (1, 2, 1, 8):
        batch = VocodeBatch((4, 1, 6), codes[:, at : at + frames], np.full(3, at == 0))
        parts.append(fp8.runner.vocode(batch))
        at += frames
    error = np.concatenate(parts, 1).astype(np.float64) - whole
    assert np.abs(error).max() <= 0.01 * np.abs(whole).max()

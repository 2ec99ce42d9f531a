"""One stream's segment on a runner, and how tests run several of them side by side."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from shoal.engine.codec import load_codec
from shoal.engine.cpu_runner import CpuRunner
from shoal.engine.model.compile import packs_linear
from shoal.engine.model.config import read_config
from shoal.engine.model.dual_ar import DualAR
from shoal.engine.model.weights import load_weights
from shoal.engine.prompt import PromptBuilder
from shoal.engine.runner import (
    Int32Array,
    Join,
    PageGrant,
    PrefillChunk,
    SlotSampling,
    StepPlan,
    StepResult,
)
from shoal.engine.tokenizer import load_tokenizer

DATA = Path(__file__).parent / "data"
BUILTIN = Path(__file__).parents[1] / "engine" / "builtin_voice"
PAGE = 64
SLOTS = 8
PAGES_EACH = 6
GREEDY = SlotSampling(temperature=0.0, top_p=0.9, top_k=30, seed=0)


@dataclass
class Turn:
    """One stream's segment on a runner: a prompt, pages of its own, and what came out."""

    slot: int
    prompt: Int32Array
    sampling: SlotSampling
    draw: int = 0
    generation: int = 0
    first_page: int | None = None
    columns: list[list[int]] = field(default_factory=list)
    ended: bool = False

    @property
    def table(self) -> tuple[int, ...]:
        first = self.slot * PAGES_EACH if self.first_page is None else self.first_page
        return tuple(range(first, first + PAGES_EACH))

    def prefill(self, runner: CpuRunner) -> None:
        runner.prefill(PrefillChunk(self.prompt[:-1], 0, self.table))

    def join(self) -> Join:
        return Join(
            slot=self.slot,
            generation=self.generation,
            position=len(self.prompt) - 1,
            draw=self.draw,
            column=self.prompt[-1],
            table=self.table,
            sampling=self.sampling,
        )

    def take(self, result: StepResult) -> None:
        if self.slot in result.slots and not self.ended:
            row = result.slots.index(self.slot)
            self.columns.append(result.columns[row].tolist())
            self.ended = bool(result.ended[row])


class Steps:
    """Counts the steps of one runner across tests."""

    def __init__(self, runner: CpuRunner) -> None:
        self.runner = runner
        self.count = 0

    def one(
        self,
        slots: Sequence[int],
        joins: Sequence[Join] = (),
        grants: Sequence[PageGrant] = (),
    ) -> StepResult:
        self.runner.launch(StepPlan(self.count, tuple(slots), tuple(joins), tuple(grants)))
        self.count += 1
        return self.runner.collect(self.count - 1)

    def speak(self, turns: Sequence[Turn], steps: int) -> None:
        """Join all turns at once and run them side by side."""
        for turn in turns:
            turn.prefill(self.runner)
        joins = [turn.join() for turn in turns]
        for _ in range(steps):
            live = [turn.slot for turn in turns if not turn.ended]
            if not live:
                return
            result = self.one(live, joins)
            joins = []
            for turn in turns:
                turn.take(result)


def builder_of(folder: Path, codebooks: int) -> PromptBuilder:
    tokenizer = load_tokenizer(folder)
    assert tokenizer.semantic is not None
    return PromptBuilder(tokenizer, codebooks, tokenizer.semantic)


BUILDER = builder_of(BUILTIN, 8)


def prompt_of(text: str) -> Int32Array:
    return np.concatenate([BUILDER.prefix(), BUILDER.user_turn(text)])


TEXTS = (
    "hello there, how are you today?",
    "yes.",
    "the quick brown fox jumps over the lazy dog, and then it goes home to sleep.",
    "one two three four five.",
    "what a lovely day it is.",
    "no, thank you.",
    "the train to the coast leaves in a quarter of an hour from the other platform.",
    "good night.",
)


def sampled(seed: int, top_k: int = 30) -> SlotSampling:
    return SlotSampling(temperature=0.7, top_p=0.9, top_k=top_k, seed=seed)


def tiny_runner(name: str = "s2_tiny", slots: int = 2, pages: int = 16) -> CpuRunner:
    """``s1_tiny`` has no codec of its own in the test data; both have the same one."""
    config = read_config(DATA / name)
    weights = load_weights(DATA / name, config)
    model = DualAR(config, weights, range(275, 339), 265, packed=packs_linear())
    codec = load_codec(DATA / "s2_tiny")
    return CpuRunner(config, model, codec, slots=slots, pages=pages)


@contextmanager
def stepping(runner: CpuRunner) -> Generator[Steps]:
    """``runner``, warm, until the end of the block."""
    runner.warm_up()
    yield Steps(runner)
    runner.close()


def builtin_runner() -> CpuRunner:
    """The built-in voice with room beside its slots' pages."""
    return CpuRunner.load(BUILTIN, slots=SLOTS, pages=SLOTS * PAGES_EACH + 16)


def pools(runner: CpuRunner) -> list[torch.Tensor]:
    return [pool.clone() for pool in runner._pools]  # pyright: ignore[reportPrivateUsage]


def keys_and_values(runner: CpuRunner, turn: Turn) -> list[torch.Tensor]:
    """Per layer [2 * kv_heads, positions, head_dim] of what the turn fed so far."""
    fed = len(turn.prompt) + len(turn.columns) - 1
    begin = turn.table[0] * PAGE
    return [pool[:, begin : begin + fed].clone() for pool in pools(runner)]

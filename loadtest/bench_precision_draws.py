"""Who draws for the precision gate: a GPU's runner, the same kernels interpreted, or plain torch.

Owns the model before and after it is put into a dtype, what is fed, and greedy decoding. Judges
nothing.
"""

# pyright: basic
# Torch's stubs are too loose for more.

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from shoal.engine.codec import Codec, load_codec
from shoal.engine.config import EngineConfig
from shoal.engine.cuda.interpreted import InterpretedRunner
from shoal.engine.cuda.kv_pool import KvDtype
from shoal.engine.cuda.load import GpuDtype, placed_weights, runner_of
from shoal.engine.cuda.reference import Context, with_scales_misread
from shoal.engine.cuda.weights import CudaWeights, with_products
from shoal.engine.model.config import DualARConfig, read_config
from shoal.engine.model.weights import load_weights
from shoal.engine.prompt import PromptBuilder
from shoal.engine.random_model import (
    PREFIX,
    SHAPES,
    byte_tokenizer,
    random_codec,
    random_weights,
)
from shoal.engine.runner import Join, PrefillChunk, SlotSampling, StepPlan, StepResult
from shoal.engine.tokenizer import Tokenizer, load_tokenizer

Frames = list[list[int]]
Prompts = Sequence[np.ndarray[Any, Any]]
GREEDY = SlotSampling(temperature=0.0, top_p=1.0, top_k=1, seed=0)
TOGETHER = 8
"""Prompts that are decoded in the same steps where kernels are interpreted: a product takes as long
for one row as for 16."""


class Decoder(Protocol):
    """As much of a runner as draws."""

    def launch(self, plan: StepPlan) -> None: ...

    def collect(self, step: int) -> StepResult: ...

    def prefill(self, *chunks: PrefillChunk) -> None: ...


@dataclass(frozen=True, slots=True)
class Room:
    """What a decoder has: slots to draw in at once, and its pages."""

    slots: int
    page_tokens: int
    end_token: int


@dataclass(frozen=True, slots=True)
class Model:
    """What is decoded: a checkpoint's parts, before they are put into a dtype."""

    shape: DualARConfig
    tokenizer: Tokenizer
    weights: dict[str, torch.Tensor]
    is_random: bool


def read_model(source: str, device: torch.device) -> Model:
    """A checkpoint folder, or ``random:...`` drawn on ``device``."""
    if source.startswith(PREFIX):
        shape = SHAPES[source.removeprefix(PREFIX)]
        return Model(shape, byte_tokenizer(shape), random_weights(shape, device), True)
    folder = Path(source)
    shape = read_config(folder)
    return Model(shape, load_tokenizer(folder), load_weights(folder, shape), False)


def place(model: Model, dtype: GpuDtype, device: torch.device) -> CudaWeights:
    return placed_weights(
        model.shape, model.weights, model.tokenizer, dtype, device, lambda _line: None
    )


def with_planted_scales(weights: CudaWeights) -> CudaWeights:
    """``weights`` with every block scale read in the other order."""
    return with_products(weights, with_scales_misread)


def builder_of(model: Model) -> PromptBuilder:
    semantic = model.shape.semantic_ids(model.tokenizer.semantic)
    return PromptBuilder(model.tokenizer, model.shape.codebooks, semantic)


def prompt_of(model: Model, text: str) -> np.ndarray[Any, np.dtype[np.int32]]:
    """int32 [columns, 1 + codebooks]; the last column is fed to the first step."""
    builder = builder_of(model)
    return np.concatenate([builder.prefix(), builder.user_turn(text)]).astype(np.int32)


def reference_draws(
    weights: CudaWeights,
    prompts: Prompts,
    frames: int,
    kv_dtype: KvDtype = "bf16",
) -> list[Frames]:
    """Greedy columns of the plain torch reference."""
    drawn: list[Frames] = []
    for prompt in prompts:
        columns = torch.from_numpy(prompt).to(weights.embeddings.device)
        context = Context(weights, kv_dtype)
        context.prefill(columns[:-1])
        drawn.append(context.greedy(columns[-1], frames).tolist())
    return drawn


def runner_draws(runner: Decoder, room: Room, prompts: Prompts, frames: int) -> list[Frames]:
    """Greedy columns of a runner, up to the end token; ``room.slots`` prompts at a time."""
    drawn: list[Frames] = []
    step = 0
    for begin in range(0, len(prompts), room.slots):
        group = prompts[begin : begin + room.slots]
        joins: list[Join] = []
        page = 0
        for slot, prompt in enumerate(group):
            count = pages_of(prompt, frames, room.page_tokens)
            table = tuple(range(page, page + count))
            page += count
            runner.prefill(PrefillChunk(prompt[:-1], 0, table))
            joins.append(Join(slot, 1, len(prompt) - 1, 0, prompt[-1], table, GREEDY))
        slots = tuple(range(len(group)))
        taken: list[Frames] = [[] for _ in group]
        over = [False] * len(group)
        for index in range(frames):
            runner.launch(StepPlan(step, slots, () if index else tuple(joins)))
            columns = runner.collect(step).columns.tolist()
            step += 1
            for row, column in enumerate(columns):
                if not over[row]:
                    taken[row].append(column)
                    over[row] = column[0] == room.end_token
            if all(over):
                break
        drawn += taken
    return drawn


def pages_of(prompt: np.ndarray[Any, Any], frames: int, page_tokens: int) -> int:
    """Pages of a prompt and what follows it."""
    return -(-(len(prompt) + frames + 2) // page_tokens)


def interpreted_draws(
    model: Model,
    weights: CudaWeights,
    prompts: Prompts,
    frames: int,
    kv_dtype: KvDtype,
    last_columns: int | None,
) -> list[Frames]:
    """Greedy columns of a GPU's prefill and step in Triton's interpreter. ``last_columns``: see
    :class:`InterpretedRunner`. :raises NotInterpreted: Triton compiles."""
    slots = min(TOGETHER, len(prompts))
    page_tokens = 64
    most = max(pages_of(prompt, frames, page_tokens) for prompt in prompts)
    runner = InterpretedRunner(
        model.shape,
        weights,
        slots=slots,
        pages=slots * most,
        page_tokens=page_tokens,
        kv_dtype=kv_dtype,
        last_columns=last_columns,
    )
    return runner_draws(runner, Room(slots, page_tokens, weights.end_token), prompts, frames)


def gpu_draws(
    config: EngineConfig,
    model: Model,
    weights: CudaWeights,
    prompts: Prompts,
    frames: int,
    device: torch.device,
) -> list[Frames]:
    """Greedy columns of the engine's runner of one slot on a GPU."""
    codec: Codec = (
        random_codec(device) if model.is_random else load_codec(config.model, device=device)
    )
    runner = runner_of(config, model.shape, weights, codec, device, lambda _line: None)
    with closing(runner):
        runner.warm_up()
        spec = runner.spec
        room = Room(1, spec.page_tokens, spec.end_token)
        return runner_draws(runner, room, prompts, frames)


def equal_frames(left: Frames, right: Frames) -> int:
    """Frames before the first difference."""
    pairs = zip(left, right, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(left), len(right)))

"""Stepping a CUDA runner by hand: one that captures few sizes, and a driver with two in flight."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import torch

from shoal.engine.codec import load_codec
from shoal.engine.config import BUILTIN_VOICE
from shoal.engine.cuda.kv_pool import KvDtype, KvPool
from shoal.engine.cuda.prefill import Prefill, PrefillPass
from shoal.engine.cuda.sharing import Sharing
from shoal.engine.cuda.weights import CudaWeights, device_weights
from shoal.engine.cuda_runner import CudaRunner
from shoal.engine.model.config import DualARConfig, read_config
from shoal.engine.model.weights import load_weights
from shoal.engine.prompt import PromptBuilder
from shoal.engine.random_model import S2_PRO, random_codec, random_cuda_weights
from shoal.engine.runner import Int32Array, Join, PrefillChunk, Runner, SlotSampling, StepPlan
from shoal.engine.tokenizer import load_tokenizer

GPU = torch.device("cuda")
PAGE = 64


def builtin_weights(dtype: Literal["bf16", "fp8"]) -> CudaWeights:
    """The built-in voice's, on the GPU."""
    shape, tokenizer = read_config(BUILTIN_VOICE), load_tokenizer(BUILTIN_VOICE)
    return device_weights(
        shape,
        load_weights(BUILTIN_VOICE, shape),
        shape.semantic_ids(tokenizer.semantic),
        tokenizer.end_token,
        dtype=dtype,
        device=GPU,
    )


def builtin_runner(
    dtype: Literal["bf16", "fp8"],
    *,
    buckets: Sequence[int],
    pages: int,
    pdl: bool = True,
    sharing: bool = True,
    captured: bool = True,
    kv_dtype: KvDtype = "bf16",
    host_bytes: int = 0,
) -> CudaRunner:
    """The built-in voice with ``buckets[-1]`` slots. Not ``captured``: steps and prefills launch
    their kernels one by one, and there is no codec."""
    runner = CudaRunner(
        read_config(BUILTIN_VOICE),
        builtin_weights(dtype),
        load_codec(BUILTIN_VOICE, device=GPU),
        slots=buckets[-1],
        pages=pages,
        kv_dtype=kv_dtype,
        host_bytes=host_bytes,
        device=GPU,
        pdl=pdl,
        sharing=sharing,
        buckets=buckets,
    )
    if captured:
        runner.warm_up()
    return runner


def s2_runner(*, buckets: Sequence[int], pages: int, positions: int = 4096) -> CudaRunner:
    """Random weights of S2 Pro's shape in FP8, at ``positions`` positions a context."""
    shape = replace(S2_PRO, max_seq_len=positions)
    weights = random_cuda_weights(shape, GPU)
    torch.cuda.empty_cache()
    runner = CudaRunner(
        shape,
        weights,
        random_codec(GPU),
        slots=buckets[-1],
        pages=pages,
        device=GPU,
        buckets=buckets,
    )
    runner.warm_up()
    return runner


def code_columns(shape: DualARConfig, semantic_begin: int, count: int, seed: int) -> Int32Array:
    """int32 [count, 1 + codebooks]: random frames, as of a recording."""
    draw = np.random.default_rng(seed)
    columns = draw.integers(0, shape.codebook_size, (count, 1 + shape.codebooks), dtype=np.int32)
    columns[:, 0] += semantic_begin
    return columns


CONTEXT = (3, 9, 1, 0, 7, 2, 8)
"""Of 10 pages, those that ``prefilled`` writes, in order."""


def prefilled(
    weights: CudaWeights, kv_dtype: KvDtype, spans: Sequence[tuple[int, int]]
) -> Iterator[list[list[torch.Tensor]]]:
    """After each span (position, columns) of one context: the bytes of all 10 pages, part by part,
    as recorded passes left them, as single launches did, and as pieces of 13 columns."""
    config = weights.slow.config
    shape = (config.kv_heads, PAGE, config.head_dim)
    columns = code_columns(read_config(BUILTIN_VOICE), weights.semantic_begin, 400, 3)
    pools = [KvPool.empty(config.layers, 10, *shape, GPU, kv_dtype) for _ in range(3)]
    recorded, single, cut = (
        Prefill(PrefillPass(weights, weights.prefill, pool, (16, 64, 256), 10, GPU), pool, GPU)
        for pool in pools
    )
    recorded.capture()
    for start, count in spans:
        end = start + count
        recorded.run([PrefillChunk(columns[start:end], start, CONTEXT)])
        single.run([PrefillChunk(columns[start:end], start, CONTEXT)])
        for at in range(start, end, 13):
            cut.run([PrefillChunk(columns[at : min(at + 13, end)], at, CONTEXT)])
        yield [
            [part[:, :10].contiguous().view(torch.uint8) for part in pool.parts] for pool in pools
        ]


class Driver:
    """One per runner, since steps are numbered."""

    def __init__(self, runner: Runner, pages_each: int = 6) -> None:
        """Slot s owns pages ``s * pages_each`` onwards."""
        self.runner = runner
        self.pages_each = pages_each
        self.shape = read_config(BUILTIN_VOICE)
        tokenizer = load_tokenizer(BUILTIN_VOICE)
        self.semantic = self.shape.semantic_ids(tokenizer.semantic)
        self.prompt = PromptBuilder(tokenizer, self.shape.codebooks, self.semantic)
        self.step = 0
        self.times_s: list[float] = []
        """Of the last run: from one step's results to the next one's."""
        self.busy_s: list[float] = []
        """Of the last run: CPU time of this thread, a step."""

    def own_pages(self, slot: int) -> tuple[int, ...]:
        return tuple(range(slot * self.pages_each, (slot + 1) * self.pages_each))

    def start(self, slot: int, text: str, seed: int, temperature: float = 0.7) -> Join:
        """Prefill ``text`` in pages of the slot's own."""
        columns = np.concatenate([self.prompt.prefix(), self.prompt.user_turn(text)])
        table = self.own_pages(slot)
        self.runner.prefill(PrefillChunk(columns[:-1], 0, table))
        sampling = SlotSampling(temperature, top_p=0.9, top_k=30, seed=seed)
        return Join(slot, 1, len(columns) - 1, 0, columns[-1], table, sampling)

    def voice(self, pages: tuple[int, ...], seed: int) -> None:
        """Prefill ``pages`` full of a recording's frames."""
        columns = code_columns(self.shape, self.semantic.start, len(pages) * PAGE, seed)
        self.runner.prefill(PrefillChunk(columns, 0, pages))

    def start_on(self, voice: tuple[int, ...], slot: int, text: str, seed: int) -> Join:
        """Prefill ``text`` behind the pages of a voice, which it shares."""
        columns = self.prompt.user_turn(text)
        table = voice + self.own_pages(slot)
        at = len(voice) * PAGE
        self.runner.prefill(PrefillChunk(columns[:-1], at, table))
        sampling = SlotSampling(temperature=0.7, top_p=0.9, top_k=30, seed=seed)
        return Join(slot, 1, at + len(columns) - 1, 0, columns[-1], table, sampling)

    def company(
        self, voice: tuple[int, ...], text: str, slots: Sequence[int], sharers: Sequence[int]
    ) -> list[Join]:
        """Slot 0 with ``text``, the others with words of their own; ``sharers`` on the voice."""
        joins: list[Join] = []
        for slot in slots:
            words = f"Neighbour number {slot}." if slot else text
            if slot in sharers:
                joins.append(self.start_on(voice, slot, words, 5 + slot))
            else:
                joins.append(self.start(slot, words, 5 + slot))
        return joins

    def shares(self, joins: Sequence[Join]) -> bool:
        """Whether any of these, in one step, read pages once for several."""
        finder = Sharing(self.runner.spec.max_slots, PAGE)
        for join in joins:
            finder.join(join)
        return bool(finder.groups(np.array([join.slot for join in joins], np.int32)))

    def behind_half_a_page(self, text: str, frames: int) -> tuple[Int32Array, Int32Array]:
        """What a stream draws behind a page of its own, and behind one whose first half it copied
        from a page of slot 1's."""
        columns = np.concatenate([self.prompt.prefix(), self.prompt.user_turn(text)])
        join = self.start(0, text, 5)
        drawn = self.run((0,), (join,), frames)
        half = len(columns) // 2
        page = self.own_pages(1)[0]
        self.runner.prefill(PrefillChunk(columns[:half], 0, (page,)))
        copied = (page, join.table[0])
        self.runner.prefill(PrefillChunk(columns[half:-1], half, join.table, copied))
        return drawn, self.run((0,), (join,), frames)

    def run(self, slots: Sequence[int], joins: Sequence[Join], frames: int) -> Int32Array:
        """int32 [frames, rows, 1 + codebooks], two steps in flight."""
        drawn: list[Int32Array] = []
        pending: list[int] = []
        self.times_s, self.busy_s = [], []
        last, busy = time.perf_counter(), time.thread_time()
        for index in range(frames):
            plan = StepPlan(self.step, tuple(slots), tuple(joins) if not index else ())
            self.runner.launch(plan)
            pending.append(self.step)
            self.step += 1
            if len(pending) == 2:
                drawn.append(self.runner.collect(pending.pop(0)).columns)
                now, spent = time.perf_counter(), time.thread_time()
                self.times_s.append(now - last)
                self.busy_s.append(spent - busy)
                last, busy = now, spent
        drawn.extend(self.runner.collect(step).columns for step in pending)
        return np.stack(drawn)

"""Prefill on the device, interpreted: what a context leaves is the same bits in any company.

Alone and beside others, in another bucket, and cut otherwise. At the sizes of a real model a GPU
test says the same.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before the first kernel is imported

from shoal.engine.config import BUILTIN_VOICE
from shoal.engine.cuda.kv_pool import KvPool
from shoal.engine.cuda.prefill import PrefillPass
from shoal.engine.cuda.weights import CudaWeights, device_weights
from shoal.engine.model.config import read_config
from shoal.engine.model.weights import load_weights
from shoal.engine.runner import Int32Array, PrefillChunk
from shoal.engine.tokenizer import load_tokenizer

CPU = torch.device("cpu")
PAGE, PAGES = 32, 6
LAYERS = 2

if torch.cuda.is_available():
    pytest.skip("interpreted where there is no GPU", allow_module_level=True)


@pytest.fixture(scope="module")
def weights() -> CudaWeights:
    config, tokenizer = read_config(BUILTIN_VOICE), load_tokenizer(BUILTIN_VOICE)
    whole = device_weights(
        config,
        load_weights(BUILTIN_VOICE, config),
        config.semantic_ids(tokenizer.semantic),
        tokenizer.end_token,
        dtype="bf16",
        device=CPU,
    )
    return replace(whole, prefill=replace(whole.prefill, layers=whole.prefill.layers[:LAYERS]))


def columns(weights: CudaWeights, count: int, seed: int) -> Int32Array:
    draw = np.random.default_rng(seed)
    width = 1 + weights.codebooks
    made = draw.integers(0, weights.codebook_size, (count, width), dtype=np.int32)
    made[: count // 2, 0] += weights.semantic_begin
    return made


def written(
    weights: CudaWeights, passes: Sequence[Sequence[PrefillChunk]], sizes: Sequence[int]
) -> list[torch.Tensor]:
    """All of the pages after ``passes``, by buckets of ``sizes`` rows; they begin as noise."""
    config = weights.prefill.config
    shape = (config.kv_heads, PAGE, config.head_dim)
    pool = KvPool.empty(LAYERS, PAGES, *shape, CPU)
    noise = torch.Generator().manual_seed(5)
    for part in pool.parts:
        part.copy_(torch.randn(part.shape, generator=noise))
    prefill = PrefillPass(weights, weights.prefill, pool, sizes, PAGES, CPU)
    for chunks in passes:
        rows = prefill.send(chunks)
        assert rows in sizes[:-1]  # the last is there because whole tiles have to fit
        prefill.run(rows)
    # The page behind those that are handed out takes what is nobody's.
    return [part[:, :PAGES] for part in pool.parts]


def test_a_context_s_keys_and_values_are_the_same_bits_in_any_company(
    weights: CudaWeights,
) -> None:
    short = PrefillChunk(columns(weights, 3, 1), 0, (4,))
    columns_of_long = columns(weights, 6, 2)
    long = PrefillChunk(columns_of_long, PAGE - 3, (2, 0))
    parts = [
        PrefillChunk(columns_of_long[:2], PAGE - 3, (2,)),
        PrefillChunk(columns_of_long[2:], PAGE - 1, (2, 0)),
    ]
    alone = written(weights, [[short], [long]], (3, 6, 32))
    nothing = written(weights, [], (32,))
    for after, before in zip(alone, nothing, strict=True):
        changed = (after != before).any(-1).all(0).any(1)
        assert changed.sum(1).tolist() == [3, 0, 3, 0, 3, 0]
    others = {
        "together": written(weights, [[long, short]], (35, 64)),
        "cut otherwise, in another bucket": written(
            weights, [[short], *([part] for part in parts)], (4, 32)
        ),
    }
    for how, pages in others.items():
        assert all(map(torch.equal, pages, alone)), how

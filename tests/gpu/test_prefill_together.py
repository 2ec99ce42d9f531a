"""Prefill of several contexts at once on a GPU: the bits of each, what is drawn after, and that a
pass allocates nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA GPU", allow_module_level=True)

from shoal.engine.cuda.buckets import PREFILL_SIZES, buckets_up_to
from shoal.engine.cuda.kv_pool import KvDtype, KvPool
from shoal.engine.cuda.prefill import Prefill, PrefillPass
from shoal.engine.cuda.weights import CudaWeights
from shoal.engine.random_model import S2_PRO, random_cuda_weights
from shoal.engine.runner import Join, PrefillChunk, SlotSampling
from shoal.kernels.bf16_gemm import bf16_gemm, wide_tile_for
from shoal.kernels.gemm import add_partials
from tests.steps import GPU, PAGE, Driver, builtin_runner, code_columns

SHAPES = ((6144, 2560), (19456, 2560), (2560, 4096), (2560, 9728))
LAYERS = 3
BUCKETS = buckets_up_to(256, PREFILL_SIZES)
SPANS = ((0, 64), (0, 17), (96, 33), (5, 1), (1, 64), (30, 90), (0, 5))
"""Position and columns of contexts that wait together: more than one pass of 256 rows."""
PAGES_EACH = 3


@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_a_row_of_a_product_has_the_same_bits_in_every_bucket(n: int, k: int) -> None:
    g = torch.Generator(GPU).manual_seed(n + k)
    x = torch.randn(512, k, generator=g, device=GPU).bfloat16()
    w = (torch.randn(n, k, generator=g, device=GPU) / k**0.5).bfloat16()

    def product(rows: torch.Tensor) -> torch.Tensor:
        splits = wide_tile_for(n, k, len(rows)).splits
        out = torch.full((splits, len(rows), n), float("nan"), device=GPU)
        bf16_gemm(rows, w, out)
        return add_partials(out)

    whole = product(x)
    want = x.double() @ w.double().t()
    # The matrix unit cuts its sums off where it could round them.
    assert float((whole - want).norm() / want.norm()) < 3e-5
    for rows in (1, 5, *BUCKETS, 384):
        for first in (0, 7, 512 - rows):
            part = product(x[first : first + rows].contiguous())
            assert torch.equal(part, whole[first : first + rows]), (rows, first)
        mixed = torch.randperm(512, generator=g, device=GPU)[:rows]
        assert torch.equal(product(x[mixed]), whole[mixed]), rows
    rows_out = torch.full((1, 200, n), float("nan"), device=GPU, dtype=torch.bfloat16)
    bf16_gemm(x[:200].contiguous(), w, rows_out)
    assert torch.equal(rows_out[0], whole[:200].bfloat16())


@pytest.fixture(scope="module", params=["bf16", "fp8"])
def weights(request: pytest.FixtureRequest) -> CudaWeights:
    """The first layers of S2 Pro's shape."""
    shape = replace(S2_PRO, max_seq_len=1024, slow=replace(S2_PRO.slow, layers=LAYERS))
    return random_cuda_weights(shape, GPU, request.param)


def chunks_of(weights: CudaWeights) -> list[PrefillChunk]:
    columns = code_columns(S2_PRO, weights.semantic_begin, sum(n for _, n in SPANS), 3)
    made: list[PrefillChunk] = []
    begin = 0
    for index, (position, count) in enumerate(SPANS):
        table = tuple(range(index * PAGES_EACH, (index + 1) * PAGES_EACH))
        made.append(PrefillChunk(columns[begin : begin + count], position, table))
        begin += count
    return made


@pytest.mark.parametrize("kv_dtype", ["bf16", "fp8"])
def test_a_context_s_keys_and_values_are_the_same_bits_in_any_company(
    weights: CudaWeights, kv_dtype: KvDtype
) -> None:
    """Alone, together, in another order, in other buckets, cut otherwise; recorded or not."""
    stack = weights.prefill
    config, chunks = stack.config, chunks_of(weights)
    pages = len(SPANS) * PAGES_EACH
    shape = (config.kv_heads, PAGE, config.head_dim)

    def after(
        calls: Sequence[Sequence[PrefillChunk]], sizes: Sequence[int], *, captured: bool = True
    ) -> list[torch.Tensor]:
        pool = KvPool.empty(LAYERS, pages, *shape, GPU, kv_dtype)
        made = Prefill(PrefillPass(weights, stack, pool, sizes, PAGES_EACH, GPU), pool, GPU)
        if captured:
            made.capture()
        noise = torch.Generator(GPU).manual_seed(5)
        for part in pool.parts:
            part.copy_(torch.randn(part.shape, generator=noise, device=GPU) / 4)
        torch.cuda.synchronize()  # prefill waits for no other stream
        for call in calls:
            made.run(call)
        torch.cuda.synchronize()
        return [part[:, :pages].float() for part in pool.parts]

    alone = after([[chunk] for chunk in chunks], BUCKETS)
    cut = [
        PrefillChunk(chunk.columns[at : at + 13], chunk.position + at, chunk.table)
        for chunk in chunks
        for at in range(0, len(chunk.columns), 13)
    ]
    for how, got in {
        "together": after([chunks], BUCKETS),
        "in another order": after([chunks[::-1]], BUCKETS),
        "two by two": after([chunks[:2], chunks[2:4], chunks[4:6], chunks[6:]], BUCKETS),
        "in the largest bucket": after([[chunk] for chunk in chunks], (512,)),
        "in buckets of one tile": after([[chunk] for chunk in chunks], (32,)),
        "launched one by one": after([chunks], BUCKETS, captured=False),
        "cut otherwise": after([[part] for part in cut], BUCKETS),
    }.items():
        assert all(map(torch.equal, got, alone)), how


@pytest.fixture(scope="module")
def driver() -> Iterator[Driver]:
    runner = builtin_runner("fp8", buckets=(1, 8), pages=64)
    yield Driver(runner)
    runner.close()


TEXTS = ("Hi.", "The birch canoe slid on the smooth planks.", "Thank you very much.", "No, four.")


def asked(driver: Driver) -> tuple[list[PrefillChunk], list[Join]]:
    """Every text behind a page of its own, copied from the half-full page of another context."""
    prefix = driver.prompt.prefix()
    shared = 8 * driver.pages_each
    driver.runner.prefill(PrefillChunk(prefix, 0, (shared,)))
    chunks: list[PrefillChunk] = []
    joins: list[Join] = []
    for slot, text in enumerate(TEXTS):
        columns, table = driver.prompt.user_turn(text), driver.own_pages(slot)
        at = len(prefix)
        chunks.append(PrefillChunk(columns[:-1], at, table, (shared, table[0])))
        sampling = SlotSampling(temperature=0.7, top_p=0.9, top_k=30, seed=slot)
        joins.append(Join(slot, 1, at + len(columns) - 1, 0, columns[-1], table, sampling))
    return chunks, joins


def test_turns_prefilled_together_draw_what_they_draw_alone(driver: Driver) -> None:
    slots = tuple(range(len(TEXTS)))
    chunks, joins = asked(driver)
    for chunk in chunks:
        driver.runner.prefill(chunk)
    alone = driver.run(slots, joins, 12)
    chunks, joins = asked(driver)
    driver.runner.prefill(*chunks)
    assert np.array_equal(driver.run(slots, joins, 12), alone)
    chunks, joins = asked(driver)
    driver.runner.prefill(*chunks[::-1])
    assert np.array_equal(driver.run(slots, joins, 12), alone)


def test_a_pass_of_several_contexts_allocates_nothing(driver: Driver) -> None:
    chunks, _ = asked(driver)
    driver.runner.prefill(*chunks)
    before = torch.cuda.memory_stats()
    pinned = torch.cuda.host_memory_stats()
    for _ in range(5):
        driver.runner.prefill(*chunks)
    after = torch.cuda.memory_stats()
    assert after["allocation.all.allocated"] == before["allocation.all.allocated"]
    assert torch.cuda.host_memory_stats() == pinned

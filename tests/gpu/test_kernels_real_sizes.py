"""Kernels at S2 Pro's sizes: equal bits in every batch, in graphs and out, and no allocation."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from shoal.kernels.attention import decode_attention
from shoal.kernels.fast_attention import fast_attention
from shoal.kernels.gemm import add_partials, gemm_partials, gemm_reference, gemm_rows
from shoal.kernels.heads import rope_tables
from shoal.kernels.kv import Pages, quantise_heads
from shoal.kernels.mxfp8 import Mx, dequantise_mx, gemm_mx, quantise_mx
from shoal.kernels.norm import NormedRows, add_norm
from shoal.kernels.pages import Heads, Workspace
from shoal.kernels.quantise import Fp8Rows, Fp8Weight, quantise_weight
from shoal.kernels.race import race_reference
from shoal.kernels.sampler import Sampling, sample
from shoal.kernels.swiglu import swiglu
from shoal.kernels.tiles import rows_tile, tile_for

D, INNER, HQ, HKV, DIM = 2560, 9728, 32, 8, 128
SHAPES = {"qkv": (6144, D), "o": (D, 4096), "down": (D, INNER), "head": (4096, D)}
BATCHES = (1, 3, 16, 17, 64, 128, 256)
EPS = 1e-6


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    g = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(*shape, device="cuda", generator=g).bfloat16()


def normed(m: int, k: int) -> NormedRows:
    out = NormedRows.empty(m, k, "cuda")
    add_norm(random(m, k, seed=1), random(k, seed=2), out)
    return out


def weight(n: int, k: int) -> Fp8Weight:
    g = torch.Generator("cuda").manual_seed(3)
    blocks = torch.randn(n // 128, 128, k // 128, 128, device="cuda", generator=g)
    lift = torch.randint(-3, 4, (n // 128, 1, k // 128, 1), device="cuda", generator=g)
    return quantise_weight((blocks * torch.exp2(lift.float())).view(n, k))


def relative(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a.double() - b.double()).norm() / b.double().norm())


@pytest.mark.parametrize("name", list(SHAPES))
def test_a_row_has_the_same_bits_in_every_bucket(cuda: torch.device, name: str) -> None:
    n, k = SHAPES[name]
    x, w = normed(256, k), weight(n, k)

    def run(m: int, pdl: bool) -> torch.Tensor:
        tile = tile_for(n, k, m)
        partials = torch.full((tile.splits, m, n), float("nan"), device=cuda)
        gemm_partials(x.narrow(0, m), w, partials, tile, pdl=pdl)
        return add_partials(partials)

    full = run(256, False)
    assert relative(full, gemm_reference(x.rows, w)) < 1e-3
    for m in BATCHES:
        for pdl in (False, True):
            assert torch.equal(run(m, pdl), full[:m]), (m, pdl)
    for _ in range(20):
        assert torch.equal(run(64, True), full[:64])


def test_gate_and_up_have_the_same_bits_in_every_bucket(cuda: torch.device) -> None:
    x, w = normed(256, D), weight(2 * INNER, D)

    def run(m: int) -> torch.Tensor:
        out = torch.full((m, 2 * INNER), float("nan"), device=cuda).bfloat16()
        gemm_rows(x.narrow(0, m), w, out, rows_tile(m), eps=EPS, pdl=True)
        return out

    full = run(256)
    assert all(torch.equal(run(m), full[:m]) for m in BATCHES)


def layer_of(m: int, context: int) -> tuple[Callable[[], None], tuple[torch.Tensor, ...]]:
    """A slow layer and a fast attention over fixed buffers; what they leave."""
    weights = {name: weight(*shape) for name, shape in SHAPES.items() if name != "head"}
    both_weight = weight(2 * INNER, D)
    tables = rope_tables(2048, DIM, 1e6, "cuda")
    heads = Heads(HQ, HKV, DIM, EPS, tables, random(DIM, seed=4), random(DIM, seed=5))
    pages = context // 64 + 1
    keys, values = (random(pages * m, HKV, 64, DIM, seed=s) for s in (6, 7))
    where = (
        torch.arange(pages * m, dtype=torch.int32, device="cuda").view(m, pages),
        torch.arange(m, dtype=torch.int32, device="cuda"),
        torch.full((m,), context, dtype=torch.int32, device="cuda"),
    )
    work = Workspace.empty(m, heads, "cuda")
    start, between = random(m, D, seed=8), NormedRows.empty(m, D, "cuda")
    residual = start.clone()
    tiles = {name: tile_for(*SHAPES[name], m) for name in weights}
    sums = {
        name: torch.zeros(tile.splits, m, SHAPES[name][0], device="cuda")
        for name, tile in tiles.items()
    }
    attended, gated = Fp8Rows.empty(m, HQ * DIM, "cuda"), Fp8Rows.empty(m, INNER, "cuda")
    both = torch.zeros(m, 2 * INNER, device="cuda").bfloat16()
    cache = random(2, m, HKV, 16, DIM, seed=9)
    fast = Fp8Rows.empty(m, HQ * DIM, "cuda")
    norm = random(D, seed=10)

    def product(x: NormedRows | Fp8Rows, name: str) -> None:
        gemm_partials(x, weights[name], sums[name], tiles[name], pdl=True)

    def run() -> None:
        residual.copy_(start)
        add_norm(residual, norm, between, pdl=True)
        product(between, "qkv")
        decode_attention(
            sums["qkv"], between, heads, keys, values, *where, work, attended, pdl=True
        )
        product(attended, "o")
        add_norm(residual, norm, between, sums["o"], pdl=True)
        gemm_rows(between, both_weight, both, rows_tile(m), eps=EPS, pdl=True)
        swiglu(both, gated, pdl=True)
        product(gated, "down")
        add_norm(residual, norm, between, sums["down"], pdl=True)
        fast_attention(sums["qkv"], between, heads, cache[0], cache[1], 7, fast, pdl=True)

    return run, (residual, between.rows.values.view(torch.uint8), fast.values.view(torch.uint8))


@pytest.mark.parametrize("m", [1, 16, 64])
def test_a_layer_in_a_graph_is_the_layer_outside_and_allocates_nothing(
    cuda: torch.device, m: int
) -> None:
    run, outputs = layer_of(m, 300)
    run()
    torch.cuda.synchronize()
    eager = [out.clone() for out in outputs]
    before = torch.cuda.memory_stats(cuda)["allocation.all.allocated"]
    run()
    assert torch.cuda.memory_stats(cuda)["allocation.all.allocated"] == before
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    for _ in range(20):
        for out in outputs:
            out.fill_(0)
        graph.replay()
        torch.cuda.synchronize()
        assert all(torch.equal(a, b) for a, b in zip(outputs, eager, strict=True))


@pytest.mark.parametrize("narrow", [False, True], ids=["bf16", "fp8"])
@pytest.mark.parametrize("longest", [700, 1500, 2040])
def test_decode_attention_has_a_row_s_bits_alone_and_in_any_group(
    cuda: torch.device, longest: int, narrow: bool
) -> None:
    m = 33
    heads = Heads(HQ, HKV, DIM, EPS, rope_tables(2048, DIM, 1e6, cuda))
    pages = longest // 64 + 1
    keys, values = (random(pages * m, HKV, 64, DIM, seed=s) for s in (1, 2))
    tables = torch.randperm(pages * m, device=cuda).int().view(m, pages)
    tables[:, :6] = tables[0, :6]
    slots = torch.arange(m, dtype=torch.int32, device=cuda)
    positions = torch.randint(384, longest, (m,), device=cuda).int()
    prefix = torch.tensor([[384, 1]] * m, dtype=torch.int32, device=cuda)
    groups = torch.full((3, 16), -1, dtype=torch.int32, device=cuda)
    groups.view(-1)[:m] = slots
    qkv = torch.randn(4, m, 6144, device=cuda)

    def fresh(pages: torch.Tensor) -> Pages:
        return quantise_heads(pages) if narrow else pages.clone()

    def run(rows: list[int], members: torch.Tensor | None) -> torch.Tensor:
        out = Fp8Rows.empty(len(rows), HQ * DIM, cuda)
        work = Workspace.empty(len(rows), heads, cuda)
        decode_attention(
            qkv[:, rows].contiguous(),
            None,
            heads,
            fresh(keys),
            fresh(values),
            tables,
            slots[rows],
            positions[rows],
            work,
            out,
            prefix=None if members is None else prefix[rows],
            groups=members,
            pdl=True,
        )
        return out.values.view(torch.uint8)

    everyone = list(range(m))
    apart, together = run(everyone, None), run(everyone, groups)
    single = torch.full((1, 16), -1, dtype=torch.int32, device=cuda)
    single[0, 0] = 0
    # What a group folds of a stretch is to the bit what each row would have folded.
    assert torch.equal(apart, together)
    for row in (0, 7, 32):
        assert torch.equal(run([row], None)[0], apart[row])
        assert torch.equal(run([row], single)[0], apart[row])


def test_tokens_of_a_full_vocabulary_are_those_of_plain_torch(cuda: torch.device) -> None:
    m = 64
    g = torch.Generator().manual_seed(11)
    logits = (2 * torch.randn(1, m, 4096, generator=g)).bfloat16().to(cuda)

    def full(values: list[float] | list[int], dtype: torch.dtype) -> torch.Tensor:
        return torch.tensor(values, dtype=dtype, device=cuda)

    temperatures = [0.3 + 0.02 * i for i in range(m)]
    values = (full(temperatures, torch.float32), full([0.9] * m, torch.float32))
    counts = [full(v, torch.int32) for v in ([30] * m, list(range(m)), [0] * m, [5] * m)]
    columns = torch.zeros(m, 11, dtype=torch.int32, device=cuda)
    slots = torch.arange(m, dtype=torch.int32, device=cuda)
    sample(logits, None, EPS, 4, slots, Sampling(*values, *counts), columns)
    rows = logits[0].float().cpu()
    expected = [
        race_reference(rows[i], float(values[0][i]), float(values[1][i]), 30, i, 4, 5)
        for i in range(m)
    ]
    assert columns[:, 5].tolist() == expected


@pytest.mark.parametrize("native", [False, True])
def test_mxfp8_at_a_real_size(cuda: torch.device, native: bool) -> None:
    x, w = (Mx.empty(rows, D, device=cuda) for rows in (64, D))
    quantise_mx(random(64, D, seed=12), x)
    quantise_mx(random(D, D, seed=13), w)
    out = torch.full((64, D), float("nan"), device=cuda).bfloat16()
    gemm_mx(x, w, out, native=native)
    assert relative(out, dequantise_mx(x).double() @ dequantise_mx(w).double().t()) < 3e-3

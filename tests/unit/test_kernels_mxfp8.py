"""MXFP8 formats, products and attention against the exact values of their operands."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before the first kernel is imported

from shoal.kernels.kv import gather_pages
from shoal.kernels.mx_attention import MxCache, decode_mx, extend_mx, prefill_mx, store_mx
from shoal.kernels.mxfp8 import (
    Mx,
    dequantise_mx,
    gemm_mx,
    prepare_mx,
    quantise_mx,
    quantise_mx_reference,
    swiglu_mx,
)
from shoal.kernels.pages import Heads, Workspace, attention_reference
from shoal.kernels.swiglu import swiglu_reference

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
PAGES, PAGE, HKV, HQ = 12, 32, 2, 8
BOTH = pytest.mark.parametrize("native", [False, True], ids=["emulated", "native"])
"""Both ways of a product give the same here: a Hopper GPU and the interpreter widen ``native``."""


def relative(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a.double() - b.double()).norm() / b.double().norm())


def random(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def varied(rows: int, columns: int, seed: int) -> torch.Tensor:
    """bf16 values whose blocks of 32 differ by up to 64 times."""
    g = torch.Generator().manual_seed(seed + 100)
    lift = torch.exp2(torch.randint(-3, 4, (rows, columns // 32), generator=g).float())
    spread = lift.repeat_interleave(32, 1).to(DEVICE)
    return (random(rows, columns, seed=seed) * spread).bfloat16()


def quantised(x: torch.Tensor) -> Mx:
    out = Mx.empty(*x.shape, device=DEVICE)
    quantise_mx(x, out)
    return out


def same(a: Mx, b: Mx) -> bool:
    return torch.equal(a.values.float(), b.values.float()) and torch.equal(a.scales, b.scales)


@pytest.mark.parametrize("columns", [64, 384])
def test_quantisation_rounds_the_exponent_up_and_saturates_nothing(columns: int) -> None:
    x = varied(7, columns, 1)
    x[2, :32] = 0
    x[3, :32] = 0
    x[3, 5] = 448 * 2.0**-3  # a power of two of the largest e4m3: the exponent itself
    out = quantised(x)
    assert same(out, quantise_mx_reference(x))
    assert int(out.scales[3, 0]) == 127 - 3
    assert relative(dequantise_mx(out), x) < 0.035
    top = x.float().unflatten(-1, (-1, 32)).abs().amax(-1)
    assert (top * torch.exp2(127 - out.scales.float()) <= 448).all()


def test_swiglu_is_quantised_as_its_rows_would_be() -> None:
    both = varied(5, 512, 2)
    out = Mx.empty(5, 256, device=DEVICE)
    swiglu_mx(both, out)
    expected = quantise_mx_reference(swiglu_reference(both[:, :256], both[:, 256:]).bfloat16())
    if DEVICE == "cpu":
        assert same(out, expected)
    assert relative(dequantise_mx(out), dequantise_mx(expected)) < 2e-3


@BOTH
@pytest.mark.parametrize("m", [3, 20])
def test_a_product_is_that_of_its_exact_operands(m: int, native: bool) -> None:
    n, k = 256, 384
    x, w = quantised(varied(m, k, 3)), quantised(varied(n, k, 4))
    out = torch.full((m, n), float("nan"), device=DEVICE).bfloat16()
    gemm_mx(x, prepare_mx(w.values, w.scales), out, native=native)
    expected = dequantise_mx(x).double() @ dequantise_mx(w).double().t()
    assert relative(out, expected) < 3e-3


def test_scales_in_the_order_of_another_layout_are_caught(tmp_path: Path) -> None:
    """The bytes of column-major scales, read as row-major: what writing a strided tensor to a file
    and reading its memory back does. Full speed, no error, wrong numbers."""
    n, k, m = 256, 512, 4
    x, w = quantised(varied(m, k, 5)), quantised(varied(n, k, 6))
    expected = dequantise_mx(x).double() @ dequantise_mx(w).double().t()

    def error(scales: torch.Tensor) -> float:
        out = torch.full((m, n), float("nan"), device=DEVICE).bfloat16()
        gemm_mx(x, prepare_mx(w.values, scales), out, native=False)
        return relative(out, expected)

    column_major = w.scales.t().contiguous().t()
    assert column_major.stride() == (1, n)
    assert error(column_major) < 3e-3
    planted = torch.as_strided(column_major, w.scales.shape, (k // 32, 1))
    assert error(planted) > 0.3

    words = w.scales.view(torch.int32)
    assert error(words) < 3e-3
    assert error(words.t().contiguous().t()) < 3e-3
    gaps = torch.zeros(n * k, dtype=torch.uint8).as_strided(w.scales.shape, (k, 2))
    with pytest.raises(ValueError, match="neither row- nor column-major"):
        prepare_mx(w.values, gaps)

    path = tmp_path / "weight.safetensors"
    prepared = prepare_mx(w.values, column_major)
    save_file({"values": prepared.values, "scales": prepared.scales}, path)
    loaded = load_file(path, device=DEVICE)
    assert same(prepare_mx(loaded["values"], loaded["scales"]), w)


def test_prepare_refuses_other_dtypes_and_shapes() -> None:
    w = quantised(varied(128, 256, 7))
    with pytest.raises(TypeError, match=r"values are torch\.bfloat16"):
        prepare_mx(w.values.bfloat16(), w.scales)
    with pytest.raises(TypeError, match=r"scales are torch\.float32"):
        prepare_mx(w.values, w.scales.float())
    with pytest.raises(ValueError, match="expected"):
        prepare_mx(w.values, w.scales.t())
    with pytest.raises(ValueError, match="multiples of 128"):
        prepare_mx(w.values[:100], w.scales[:100])
    with pytest.raises(ValueError, match="expected row-major"):
        prepare_mx(w.values.view(torch.uint8).repeat(1, 2).view(w.values.dtype)[:, :256], w.scales)
    with pytest.raises(ValueError, match="K = 384"):
        gemm_mx(quantised(varied(1, 384, 8)), w, torch.empty(1, 128, device=DEVICE), native=False)


def cache_of(dim: int, table: list[int], tokens: int) -> tuple[MxCache, torch.Tensor, torch.Tensor]:
    """Pages with a context in them and poison behind it; the context's exact keys and values."""
    cache = MxCache(
        Mx.empty(PAGES, HKV, PAGE, dim, device=DEVICE),
        Mx.empty(PAGES, HKV, PAGE, dim, device=DEVICE),
    )
    where = torch.tensor(table, dtype=torch.int32, device=DEVICE)
    exact = []
    for seed, pages in ((20, cache.keys), (21, cache.values)):
        pages.values.view(torch.uint8).fill_(0x7F)  # NaN
        x = random(tokens, HKV, dim, seed=seed).bfloat16()
        store_mx(x, pages, where)
        exact.append(dequantise_mx(quantise_mx_reference(x)))
        stored = Mx(pages.values.view(torch.uint8), pages.scales)
        got = Mx(
            gather_pages(stored.values, where, tokens).contiguous().view(pages.values.dtype),
            gather_pages(stored.scales, where, tokens),
        )
        assert torch.equal(dequantise_mx(got), exact[-1])
    return cache, exact[0], exact[1]


@BOTH
@pytest.mark.parametrize("dim", [64, 128])
def test_prefill_over_contiguous_keys(dim: int, native: bool) -> None:
    tokens, queries = 70, 41
    q = random(queries, HQ, dim, seed=22).bfloat16()
    k, v = (random(HKV, tokens, dim, seed=s).bfloat16() for s in (23, 24))
    out = torch.full((queries, HQ, dim), float("nan"), device=DEVICE).bfloat16()
    prefill_mx(quantised(q), quantised(k), quantised(v), out, native=native)
    exact = [dequantise_mx(quantise_mx_reference(x)) for x in (q, k, v)]
    keys, values = (x.transpose(0, 1) for x in exact[1:])
    expected = attention_reference(exact[0], keys, values, tokens - queries)
    assert relative(out, expected) < 5e-3


@BOTH
def test_prefill_over_pages(native: bool) -> None:
    dim, start, length = 128, 45, 30
    table = [7, 2, 9]
    cache, keys, values = cache_of(dim, table, start + length)
    q = random(length, HQ, dim, seed=25).bfloat16()
    out = torch.full((length, HQ, dim), float("nan"), device=DEVICE).bfloat16()
    where = torch.tensor(table, dtype=torch.int32, device=DEVICE)
    extend_mx(quantised(q), cache, where, start, out, native=native)
    expected = attention_reference(dequantise_mx(quantise_mx_reference(q)), keys, values, start)
    assert relative(out, expected) < 5e-3


@BOTH
def test_decode_over_pages_and_rows_that_do_not_see_each_other(native: bool) -> None:
    dim, tokens = 128, 300
    table = [11, 3, 8, 1, 0, 6, 7, 2, 9, 4]
    cache, keys, values = cache_of(dim, table, tokens)
    tables = torch.tensor([table], dtype=torch.int32, device=DEVICE)
    positions = torch.tensor([0, 31, 64, 299], dtype=torch.int32, device=DEVICE)
    q = random(4, HQ, dim, seed=26).bfloat16()
    heads = Heads(HQ, HKV, dim, 1e-6, (q, q))

    def run(rows: list[int]) -> torch.Tensor:
        out = torch.full((len(rows), HQ, dim), float("nan"), device=DEVICE).bfloat16()
        work = Workspace.empty(len(rows), heads, DEVICE)
        slots = torch.zeros(len(rows), dtype=torch.int32, device=DEVICE)
        decode_mx(
            quantised(q[rows]), cache, tables, slots, positions[rows], work, out, native=native
        )
        assert not work.arrived.any()
        return out

    out = run([0, 1, 2, 3])
    exact = dequantise_mx(quantise_mx_reference(q))
    for row, position in enumerate(positions.tolist()):
        seen = slice(0, position + 1)
        expected = attention_reference(exact[row][None], keys[seen], values[seen], position)
        assert relative(out[row], expected[0]) < 5e-3
    assert torch.equal(run([3, 0]), out[[3, 0]])


def test_a_decoded_token_is_stored_in_its_row_s_page() -> None:
    pages = Mx.empty(PAGES, HKV, PAGE, 64, device=DEVICE)
    x = random(2, HKV, 64, seed=27).bfloat16()
    tables = torch.tensor([[4, 5], [6, 7]], dtype=torch.int32, device=DEVICE)
    slots = torch.tensor([1, 0], dtype=torch.int32, device=DEVICE)
    positions = torch.tensor([33, 2], dtype=torch.int32, device=DEVICE)
    store_mx(x, pages, tables, rows=(slots, positions))
    exact = quantise_mx_reference(x)
    assert torch.equal(pages.values[7, :, 1].float(), exact.values[0].float())
    assert torch.equal(pages.scales[4, :, 2], exact.scales[1])
    assert int((pages.scales != 0).any(-1).sum()) == 2 * HKV

"""FP8 GEMM, its fused ends, the deferred norm and SwiGLU against plain torch."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before the first kernel is imported

from shoal.kernels.gemm import Tile, add_partials, gemm_partials, gemm_reference, gemm_rows
from shoal.kernels.norm import NormedRows, add_norm, norm_reference, whole_norm
from shoal.kernels.quantise import (
    Fp8Rows,
    Fp8Weight,
    dequantise_rows,
    dequantise_weight,
    quantise,
    quantise_reference,
    quantise_weight,
)
from shoal.kernels.swiglu import swiglu, swiglu_reference
from shoal.kernels.tiles import chunks_of, rows_tile, tile_for

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
EPS = 1e-6
# A GPU's fp8 matrix unit keeps 13 to 14 bits inside a block of 128; the interpreter keeps fp32.
EXACT = 1e-3 if DEVICE == "cuda" else 1e-6


def relative(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a.double() - b.double()).norm() / b.double().norm())


def varied(rows: int, columns: int, row_block: int, seed: int) -> torch.Tensor:
    """Random values whose blocks differ by up to 64 times: a scale out of place cannot hide."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, columns, generator=g)
    lift = torch.randint(-3, 4, (-(-rows // row_block), columns // 128), generator=g).float()
    lift = torch.exp2(lift).repeat_interleave(row_block, 0)[:rows].repeat_interleave(128, 1)
    return (x * lift).bfloat16().to(DEVICE)


def weights(n: int, k: int, seed: int = 1) -> Fp8Weight:
    return quantise_weight(varied(n, k, 128, seed) / k**0.5)


def normed(x: torch.Tensor, weight: torch.Tensor) -> NormedRows:
    out = NormedRows.empty(x.shape[0], x.shape[1], DEVICE)
    add_norm(x.clone(), weight, out)
    return out


@pytest.mark.parametrize("tma", [False, True])
@pytest.mark.parametrize(
    ("m", "tile"),
    [
        (5, Tile(16, 64, 4)),
        (20, Tile(16, 128, 2)),
        (20, Tile(32, 64, 1, 4)),
        (20, Tile(64, 128, 2, tokens_long=True)),
        (20, Tile(64, 256, warps=8, tokens_long=True)),
        (20, Tile(64, 256, warps=8)),
    ],
)
def test_partials_add_up_to_the_product(m: int, tile: Tile, tma: bool) -> None:
    n, k = 256, 640
    x, w = quantise_reference(varied(m, k, 1, 2)), weights(n, k)
    tile = replace(tile, tma=tma)
    partials = torch.full((tile.splits, m, n), float("nan"), device=DEVICE)
    gemm_partials(x, w, partials, tile)
    assert relative(add_partials(partials), gemm_reference(x, w)) < EXACT


def test_bits_of_a_row_do_not_depend_on_neighbours_tiles_or_programs() -> None:
    n, k, m = 256, 2304, 20
    x, w = varied(m, k, 1, 3), weights(n, k)

    def product(rows: torch.Tensor, tile: Tile) -> torch.Tensor:
        partials = torch.full((tile.splits, len(rows), n), float("nan"), device=DEVICE)
        gemm_partials(quantise_reference(rows), w, partials, tile)
        return add_partials(partials)

    full, eight = product(x, Tile(32, 64, 4)), product(x, Tile(32, 64, 8))
    for rows in ([3], [3, 9, 11], list(range(17))):
        assert torch.equal(product(x[rows], Tile(16, 64, 4)), full[rows])
        assert torch.equal(product(x[rows], Tile(16, 128, 1, 4)), full[rows])
        for split in ((4, 1), (1, 4)):
            assert torch.equal(
                product(x[rows], Tile(64, 128, *split, tokens_long=True)), full[rows]
            )
        assert torch.equal(product(x[rows], Tile(16, 64, 8)), eight[rows])
        assert torch.equal(product(x[rows], Tile(16, 128, 2, 4)), eight[rows])
        out = torch.full((len(rows), n), float("nan"), device=DEVICE).bfloat16()
        gemm_rows(quantise_reference(x[rows]), w, out, Tile(16, 64, 1, 4))
        assert torch.equal(out, full[rows].bfloat16())


def test_a_scale_read_in_the_wrong_order_is_seen() -> None:
    m, n, k = 4, 256, 1024
    x, w = quantise_reference(varied(m, k, 1, 4)), weights(n, k)
    wrong = Fp8Weight(w.values, w.scales.t().contiguous().view(w.scales.shape))

    def error(weight: Fp8Weight, rows: Fp8Rows, reference: torch.Tensor) -> float:
        partials = torch.full((1, m, n), float("nan"), device=DEVICE)
        gemm_partials(rows, weight, partials, Tile(16, 64))
        return relative(partials[0], reference)

    reference = gemm_reference(x, w)
    assert error(w, x, reference) < EXACT
    assert error(wrong, x, reference) > 0.3

    # What the usual test draws, independent values of one size, would let through.
    g = torch.Generator().manual_seed(5)
    flat = quantise_weight(torch.randn(n, k, generator=g).to(DEVICE))
    rows = quantise_reference(torch.randn(m, k, generator=g).bfloat16().to(DEVICE))
    hidden = Fp8Weight(flat.values, flat.scales.t().contiguous().view(flat.scales.shape))
    assert error(hidden, rows, gemm_reference(rows, flat)) < 0.15


@pytest.mark.parametrize("splits", [0, 2, 8])
def test_deferred_norm_is_the_norm(splits: int) -> None:
    m, d = 5, 384
    residual, weight = varied(m, d, 1, 6), varied(1, d, 1, 7)[0]
    delta = torch.randn(splits, m, d).to(DEVICE) if splits else None
    h, expected = norm_reference(
        residual, weight, EPS, None if delta is None else add_partials(delta)
    )
    out = NormedRows.empty(m, d, DEVICE)
    add_norm(residual, weight, out, delta)
    factor = torch.rsqrt(out.squares.sum(0) / d + EPS)
    assert torch.equal(residual.float(), h)
    assert relative(dequantise_rows(out.rows) * factor[:, None], expected) < 0.03
    assert torch.allclose(out.squares.sum(0), h.pow(2).sum(-1), rtol=1e-6)


@pytest.mark.parametrize("splits", [0, 4])
def test_whole_norm_rounds_as_an_eager_model(splits: int) -> None:
    m, d = 3, 384
    residual, weight = varied(m, d, 1, 6), varied(1, d, 1, 7)[0]
    delta = torch.randn(splits, m, d).to(DEVICE) if splits else None
    h = residual if delta is None else residual + add_partials(delta).bfloat16()
    r = torch.rsqrt(h.float().pow(2).mean(-1, keepdim=True) + EPS)
    expected = (h.float() * r).bfloat16() * weight
    out = torch.full_like(residual, float("nan"))
    whole_norm(residual, weight, out, EPS, delta)
    assert torch.equal(residual, h)
    # The sum of squares may be added in another order: one step of bf16 at most, and rarely.
    assert (out != expected).float().mean() < 0.01
    assert relative(out, expected) < 1e-3


def test_rows_of_bf16_carry_the_rms_factor() -> None:
    m, n, k = 5, 256, 384
    x, weight, w = varied(m, k, 1, 11), varied(1, k, 1, 12)[0], weights(n, k)
    source = normed(x, weight)
    factor = torch.rsqrt(x.double().pow(2).mean(-1, keepdim=True) + EPS)
    out = torch.full((m, n), float("nan"), dtype=torch.bfloat16, device=DEVICE)
    gemm_rows(source, w, out, Tile(16, 64, 1, 4), eps=EPS)
    assert relative(out, gemm_reference(source.rows, w) * factor) < 3e-3
    with pytest.raises(ValueError, match="one split"):
        gemm_rows(source, w, out, Tile(16, 64, 2))


def test_swiglu_of_rows_and_its_quantised_form() -> None:
    m, inner = 5, 256
    both = varied(m, 2 * inner, 1, 15)
    expected = swiglu_reference(both[:, :inner], both[:, inner:])
    out = torch.full((m, inner), float("nan"), dtype=torch.bfloat16, device=DEVICE)
    swiglu(both, out)
    assert relative(out, expected) < 2e-3
    quantised = Fp8Rows.empty(m, inner, DEVICE)
    swiglu(both, quantised)
    assert relative(dequantise_rows(quantised), out) < 0.03
    for each in (1, 8):
        again = Fp8Rows.empty(m, inner, DEVICE)
        swiglu(both, again, each=each)
        assert torch.equal(again.values.float(), quantised.values.float())
    again = Fp8Rows.empty(m, inner, DEVICE)
    quantise(out, again)
    assert torch.equal(again.values.float(), quantised.values.float())
    assert torch.equal(again.scales, quantised.scales)


def test_a_product_is_close_to_the_one_in_bf16() -> None:
    m, n, k = 5, 256, 640
    x = varied(m, k, 1, 16)
    plain = varied(n, k, 128, 17)
    w = quantise_weight(plain)
    assert relative(dequantise_weight(w), plain) < 0.03
    got = gemm_reference(quantise_reference(x), w)
    expected = x.double() @ plain.double().t()
    assert relative(got, expected) < 0.045
    cosine = torch.nn.functional.cosine_similarity(got.flatten(), expected.flatten(), 0)
    assert cosine > 0.999


def test_rows_and_weight_of_different_depth_are_refused() -> None:
    x = quantise_reference(varied(4, 256, 1, 18))
    with pytest.raises(ValueError, match="K = 256"):
        gemm_partials(x, weights(128, 384), torch.empty(1, 4, 128, device=DEVICE), Tile(16, 64))


def test_the_table_cuts_a_weight_alike_for_every_number_of_rows() -> None:
    shapes = [(6144, 2560), (2560, 4096), (2560, 9728), (4096, 2560), (512, 256), (256, 640)]
    for n, k in shapes:
        for rows in range(1, 600):
            tile = tile_for(n, k, rows)
            assert tile.splits * tile.chunks == chunks_of(n, k)
            assert n % tile.columns == 0 and tile.splits <= k // 128
            assert tile.chunks in (1, 4)
    assert all(rows_tile(rows).splits * rows_tile(rows).chunks == 1 for rows in range(1, 600))

"""The bf16 GEMM of prefill: it is the product, and a row has the same bits in any company."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before the first kernel is imported

from shoal.kernels.bf16_gemm import bf16_gemm, chunks_of_wide, wide_tile_for
from shoal.kernels.gemm import Tile, add_partials

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
S2_PRO = {"qkv": (6144, 2560), "out": (2560, 4096), "gate_up": (19456, 2560), "down": (2560, 9728)}


def operands(m: int, n: int, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(m + n + k)
    x, w = torch.randn(m, k, generator=g), torch.randn(n, k, generator=g) / k**0.5
    return x.bfloat16().to(DEVICE), w.bfloat16().to(DEVICE)


def multiplied(x: torch.Tensor, w: torch.Tensor, tile: Tile) -> torch.Tensor:
    out = torch.full((tile.splits, len(x), len(w)), float("nan"), device=DEVICE)
    bf16_gemm(x, w, out, tile)
    return add_partials(out)


@pytest.mark.parametrize(
    ("m", "n", "k", "tile"),
    [
        (5, 128, 640, Tile(16, 64, 4)),
        (20, 128, 640, Tile(32, 64, 1, 4)),
        (70, 128, 640, Tile(64, 64, 2, 2, tokens_long=True)),
        # Neither edge is whole: K is no multiple of a block, N none of a tile.
        (3, 72, 328, Tile(16, 64)),
        (130, 200, 328, Tile(128, 128, 2, tokens_long=True)),
    ],
)
def test_the_sums_are_the_product(m: int, n: int, k: int, tile: Tile) -> None:
    x, w = operands(m, n, k)
    want = x.double() @ w.double().t()
    got = multiplied(x, w, tile)
    assert float((got - want).norm() / want.norm()) < 1e-6


def test_bits_of_a_row_depend_on_neither_neighbours_nor_tiles_nor_programs() -> None:
    x, w = operands(150, 192, 1280)
    whole = multiplied(x, w, Tile(128, 64, 4, tokens_long=True))
    picked = [149, 3, 77]
    for rows in (picked, [*range(60), *picked], [77]):
        for rows_tile, columns, long in ((16, 64, False), (32, 64, False), (64, 128, True)):
            for splits, chunks in ((4, 1), (1, 4)):
                tile = Tile(rows_tile, columns, splits, chunks, tokens_long=long)
                assert torch.equal(multiplied(x[rows].contiguous(), w, tile), whole[rows]), tile
    other = multiplied(x, w, Tile(128, 64, 2, tokens_long=True))
    assert not torch.equal(other, whole)  # or the order of the sums would show nowhere


def test_rows_are_the_sum_rounded_once() -> None:
    x, w = operands(9, 128, 512)
    out = torch.full((1, 9, 128), float("nan"), dtype=torch.bfloat16, device=DEVICE)
    bf16_gemm(x, w, out)
    assert torch.equal(out[0], multiplied(x, w, Tile(64, 64, tokens_long=True)).bfloat16())
    # A weight that is cut along K, whose rows one program adds.
    x, w = operands(3, 64, 2048)
    assert chunks_of_wide(64, 2048) == 4
    out = torch.full((1, 3, 64), float("nan"), dtype=torch.bfloat16, device=DEVICE)
    bf16_gemm(x, w, out)
    assert torch.equal(out[0], multiplied(x, w, Tile(16, 64, 4)).bfloat16())


@pytest.mark.parametrize(("n", "k"), S2_PRO.values())
def test_a_weight_s_chunks_are_the_same_for_every_number_of_rows(n: int, k: int) -> None:
    tiles = [wide_tile_for(n, k, rows) for rows in (1, 16, 17, 33, 64, 65, 128, 129, 256, 512)]
    assert {tile.splits * tile.chunks for tile in tiles} == {chunks_of_wide(n, k)}
    # At a sentence's rows every multiprocessor has work.
    assert n // 64 * chunks_of_wide(n, k) >= 132
    # The other sizes are those of small models, whose K is not worth a cut.
    assert chunks_of_wide(768, 256) == 1


def test_operands_that_do_not_fit_are_refused() -> None:
    x, w = operands(4, 64, 128)
    out = torch.zeros(1, 4, 64, device=DEVICE)
    with pytest.raises(ValueError, match="rows have K = 64, the weight 128"):
        bf16_gemm(x[:, :64].contiguous(), w, out)
    with pytest.raises(ValueError, match="for 2 splits"):
        bf16_gemm(x, w, out, Tile(16, 64, 2))
    with pytest.raises(ValueError, match="one split"):
        bf16_gemm(x, w, torch.zeros(2, 4, 64).bfloat16(), replace(Tile(16, 64), splits=2))

"""Block-scaled FP8 GEMM for few rows: ``out[m, n] = sum_k x[m, k] w[n, k]``, M = 1 .. hundreds.

Weight rows lie on the matrix unit's long side (so 16 tokens waste nothing), each 128 of K is one
product that is then scaled and added in fp32, and K is cut into a number of chunks that depends on
the weight alone. Chunks are added in fixed order, four and four: by the program that computed all
four, or by the kernel that reads their partials. So a row has the same bits whatever M, tile shape
or number of programs.

A product ends in fp32 partials ``[S, M, N]``, which the next kernel adds as it reads them, or (one
split) in bf16 rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from .norm import NormedRows, load_squares, rms_factor
from .quantise import Fp8Rows, Fp8Weight, dequantise_rows, dequantise_weight
from .rounding import (
    EMULATE,
    bf16,
    dot,
    launch_options,
    let_next_start,
    prefetch_lines,
    wait_for_previous,
)


@dataclass(frozen=True, slots=True)
class Tile:
    """How one product is cut up. ``splits * chunks`` must be the same for every M of a weight."""

    rows: int
    """Tokens of a program: 16, 32, 64, 128 or 256."""
    columns: int
    """Weight rows of a program: 64, 128 or 256."""
    splits: int = 1
    """Programs along K: 1, 2, 4 or 8."""
    chunks: int = 1
    """Chunks of K that one program adds: 1 or 4."""
    warps: int = 4
    stages: int = 4
    tma: bool = True
    """Fetch tiles with the bulk tensor copy engine instead of per-thread copies."""
    tokens_long: bool = False
    """Tokens, not weight rows, lie on the matrix unit's long side: 64 of them at least."""
    ahead: int = 0
    """Blocks of the weight to ask the L2 cache for while the kernel before still runs."""


@triton.jit
def prefetch_weight(W, columns, first, last, K, BLOCKS: tl.constexpr):
    """Ask L2 for the first blocks of a program's weight rows: a block of a row is a cache line."""
    if not EMULATE:
        block = tl.minimum(first + tl.arange(0, BLOCKS), last - 1)
        prefetch_lines(W + columns[:, None].to(tl.int64) * K + block[None, :] * 128)


@triton.jit
def load_tile(X, first, block, safe, K, TMA: tl.constexpr):
    """e4m3 [R, 128]: rows ``safe`` (``first`` onwards) of block ``block`` along K."""
    if TMA:
        x = X.load([first, block * 128])
    else:
        x = tl.load(X + safe[:, None].to(tl.int64) * K + block * 128 + tl.arange(0, 128)[None, :])
    return x


@triton.jit(do_not_specialize=["M", "sc_stride", "sq_stride"])
def gemm_kernel(
    X,
    SC,
    sc_stride,
    W,
    VALUES,
    WS,
    SQ,
    sq_stride,
    OUT,
    M,
    N,
    K,
    eps,
    BM: tl.constexpr,
    BN: tl.constexpr,
    SPLITS: tl.constexpr,
    CHUNKS: tl.constexpr,
    TMA: tl.constexpr,
    TOKENS_LONG: tl.constexpr,
    NORMED: tl.constexpr,
    G: tl.constexpr,
    ROWS: tl.constexpr,
    AHEAD: tl.constexpr,
    PDL: tl.constexpr,
):
    """grid (ceil(M / BM), SPLITS, N / BN): neighbours share weights, then weight rows.

    Rows past M re-read the last row and are dropped.
    """
    split = tl.program_id(1)
    m0 = tl.program_id(0) * BM
    n0 = tl.program_id(2) * BN
    blocks = K // 128
    total: tl.constexpr = SPLITS * CHUNKS
    first = blocks * (split * CHUNKS) // total
    last = blocks * ((split + 1) * CHUNKS) // total
    rows = m0 + tl.arange(0, BM)
    live = rows < M
    safe = tl.minimum(rows, M - 1)
    columns = n0 + tl.arange(0, BN)
    ws = WS + (n0 // 128) * blocks
    if BN > 128:
        ws += tl.arange(0, BN) // 128 * blocks
    if AHEAD > 0:
        prefetch_weight(VALUES, columns, first, last, K, AHEAD)
    next_ws = tl.load(ws + first)
    wait_for_previous(PDL)
    if NORMED:
        squares = load_squares(SQ, sq_stride, rows, live, K, G)
    acc = tl.zeros([BM, BN] if TOKENS_LONG else [BN, BM], tl.float32)
    if CHUNKS == 4:
        second = blocks * (split * 4 + 1) // total
        third = blocks * (split * 4 + 2) // total
        fourth = blocks * (split * 4 + 3) // total
        done = tl.zeros_like(acc)
    # Scales are fetched one block ahead: unlike the tiles, the compiler does not pipeline them.
    next_xs = tl.load(SC + first * sc_stride + safe)
    for block in tl.range(first, last):
        w = load_tile(W, n0, block, columns, K, TMA)
        x = load_tile(X, m0, block, safe, K, TMA)
        if BN > 128:
            ours = next_ws
            scale = next_xs
        else:
            scale = next_xs * next_ws
        ahead = tl.minimum(block + 1, last - 1)
        next_ws = tl.load(ws + ahead)
        next_xs = tl.load(SC + ahead * sc_stride + safe)
        if CHUNKS == 4:
            if (block == second) | (block == third) | (block == fourth):
                done += acc
                acc = tl.zeros_like(acc)
        if TOKENS_LONG:
            scales = scale[:, None]
            if BN > 128:
                scales = scales * ours[None, :]
            acc += dot(x, tl.trans(w)) * scales
        else:
            scales = scale[None, :]
            if BN > 128:
                scales = scales * ours[:, None]
            acc += dot(w, tl.trans(x)) * scales
    if CHUNKS == 4:
        acc = done + acc
    let_next_start(PDL)
    if ROWS:
        if NORMED:
            factor = rms_factor(squares, K, eps)
            acc = acc * (factor[:, None] if TOKENS_LONG else factor[None, :])
    if TOKENS_LONG:
        mask = live[:, None] & (columns < N)[None, :]
        at = rows[:, None].to(tl.int64) * N + columns[None, :]
    else:
        mask = live[None, :] & (columns < N)[:, None]
        at = rows[None, :].to(tl.int64) * N + columns[:, None]
    if ROWS:
        tl.store(OUT + at, bf16(acc), mask=mask)
    else:
        tl.store(OUT + tl.cast(split, tl.int64) * M * N + at, acc, mask=mask)


def _launch(
    rows: Fp8Rows,
    squares: torch.Tensor | None,
    weight: Fp8Weight,
    out: torch.Tensor,
    tile: Tile,
    bf16_rows: bool,
    eps: float,
    pdl: bool,
) -> None:
    m, k = rows.values.shape
    n = weight.n
    if k != weight.k:
        raise ValueError(f"rows have K = {k}, the weight {weight.k}")
    box = TensorDescriptor.from_tensor
    gemm_kernel[(triton.cdiv(m, tile.rows), tile.splits, n // tile.columns)](
        box(rows.values, [tile.rows, 128]) if tile.tma else rows.values,
        rows.scales,
        rows.scales.stride(0),
        box(weight.values, [tile.columns, 128]) if tile.tma else weight.values,
        weight.values,
        weight.scales,
        weight.scales if squares is None else squares,
        0 if squares is None else squares.stride(0),
        out,
        m,
        n,
        k,
        eps,
        BM=tile.rows,
        BN=tile.columns,
        SPLITS=tile.splits,
        CHUNKS=tile.chunks,
        TMA=tile.tma,
        TOKENS_LONG=tile.tokens_long,
        NORMED=squares is not None,
        G=1 if squares is None else triton.next_power_of_2(k // 128),
        ROWS=bf16_rows,
        AHEAD=tile.ahead if pdl else 0,
        PDL=pdl,
        **launch_options(warps=tile.warps, stages=tile.stages, pdl=pdl),
    )


def gemm_partials(
    x: Fp8Rows | NormedRows,
    weight: Fp8Weight,
    partials: torch.Tensor,
    tile: Tile,
    *,
    pdl: bool = False,
) -> None:
    """partials fp32 [S, M, N] (contiguous, S = ``tile.splits``) <- x w^T in S parts.

    They are to be added in the order of ``rounding.load_split_sum``. Of ``NormedRows`` the rms
    factor is left to the consumer.
    """
    if partials.shape[0] != tile.splits:
        raise ValueError(f"{partials.shape[0]} partials for {tile.splits} splits")
    rows = x.rows if isinstance(x, NormedRows) else x
    _launch(rows, None, weight, partials, tile, False, 0.0, pdl)


def gemm_rows(
    x: Fp8Rows | NormedRows,
    weight: Fp8Weight,
    out: torch.Tensor,
    tile: Tile,
    *,
    eps: float = 0.0,
    pdl: bool = False,
) -> None:
    """out bf16 [M, N] <- x w^T, with the rms factor of ``NormedRows``. ``tile.splits`` is 1.

    The same bits as the partials of such a weight, added, multiplied by the factor and rounded.
    """
    if tile.splits != 1:
        raise ValueError("bf16 rows come from one split")
    if isinstance(x, NormedRows):
        _launch(x.rows, x.squares, weight, out, tile, True, eps, pdl)
    else:
        _launch(x, None, weight, out, tile, True, eps, pdl)


def gemm_reference(rows: Fp8Rows, weight: Fp8Weight) -> torch.Tensor:
    """float64 [M, N] of the quantised operands."""
    return dequantise_rows(rows).double() @ dequantise_weight(weight).double().t()


def add_partials(partials: torch.Tensor) -> torch.Tensor:
    """fp32 [M, N]: partials [S, M, N] in the order the kernels add them."""
    groups: list[torch.Tensor] = []
    for start in range(0, len(partials), 4):
        total = partials[start].float()
        for part in partials[start + 1 : start + 4]:
            total = total + part.float()
        groups.append(total)
    return groups[0] if len(groups) == 1 else groups[0] + groups[1]

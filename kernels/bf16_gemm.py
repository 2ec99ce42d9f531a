"""bf16 GEMM whose rows have the same bits whatever is beside them: ``out = x w^T``, M = 1 .. 512.

A BLAS picks its kernel, and with it the order of the sums along K, by the number of rows. Here that
order belongs to the weight alone: K is cut into a fixed number of chunks, each chunk is added block
after block by the matrix unit, and chunks are added in order, by the program that computed all of
them or by the kernel that reads their partials. Tiles and programs may differ from bucket to
bucket. For prefill, where texts of several contexts share a pass.
"""

from __future__ import annotations

from dataclasses import replace

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from .gemm import Tile
from .rounding import bf16, dot, launch_options

BLOCK_K = 64
"""Values of K that one product of the matrix unit's loop takes: 128 bytes, as the copy engine
lays them out."""
_PROGRAMS = 132
"""Programs that fill an H200."""


def chunks_of_wide(n: int, k: int) -> int:
    """Chunks along K of a bf16 weight [N, K]: 1, 2 or 4, enough to fill a device at 64 rows."""
    blocks = k // BLOCK_K
    for chunks in (1, 2):
        if n // 64 * chunks >= _PROGRAMS or blocks < 16 * chunks:
            return chunks
    return 4


def wide_tile_for(n: int, k: int, rows: int) -> Tile:
    """Tile of ``bf16_gemm`` for a weight [N, K] and ``rows`` rows.

    So small that three programs share a multiprocessor up to 128 rows: those of gate and up are
    then all at work at once. Reasoned; ``loadtest/bench_prefill_together`` times others.
    """
    chunks = chunks_of_wide(n, k)
    if rows <= 32:
        return Tile(32, 64, chunks, stages=5)
    if rows <= 64:
        return Tile(64, 64, chunks, tokens_long=True)
    if rows <= 128:
        return Tile(128, 64, chunks, stages=3, tokens_long=True)
    return Tile(128, 128, chunks, warps=8, stages=3, tokens_long=True)


@triton.jit(do_not_specialize=["M"])
def bf16_gemm_kernel(
    X,
    W,
    OUT,
    M,
    N,
    K,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    CHUNKS: tl.constexpr,
    TOKENS_LONG: tl.constexpr,
    ROWS: tl.constexpr,
):
    """grid (ceil(M / BM), splits, ceil(N / BN)): neighbours share weights, then weight rows.

    What the copy engine fetches from behind an edge is zero. The number of splits is the grid's,
    so that weights of different splits are served by one compiled kernel.
    """
    split = tl.program_id(1)
    m0 = tl.program_id(0) * BM
    n0 = tl.program_id(2) * BN
    blocks = tl.cdiv(K, BK)
    parts = tl.num_programs(1) * CHUNKS
    done = tl.zeros([BM, BN] if TOKENS_LONG else [BN, BM], tl.float32)
    # Not unrolled: each copy of the loop within would hold sums of its own.
    for chunk in tl.range(CHUNKS):
        first = blocks * (split * CHUNKS + chunk) // parts
        last = blocks * (split * CHUNKS + chunk + 1) // parts
        acc = tl.zeros_like(done)
        for block in tl.range(first, last):
            w = W.load([n0, block * BK])
            x = X.load([m0, block * BK])
            if TOKENS_LONG:
                acc += dot(x, tl.trans(w))
            else:
                acc += dot(w, tl.trans(x))
        done += acc
    rows = m0 + tl.arange(0, BM)
    columns = n0 + tl.arange(0, BN)
    if TOKENS_LONG:
        mask = (rows < M)[:, None] & (columns < N)[None, :]
        at = rows[:, None].to(tl.int64) * N + columns[None, :]
    else:
        mask = (rows < M)[None, :] & (columns < N)[:, None]
        at = rows[None, :].to(tl.int64) * N + columns[:, None]
    if ROWS:
        tl.store(OUT + at, bf16(done), mask=mask)
    else:
        tl.store(OUT + tl.cast(split, tl.int64) * M * N + at, done, mask=mask)


def bf16_gemm(
    x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor, tile: Tile | None = None
) -> None:
    """``out`` <- bf16 rows ``x`` [M, K] times ``weight`` bf16 [N, K], all contiguous, K in eights.

    ``out`` is fp32 partials [S, M, N], S = ``tile.splits``, to be added in the order of
    ``rounding.load_split_sum``; or, of one split, bf16 [1, M, N]. ``tile``: that of
    ``wide_tile_for`` when not given, its splits in one program where ``out`` has one. ValueError
    where these do not fit.
    """
    (m, k), n = x.shape, weight.shape[0]
    if tile is None:
        tile = wide_tile_for(n, k, m)
        if out.shape[0] == 1:
            tile = replace(tile, splits=1, chunks=tile.splits * tile.chunks)
    if weight.shape[1] != k or k % 8:
        raise ValueError(f"rows have K = {k}, the weight {weight.shape[1]}; in eights")
    if tuple(out.shape) != (tile.splits, m, n):
        raise ValueError(f"{tuple(out.shape)} for {tile.splits} splits of {(m, n)}")
    rows_out = out.dtype == torch.bfloat16
    if rows_out and tile.splits != 1:
        raise ValueError("bf16 rows come from one split")
    box = TensorDescriptor.from_tensor
    bf16_gemm_kernel[(triton.cdiv(m, tile.rows), tile.splits, triton.cdiv(n, tile.columns))](
        box(x, [tile.rows, BLOCK_K]),
        box(weight, [tile.columns, BLOCK_K]),
        out,
        m,
        n,
        k,
        BM=tile.rows,
        BN=tile.columns,
        BK=BLOCK_K,
        CHUNKS=tile.chunks,
        TOKENS_LONG=tile.tokens_long,
        ROWS=rows_out,
        **launch_options(warps=tile.warps, stages=tile.stages),
    )

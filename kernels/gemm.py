"""Block-scaled FP8 GEMM for few rows: ``out[m, n] = sum_k x[m, k] w[n, k]``, M = 1 .. hundreds.

Weight rows lie on the matrix unit's long side (so 16 tokens waste nothing), each 128 of K is one
product that is then scaled and added in fp32, and K is cut into a fixed number of chunks that
depends on the weight alone. Chunks are added as a balanced tree: within a program (``chunks``), in
the last program of a tile, or by the kernel that reads the partials. So a row has the same bits
whatever M, tile shape or number of programs.

Three ends of a product: fp32 partials ``[S, M, N]`` for a consumer that adds them anyway; bf16 rows
(one split); or ``finish``, where the last program of a tile adds the partials, the residual, and
does the deferred norm of ``norm.py``. The SwiGLU product is in ``swiglu.py``.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from .norm import NormedRows, finish_group, load_squares, rms_factor
from .quantise import Fp8Rows, Fp8Weight, dequantise_rows, dequantise_weight
from .rounding import bf16, dot, launch_options, let_next_start, quantise_rows, wait_for_previous

PARTIALS = tl.constexpr(0)
ROWS = tl.constexpr(1)
FINISH = tl.constexpr(2)


@dataclass(frozen=True, slots=True)
class Tile:
    """How one product is cut up. ``splits * chunks`` must be the same for every M of a weight."""

    rows: int
    """Tokens of a program: 16, 32, 64 or 128."""
    columns: int
    """Weight rows of a program: 64 or 128."""
    splits: int = 1
    """Programs along K: 1, 2, 4 or 8."""
    chunks: int = 1
    """Chunks of K that one program adds: 1 or 2."""
    warps: int = 4
    stages: int = 4
    tma: bool = True
    """Fetch tiles with the bulk tensor copy engine instead of per-thread copies."""


@triton.jit
def load_weight_tile(W, n0, kb, columns, K, TMA: tl.constexpr):
    if TMA:
        w = W.load([n0, kb * 128])
    else:
        w = tl.load(W + columns[:, None].to(tl.int64) * K + kb * 128 + tl.arange(0, 128)[None, :])
    return w


@triton.jit
def load_rows_tile(X, m0, kb, safe, K, TMA: tl.constexpr):
    """e4m3 [BM, 128]."""
    if TMA:
        x = X.load([m0, kb * 128])
    else:
        x = tl.load(X + safe[:, None] * K + kb * 128 + tl.arange(0, 128)[None, :])
    return x


@triton.jit(do_not_specialize=["M", "sc_stride", "sq_stride", "nsc_stride", "nsq_stride"])
def gemm_kernel(
    X,
    SC,
    sc_stride,
    W,
    WS,
    SQ,
    sq_stride,
    OUT,
    RES,
    NEXT_WEIGHT,
    NQ,
    NSC,
    nsc_stride,
    NSQ,
    nsq_stride,
    COUNT,
    M,
    N,
    K,
    eps,
    BM: tl.constexpr,
    BN: tl.constexpr,
    SPLITS: tl.constexpr,
    CHUNKS: tl.constexpr,
    TMA: tl.constexpr,
    WIDE: tl.constexpr,
    NORMED: tl.constexpr,
    G: tl.constexpr,
    END: tl.constexpr,
    PDL: tl.constexpr,
):
    """grid (ceil(M / BM), N / BN, SPLITS). Rows past M re-read the last row and are dropped."""
    tile_m = tl.program_id(0)
    tile_n = tl.program_id(1)
    split = tl.program_id(2)
    m0 = tile_m * BM
    n0 = tile_n * BN
    blocks = K // 128
    total: tl.constexpr = SPLITS * CHUNKS
    first = blocks * (split * CHUNKS) // total
    last = blocks * ((split + 1) * CHUNKS) // total
    middle = blocks * (split * CHUNKS + 1) // total
    rows = m0 + tl.arange(0, BM)
    live = rows < M
    safe = tl.minimum(rows, M - 1)
    columns = n0 + tl.arange(0, BN)
    ws = WS + (n0 // 128) * blocks
    wait_for_previous(PDL)
    if NORMED:
        squares = load_squares(SQ, sq_stride, rows, live, K, G)
    acc = tl.zeros([BN, BM], tl.float32)
    held = tl.zeros([BN, BM], tl.float32)
    # Scales are fetched one block ahead: unlike the tiles, the compiler does not pipeline them.
    next_ws = tl.load(ws + first)
    if not WIDE:
        next_xs = tl.load(SC + first * sc_stride + safe)
    for kb in tl.range(first, last):
        w = load_weight_tile(W, n0, kb, columns, K, TMA)
        if WIDE:
            # The row's own bf16 values, quantised by every program that reads them.
            wide = tl.load(X + safe[:, None] * K + kb * 128 + tl.arange(0, 128)[None, :])
            x, scale = quantise_rows(wide.to(tl.float32))
            scale = scale * next_ws
        else:
            x = load_rows_tile(X, m0, kb, safe, K, TMA)
            scale = next_xs * next_ws
        ahead = tl.minimum(kb + 1, last - 1)
        next_ws = tl.load(ws + ahead)
        if not WIDE:
            next_xs = tl.load(SC + ahead * sc_stride + safe)
        if CHUNKS == 2:
            held = tl.where(kb == middle, acc, held)
            acc = tl.where(kb == middle, 0.0, acc)
        acc += dot(w, tl.trans(x)) * scale[None, :]
    if CHUNKS == 2:
        acc = held + acc
    let_next_start(PDL)
    mask = live[None, :] & (columns < N)[:, None]
    at = rows[None, :].to(tl.int64) * N + columns[:, None]
    if END == ROWS:
        if NORMED:
            acc = acc * rms_factor(squares, K, eps)[None, :]
        tl.store(OUT + at, bf16(acc), mask=mask)
    else:
        tl.store(OUT + tl.cast(split, tl.int64) * M * N + at, acc, mask=mask)
    if END == FINISH:
        # Stores of all threads come before the count, the count before the last one's loads.
        tl.debug_barrier()
        group = n0 // 128
        counter = COUNT + tile_m * (N // 128) + group
        arrived = tl.atomic_add(counter, 1, sem="acq_rel", scope="gpu")
        if arrived == SPLITS * (128 // BN) - 1:
            tl.debug_barrier()
            finish_group(
                OUT,
                RES,
                NEXT_WEIGHT,
                NQ,
                NSC,
                nsc_stride,
                NSQ,
                nsq_stride,
                rows,
                group,
                M,
                N,
                SPLITS,
            )
            tl.store(counter, 0)


def _launch(
    x: torch.Tensor | Fp8Rows | NormedRows,
    weight: Fp8Weight,
    out: torch.Tensor,
    tile: Tile,
    end: int,
    eps: float,
    pdl: bool,
    residual: torch.Tensor | None = None,
    next_weight: torch.Tensor | None = None,
    following: NormedRows | None = None,
    counters: torch.Tensor | None = None,
) -> None:
    rows = x.rows if isinstance(x, NormedRows) else x
    wide = isinstance(rows, torch.Tensor)
    values = rows if isinstance(rows, torch.Tensor) else rows.values
    scales = weight.scales if isinstance(rows, torch.Tensor) else rows.scales
    squares = x.squares if isinstance(x, NormedRows) else None
    m, k = values.shape
    n = weight.n
    if k != weight.k:
        raise ValueError(f"rows have K = {k}, the weight {weight.k}")
    tma_rows = tile.tma and not wide
    grid = (triton.cdiv(m, tile.rows), n // tile.columns, tile.splits)
    gemm_kernel[grid](
        TensorDescriptor.from_tensor(values, [tile.rows, 128]) if tma_rows else values,
        scales,
        scales.stride(0),
        TensorDescriptor.from_tensor(weight.values, [tile.columns, 128])
        if tile.tma
        else weight.values,
        weight.scales,
        weight.scales if squares is None else squares,
        0 if squares is None else squares.stride(0),
        out,
        out if residual is None else residual,
        out if next_weight is None else next_weight,
        out if following is None else following.rows.values,
        out if following is None else following.rows.scales,
        0 if following is None else following.rows.scales.stride(0),
        out if following is None else following.squares,
        0 if following is None else following.squares.stride(0),
        out if counters is None else counters,
        m,
        n,
        k,
        eps,
        BM=tile.rows,
        BN=tile.columns,
        SPLITS=tile.splits,
        CHUNKS=tile.chunks,
        TMA=tile.tma,
        WIDE=wide,
        NORMED=squares is not None,
        G=triton.next_power_of_2(k // 128) if squares is not None else 1,
        END=end,
        PDL=pdl,
        **launch_options(warps=tile.warps, stages=tile.stages, pdl=pdl),
    )


def gemm_partials(
    x: torch.Tensor | Fp8Rows | NormedRows,
    weight: Fp8Weight,
    partials: torch.Tensor,
    tile: Tile,
    *,
    pdl: bool = False,
) -> None:
    """partials fp32 [S, M, N] (contiguous) <- x w^T in S parts, to be added as a balanced tree.

    ``x``: quantised rows, or bf16 rows [M, K] that every program quantises for itself (worth it up
    to 16 rows). Of ``NormedRows`` the rms factor is left to the consumer.
    """
    _launch(_without_squares(x), weight, partials, tile, PARTIALS.value, 0.0, pdl)


def gemm_rows(
    x: torch.Tensor | Fp8Rows | NormedRows,
    weight: Fp8Weight,
    out: torch.Tensor,
    tile: Tile,
    *,
    eps: float = 0.0,
    pdl: bool = False,
) -> None:
    """out bf16 [M, N] <- x w^T, with the rms factor of ``NormedRows``. ``tile.splits`` is 1."""
    if tile.splits != 1:
        raise ValueError("bf16 rows come from one split")
    _launch(x, weight, out, tile, ROWS.value, eps, pdl)


def gemm_finish(
    x: torch.Tensor | Fp8Rows | NormedRows,
    weight: Fp8Weight,
    partials: torch.Tensor,
    tile: Tile,
    residual: torch.Tensor,
    next_weight: torch.Tensor,
    following: NormedRows,
    counters: torch.Tensor,
    *,
    pdl: bool = False,
) -> None:
    """``gemm_partials`` and, in the last program of each tile, ``norm.add_norm``.

    ``counters`` int32 [ceil(M / tile.rows) * N / 128] are zero before and after.
    """
    _launch(
        _without_squares(x),
        weight,
        partials,
        tile,
        FINISH.value,
        0.0,
        pdl,
        residual,
        next_weight,
        following,
        counters,
    )


def _without_squares(x: torch.Tensor | Fp8Rows | NormedRows) -> torch.Tensor | Fp8Rows:
    return x.rows if isinstance(x, NormedRows) else x


def gemm_reference(rows: Fp8Rows, weight: Fp8Weight) -> torch.Tensor:
    """float64 [M, N] of the quantised operands."""
    return dequantise_rows(rows).double() @ dequantise_weight(weight).double().t()

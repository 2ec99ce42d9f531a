"""SwiGLU: the gate and up projections with the activation in their epilogue, and the plain form.

A program holds the same columns of gate and up in two accumulators, so the activation needs no
exchange. With 128 columns a program owns whole quantisation groups and can write e4m3; with 64 it
writes bf16 for ``quantise``. With many rows a plain product and ``swiglu`` behind it are faster.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from .gemm import Tile, load_tile, prefetch_weight
from .norm import NormedRows, load_squares, rms_factor
from .quantise import ROWS_EACH, Fp8Rows, Fp8Weight
from .rounding import (
    bf16,
    dot,
    fp8,
    group_scale,
    launch_options,
    let_next_start,
    on_bf16_grid,
    quantise_rows,
    wait_for_previous,
)


@triton.jit
def gated(gate, up):
    """silu(gate) * up with the rounding points of an eager bf16 model; fp32 in and out."""
    g = on_bf16_grid(gate)
    return on_bf16_grid(on_bf16_grid(g / (1.0 + tl.exp(-g))) * on_bf16_grid(up))


@triton.jit(do_not_specialize=["M", "sc_stride", "sq_stride", "osc_stride"])
def gate_up_kernel(
    X,
    SC,
    sc_stride,
    W,
    VALUES,
    WS,
    SQ,
    sq_stride,
    OUT,
    OSC,
    osc_stride,
    M,
    I,  # noqa: E741
    K,
    eps,
    BM: tl.constexpr,
    BN: tl.constexpr,
    TMA: tl.constexpr,
    G: tl.constexpr,
    QUANT: tl.constexpr,
    AHEAD: tl.constexpr,
    PDL: tl.constexpr,
):
    """grid (ceil(M / BM), I / BN): W [2 I, K], gate rows first."""
    m0 = tl.program_id(0) * BM
    n0 = tl.program_id(1) * BN
    blocks = K // 128
    rows = m0 + tl.arange(0, BM)
    live = rows < M
    safe = tl.minimum(rows, M - 1)
    columns = n0 + tl.arange(0, BN)
    gate_scale = WS + (n0 // 128) * blocks
    up_scale = WS + ((I + n0) // 128) * blocks
    if AHEAD > 0:
        prefetch_weight(VALUES, columns, 0, blocks, K, AHEAD)
        prefetch_weight(VALUES, I + columns, 0, blocks, K, AHEAD)
    next_gate = tl.load(gate_scale)
    next_up = tl.load(up_scale)
    wait_for_previous(PDL)
    squares = load_squares(SQ, sq_stride, rows, live, K, G)
    gate = tl.zeros([BN, BM], tl.float32)
    up = tl.zeros([BN, BM], tl.float32)
    next_xs = tl.load(SC + safe)
    for block in tl.range(0, blocks):
        wg = load_tile(W, n0, block, columns, K, TMA)
        wu = load_tile(W, I + n0, block, I + columns, K, TMA)
        xt = tl.trans(load_tile(X, m0, block, safe, K, TMA))
        gs = next_xs * next_gate
        us = next_xs * next_up
        ahead = tl.minimum(block + 1, blocks - 1)
        next_gate = tl.load(gate_scale + ahead)
        next_up = tl.load(up_scale + ahead)
        next_xs = tl.load(SC + ahead * sc_stride + safe)
        gate_product = dot(wg, xt)
        up_product = dot(wu, xt)
        gate += gate_product * gs[None, :]
        up += up_product * us[None, :]
    let_next_start(PDL)
    r = rms_factor(squares, K, eps)
    y = gated(gate * r[None, :], up * r[None, :])
    at = rows[None, :].to(tl.int64) * I + columns[:, None]
    mask = live[None, :] & (columns < I)[:, None]
    if QUANT:
        scale, inverse = group_scale(tl.max(tl.abs(y), axis=0))
        q = tl.minimum(tl.maximum(y * inverse[None, :], -448.0), 448.0)
        tl.store(OUT + at, fp8(q), mask=mask)
        tl.store(OSC + (n0 // 128) * osc_stride + rows, scale, mask=live)
    else:
        tl.store(OUT + at, bf16(y), mask=mask)


def gate_up(
    x: NormedRows,
    weight: Fp8Weight,
    out: torch.Tensor | Fp8Rows,
    tile: Tile,
    eps: float,
    *,
    pdl: bool = False,
) -> None:
    """out [M, I] <- silu(x w_gate^T) * (x w_up^T), ``weight`` [2 I, K] with the gate's rows first.

    ``out``: bf16 rows, or quantised rows (then ``tile.columns`` is 128).
    """
    quant = isinstance(out, Fp8Rows)
    if quant and tile.columns != 128:
        raise ValueError("quantised rows need programs of 128 columns")
    values = x.rows.values
    m, k = values.shape
    inner = weight.n // 2
    box = TensorDescriptor.from_tensor
    gate_up_kernel[(triton.cdiv(m, tile.rows), inner // tile.columns)](
        box(values, [tile.rows, 128]) if tile.tma else values,
        x.rows.scales,
        x.rows.scales.stride(0),
        box(weight.values, [tile.columns, 128]) if tile.tma else weight.values,
        weight.values,
        weight.scales,
        x.squares,
        x.squares.stride(0),
        out.values if isinstance(out, Fp8Rows) else out,
        out.scales if isinstance(out, Fp8Rows) else x.squares,
        out.scales.stride(0) if isinstance(out, Fp8Rows) else 0,
        m,
        inner,
        k,
        eps,
        BM=tile.rows,
        BN=tile.columns,
        TMA=tile.tma,
        G=triton.next_power_of_2(k // 128),
        QUANT=quant,
        AHEAD=tile.ahead if pdl else 0,
        PDL=pdl,
        **launch_options(warps=tile.warps, stages=tile.stages, pdl=pdl),
    )


@triton.jit(do_not_specialize=["M", "osc_stride"])
def swiglu_kernel(
    X,
    OUT,
    OSC,
    osc_stride,
    M,
    I,  # noqa: E741
    R: tl.constexpr,
    QUANT: tl.constexpr,
    PDL: tl.constexpr,
):
    """grid (ceil(M / R), I / 128): X bf16 [M, 2 I]."""
    rows = tl.program_id(0) * R + tl.arange(0, R)
    group = tl.program_id(1)
    live = rows < M
    c = group * 128 + tl.arange(0, 128)
    source = X + rows[:, None].to(tl.int64) * (2 * I) + c[None, :]
    wait_for_previous(PDL)
    let_next_start(PDL)
    gate = tl.load(source, mask=live[:, None], other=0.0).to(tl.float32)
    up = tl.load(source + I, mask=live[:, None], other=0.0).to(tl.float32)
    y = gated(gate, up)
    at = rows[:, None].to(tl.int64) * I + c[None, :]
    if QUANT:
        q, scale = quantise_rows(y)
        tl.store(OUT + at, q, mask=live[:, None])
        tl.store(OSC + group * osc_stride + rows, scale, mask=live)
    else:
        tl.store(OUT + at, bf16(y), mask=live[:, None])


def swiglu(gate_up_rows: torch.Tensor, out: torch.Tensor | Fp8Rows, *, pdl: bool = False) -> None:
    """out [M, I] (bf16, or quantised) <- silu(g) * u of bf16 rows [M, 2 I] = g | u."""
    m, inner = gate_up_rows.shape[0], gate_up_rows.shape[1] // 2
    quant = isinstance(out, Fp8Rows)
    swiglu_kernel[(triton.cdiv(m, ROWS_EACH), inner // 128)](
        gate_up_rows,
        out.values if isinstance(out, Fp8Rows) else out,
        out.scales if isinstance(out, Fp8Rows) else gate_up_rows,
        out.scales.stride(0) if isinstance(out, Fp8Rows) else 0,
        m,
        inner,
        R=ROWS_EACH,
        QUANT=quant,
        PDL=pdl,
        **launch_options(warps=4, pdl=pdl),
    )


def swiglu_reference(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """fp32 rows on the bf16 grid from gate and up [M, I], rounded as an eager bf16 model does."""
    g = gate.bfloat16().float()
    return (
        (torch.nn.functional.silu(g).bfloat16().float() * up.bfloat16().float()).bfloat16().float()
    )

"""Attention of the fast stack: a context of at most 16 positions that starts anew each frame.

One program a (row, kv head) adds the partials of the projection, QK-norm, rotation, appends keys
and values, attends and quantises. Nothing is ever reset: positions past the current one are masked.
The first two positions of a frame are known together and run as one launch of ``2 M`` rows, rows
``[0, M)`` at position 0 and ``[M, 2 M)`` at position 1.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .heads import load_heads, norm_heads, rotate_heads, row_factor
from .norm import NormedRows
from .pages import Heads, store_outputs
from .quantise import Fp8Rows
from .rounding import bf16, launch_options, let_next_start, wait_for_previous


@triton.jit
def new_head(
    QKV, row, at, factor, stride, KN, COS, SIN, position, eps, D: tl.constexpr, PARTS: tl.constexpr,
    ROTATE: tl.constexpr, QK_NORM: tl.constexpr,
):  # fmt: skip
    """fp32 [1, D] on the bf16 grid: one head of one row, a key (ROTATE) or a value."""
    one = tl.arange(0, 1)
    x = load_heads(QKV, row + at + one, one >= 0, factor, stride, D, PARTS)
    if ROTATE:
        if QK_NORM:
            x = norm_heads(x, KN, eps, D)
        x = rotate_heads(x, COS, SIN, position + one, 1, D)
    return x


@triton.jit(do_not_specialize=["M", "position", "sq_stride", "osc_stride"])
def fast_kernel(
    QKV,
    SQ,
    sq_stride,
    QN,
    KN,
    COS,
    SIN,
    KEYS,
    VALUES,
    OUT,
    OSC,
    osc_stride,
    M,
    position,
    K,
    eps,
    scale,
    NEW: tl.constexpr,
    PARTS: tl.constexpr,
    NORMED: tl.constexpr,
    G: tl.constexpr,
    QK_NORM: tl.constexpr,
    HQ: tl.constexpr,
    HKV: tl.constexpr,
    D: tl.constexpr,
    T: tl.constexpr,
    QUANT: tl.constexpr,
    PDL: tl.constexpr,
):
    """grid (M, HKV): NEW (1 or 2) tokens of row m at ``position`` onwards."""
    m = tl.program_id(0)
    h = tl.program_id(1)
    GQ: tl.constexpr = HQ // HKV
    width: tl.constexpr = (HQ + 2 * HKV) * D
    wait_for_previous(PDL)
    let_next_start(PDL)
    g = tl.arange(0, GQ)
    t = tl.arange(0, T)
    d = tl.arange(0, D)
    stride = tl.cast(M * NEW, tl.int64) * width
    base = tl.cast(m * HKV + h, tl.int64) * (T * D)
    cached = base + t[:, None] * D + d[None, :]
    old = (t < position)[:, None]
    keys = tl.load(KEYS + cached, mask=old, other=0.0).to(tl.float32)
    values = tl.load(VALUES + cached, mask=old, other=0.0).to(tl.float32)
    for i in tl.static_range(NEW):
        row = tl.cast(i * M + m, tl.int64) * width
        now = position + i
        factor = row_factor(SQ, sq_stride, i * M + m, K, eps, NORMED, G)
        k = new_head(
            QKV, row, (HQ + h) * D, factor, stride, KN, COS, SIN, now, eps, D, PARTS, True, QK_NORM
        )
        v = new_head(
            QKV, row, (HQ + HKV + h) * D, factor, stride, KN, COS, SIN, now, eps, D, PARTS, False,
            QK_NORM,
        )  # fmt: skip
        keys = tl.where((t == now)[:, None], k, keys)
        values = tl.where((t == now)[:, None], v, values)
        at = base + now * D + tl.arange(0, 1)[:, None] * D + d[None, :]
        tl.store(KEYS + at, bf16(k))
        tl.store(VALUES + at, bf16(v))
        heads = h * GQ + g
        q = load_heads(QKV, row + heads * D, g >= 0, factor, stride, D, PARTS)
        if QK_NORM:
            q = norm_heads(q, QN, eps, D)
        q = rotate_heads(q, COS, SIN, now + g * 0, GQ, D)
        score = tl.sum(q[:, None, :] * keys[None, :, :], axis=2) * scale
        score = tl.where((t <= now)[None, :], score, float("-inf"))
        p = tl.exp(score - tl.max(score, axis=1)[:, None])
        p = p / tl.sum(p, axis=1)[:, None]
        y = tl.sum(p[:, :, None] * values[None, :, :], axis=1)
        store_outputs(y, heads, g >= 0, i * M + m, OUT, OSC, osc_stride, HQ, D, QUANT)


def fast_attention(
    qkv: torch.Tensor,
    normed: NormedRows | None,
    heads: Heads,
    keys: torch.Tensor,
    values: torch.Tensor,
    position: int,
    out: torch.Tensor | Fp8Rows,
    *,
    tokens: int = 1,
    pdl: bool = False,
) -> None:
    """One pass of the fast stack: ``tokens`` (1, or 2 at position 0) new tokens of M rows.

    ``qkv`` [S, tokens M, (HQ + 2 HKV) D] and ``out`` [tokens M, HQ D], position by position;
    ``keys``/``values`` bf16 [M, HKV, T, D], T a power of two, belong to these rows until the frame
    ends.
    """
    quant = isinstance(out, Fp8Rows)
    if quant and heads.dim != 128:
        raise ValueError(f"a head of {heads.dim} is no quantisation group")
    m = qkv.shape[1] // tokens
    squares = qkv if normed is None else normed.squares
    depth = 128 if normed is None else normed.rows.values.shape[1]
    fast_kernel[(m, heads.keys)](
        qkv,
        squares,
        squares.stride(0),
        heads.rope[0] if heads.query_weight is None else heads.query_weight,
        heads.rope[0] if heads.key_weight is None else heads.key_weight,
        heads.rope[0],
        heads.rope[1],
        keys,
        values,
        out.values if isinstance(out, Fp8Rows) else out,
        out.scales if isinstance(out, Fp8Rows) else squares,
        out.scales.stride(0) if isinstance(out, Fp8Rows) else 0,
        m,
        position,
        depth,
        heads.eps,
        heads.dim**-0.5,
        NEW=tokens,
        PARTS=qkv.shape[0],
        NORMED=normed is not None,
        G=triton.next_power_of_2(depth // 128),
        QK_NORM=heads.query_weight is not None,
        HQ=heads.queries,
        HKV=heads.keys,
        D=heads.dim,
        T=keys.shape[2],
        QUANT=quant,
        PDL=pdl,
        **launch_options(warps=4, pdl=pdl),
    )

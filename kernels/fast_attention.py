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

from .heads import load_heads, load_turn, norm_heads, repeat_rows, rotate_heads, row_factor
from .norm import NormedRows
from .pages import LOG2_E, Heads, store_outputs
from .quantise import Fp8Rows
from .rounding import bf16, dot, launch_options, let_next_start, on_bf16_grid, wait_for_previous

WARPS = 2


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
    """grid (M, HKV): NEW tokens of row m at ``position``, which is 0 if they are two."""
    m = tl.program_id(0)
    h = tl.program_id(1)
    GQ: tl.constexpr = HQ // HKV
    TIMES: tl.constexpr = 16 // GQ
    width: tl.constexpr = (HQ + 2 * HKV) * D
    one = tl.arange(0, 1)
    g = tl.arange(0, GQ)
    t = tl.arange(0, T)
    d = tl.arange(0, D)
    r = tl.arange(0, 16)
    heads = h * GQ + r // TIMES
    live = r % TIMES == 0
    base = tl.cast(m * HKV + h, tl.int64) * (T * D)
    stride = tl.cast(M * NEW, tl.int64) * width
    if NEW == 1:
        # Positions before this one were written by earlier passes: no need to wait for them.
        old = (t < position)[:, None]
        k_old = tl.load(KEYS + base + t[:, None] * D + d[None, :], mask=old, other=0.0)
        v_old = tl.load(VALUES + base + t[:, None] * D + d[None, :], mask=old, other=0.0)
    cos, sin = load_turn(COS, SIN, position + one, D)
    wait_for_previous(PDL)
    let_next_start(PDL)
    for i in tl.static_range(NEW):
        row = tl.cast(i * M + m, tl.int64) * width
        q = load_heads(QKV, row + (h * GQ + g) * D, g >= 0, stride, D, PARTS)
        k = load_heads(QKV, row + (HQ + h + one) * D, one >= 0, stride, D, PARTS)
        v = load_heads(QKV, row + (HQ + HKV + h + one) * D, one >= 0, stride, D, PARTS)
        factor = row_factor(SQ, sq_stride, i * M + m, K, eps, NORMED, G)[:, None]
        q = on_bf16_grid(q * factor)
        k = on_bf16_grid(k * factor)
        v = on_bf16_grid(v * factor)
        if QK_NORM:
            q = norm_heads(q, QN, eps, D)
            k = norm_heads(k, KN, eps, D)
        if i == 1:
            cos, sin = load_turn(COS, SIN, position + 1 + one, D)
        q = repeat_rows(rotate_heads(q, cos, sin, GQ, D), TIMES, GQ, D)
        k = rotate_heads(k, cos, sin, 1, D)
        at = base + (position + i) * D + one[:, None] * D + d[None, :]
        tl.store(KEYS + at, bf16(k))
        tl.store(VALUES + at, bf16(v))
        score = tl.sum(q * k, axis=1) * scale
        if NEW == 1:
            # At position 0 every old score is hidden and the new one alone is the maximum.
            past = tl.where(old, dot(k_old, tl.trans(bf16(q))) * scale, float("-inf"))
            top = tl.maximum(score, tl.max(past, axis=0))
            p = tl.exp2(past - top[None, :])
            mine = tl.exp2(score - top)
            total = mine + tl.sum(p, axis=0)
            acc = dot(tl.trans(v_old), bf16(p)) + tl.trans(v) * mine[None, :]
            y = tl.trans(acc / total[None, :])
        elif i == 0:
            k_first = k
            v_first = v
            y = tl.broadcast_to(v, [16, D])
        else:
            first = tl.sum(q * k_first, axis=1) * scale
            top = tl.maximum(score, first)
            p = tl.exp2(first - top)
            mine = tl.exp2(score - top)
            # Rounded as the matrix unit's operand is in a pass of its own.
            acc = v_first * on_bf16_grid(p)[:, None] + v * mine[:, None]
            y = acc / (mine + p)[:, None]
        store_outputs(y, heads, live, i * M + m, OUT, OSC, osc_stride, HQ, D, QUANT)


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
    warps: int = WARPS,
    pdl: bool = False,
) -> None:
    """One pass of the fast stack: ``tokens`` (1, or 2 at position 0) new tokens of M rows.

    ``qkv`` [S, tokens M, (HQ + 2 HKV) D] and ``out`` [tokens M, HQ D], position by position;
    ``keys``/``values`` bf16 [M, HKV, T, D], T a power of two, belong to these rows until the frame
    ends. ``warps``: of a program; bits follow from it.
    """
    quant = isinstance(out, Fp8Rows)
    if tokens == 2 and position != 0:
        raise ValueError(f"two tokens start a frame, and position {position} is not its start")
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
        LOG2_E * heads.dim**-0.5,
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
        **launch_options(warps=warps, pdl=pdl),
    )

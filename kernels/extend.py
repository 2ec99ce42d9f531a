"""Prefill attention: a chunk of new tokens over the pages of its context, causally.

``heads.store_heads`` has written the chunk's own keys and values, so the chunk and everything
before it are read from pages alike. The query heads of a kv head are folded into the rows of a
program: grouped-query attention without repeating keys. Where the chunk begins and how long it is
lie on the device, so that one recorded launch serves every chunk of up to its number of rows.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .pages import LOG2_E, Heads, block_tokens, check_pages
from .quantise import Fp8Rows
from .rounding import bf16, dot, launch_options, quantise_rows

PROGRAM_ROWS = 128
"""Query rows of a program: tokens times the query heads of a kv head."""


@triton.jit(do_not_specialize=["osc_stride"])
def extend_kernel(
    Q,
    KEYS,
    VALUES,
    TABLE,
    SPAN,
    OUT,
    OSC,
    osc_stride,
    scale,
    HQ: tl.constexpr,
    HKV: tl.constexpr,
    D: tl.constexpr,
    PAGE: tl.constexpr,
    BT: tl.constexpr,
    R: tl.constexpr,
    QUANT: tl.constexpr,
):
    """grid (ceil(rows / (R / (HQ / HKV))), HKV)."""
    GQ: tl.constexpr = HQ // HKV
    start = tl.load(SPAN)
    L = tl.load(SPAN + 1)
    # Late tokens see most keys: give their programs out first.
    tile = tl.num_programs(0) - 1 - tl.program_id(0)
    h = tl.program_id(1)
    if tile * (R // GQ) < L:
        r = tl.arange(0, R)
        token = tile * (R // GQ) + r // GQ
        live = token < L
        heads = h * GQ + r % GQ
        d = tl.arange(0, D)
        t = tl.arange(0, BT)
        at = (token.to(tl.int64) * HQ + heads)[:, None] * D + d[None, :]
        q = tl.load(Q + at, mask=live[:, None], other=0.0)
        last = tl.minimum(start + (tile + 1) * (R // GQ), start + L)
        top = tl.full([R], float("-inf"), tl.float32)
        total = tl.zeros([R], tl.float32)
        acc = tl.zeros([R, D], tl.float32)
        for block in tl.range(0, tl.cdiv(last, BT)):
            first = block * BT
            page = tl.load(TABLE + first // PAGE).to(tl.int64)
            base = ((page * HKV + h) * PAGE + first % PAGE) * D
            k = tl.load(KEYS + base + t[None, :] * D + d[:, None])
            v = tl.load(
                VALUES + base + t[:, None] * D + d[None, :],
                mask=(first + t < last)[:, None],
                other=0.0,
            )
            seen = first + t[None, :] <= tl.minimum(start + token, last - 1)[:, None]
            score = tl.where(seen, dot(q, k) * scale, float("-inf"))
            # Every row sees token 0, so the maximum is finite from the first block on.
            higher = tl.maximum(top, tl.max(score, axis=1))
            fade = tl.exp2(top - higher)
            p = tl.exp2(score - higher[:, None])
            total = total * fade + tl.sum(p, axis=1)
            acc = acc * fade[:, None] + dot(bf16(p), v)
            top = higher
        y = bf16(acc / total[:, None])
        if QUANT:
            value, group = quantise_rows(y.to(tl.float32))
            tl.store(OUT + at, value, mask=live[:, None])
            tl.store(OSC + heads * osc_stride + token, group, mask=live)
        else:
            tl.store(OUT + at, y, mask=live[:, None])


def extend_attention(
    queries: torch.Tensor,
    heads: Heads,
    keys: torch.Tensor,
    values: torch.Tensor,
    table: torch.Tensor,
    span: torch.Tensor,
    out: torch.Tensor | Fp8Rows,
) -> None:
    """out [M, HQ D] <- causal attention of ``queries`` bf16 [M, HQ, D].

    ``span`` int32 [2]: (start, count), the first ``count`` rows are tokens ``start`` onwards and
    the others are left alone. ``table`` int32: the pages of this context in order, covering
    ``start + count`` tokens.
    """
    quant = isinstance(out, Fp8Rows)
    check_pages(keys, values, quant, heads)
    page = keys.shape[2]
    rows = PROGRAM_ROWS
    tokens = rows // (heads.queries // heads.keys)
    extend_kernel[(triton.cdiv(queries.shape[0], tokens), heads.keys)](
        queries,
        keys,
        values,
        table,
        span,
        out.values if isinstance(out, Fp8Rows) else out,
        out.scales if isinstance(out, Fp8Rows) else queries,
        out.scales.stride(0) if isinstance(out, Fp8Rows) else 0,
        LOG2_E * heads.dim**-0.5,
        HQ=heads.queries,
        HKV=heads.keys,
        D=heads.dim,
        PAGE=page,
        BT=block_tokens(page),
        R=rows,
        QUANT=quant,
        **launch_options(warps=8, stages=3),
    )

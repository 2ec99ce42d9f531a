"""Prefill attention: chunks of new tokens, each over the pages of its context, causally.

``heads.store_heads`` has written the chunks' own keys and values, so a chunk and everything
before it are read from pages alike. The query heads of a kv head are folded into the rows of a
program: grouped-query attention without repeating keys. What the rows are
is told by tiles on the device, so that one recorded launch serves any chunks that fit its rows.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .kv import Pages, page_scales, page_values
from .pages import LOG2_E, RAISED, TILE_TOKENS, Heads, block_tokens, check_heads, narrow_queries
from .quantise import Fp8Rows
from .rounding import bf16, dot, launch_options, quantise_rows, widen


@triton.jit(do_not_specialize=["osc_stride", "table_stride"])
def extend_kernel(
    Q,
    KEYS,
    KEY_SCALES,
    VALUES,
    VALUE_SCALES,
    TABLES,
    table_stride,
    TILES,
    OUT,
    OSC,
    osc_stride,
    scale,
    HQ: tl.constexpr,
    HKV: tl.constexpr,
    D: tl.constexpr,
    PAGE: tl.constexpr,
    BT: tl.constexpr,
    TILE: tl.constexpr,
    QUANT: tl.constexpr,
    NARROW: tl.constexpr,
):
    """grid (tiles, HKV)."""
    GQ: tl.constexpr = HQ // HKV
    R: tl.constexpr = TILE * GQ
    # Late tokens see most keys: give their programs out first.
    tile = tl.num_programs(0) - 1 - tl.program_id(0)
    h = tl.program_id(1)
    count = tl.load(TILES + tile * 3 + 2)
    if count > 0:
        table = TABLES + tl.load(TILES + tile * 3).to(tl.int64) * table_stride
        start = tl.load(TILES + tile * 3 + 1)
        r = tl.arange(0, R)
        token = tile * TILE + r // GQ
        position = start + r // GQ
        live = r // GQ < count
        heads = h * GQ + r % GQ
        d = tl.arange(0, D)
        t = tl.arange(0, BT)
        at = (token.to(tl.int64) * HQ + heads)[:, None] * D + d[None, :]
        q = tl.load(Q + at, mask=live[:, None], other=0.0)
        if NARROW:
            q = narrow_queries(q, scale)
        last = start + count
        top = tl.full([R], float("-inf"), tl.float32)
        total = tl.zeros([R], tl.float32)
        acc = tl.zeros([R, D], tl.float32)
        for block in tl.range(0, tl.cdiv(last, BT)):
            first = block * BT
            page = tl.load(table + first // PAGE).to(tl.int64)
            row = (page * HKV + h) * PAGE + first % PAGE
            base = row * D
            k = tl.load(KEYS + base + t[None, :] * D + d[:, None])
            v = tl.load(
                VALUES + base + t[:, None] * D + d[None, :],
                mask=(first + t < last)[:, None],
                other=0.0,
            )
            seen = first + t[None, :] <= tl.minimum(position, last - 1)[:, None]
            if NARROW:
                by_key = tl.load(KEY_SCALES + row + t)
                by_value = tl.load(VALUE_SCALES + row + t, mask=first + t < last, other=0.0)
                score = dot(q, widen(k)) * by_key[None, :]
            else:
                score = dot(q, k) * scale
            score = tl.where(seen, score, float("-inf"))
            # Every row sees token 0, so the maximum is finite from the first block on.
            higher = tl.maximum(top, tl.max(score, axis=1))
            fade = tl.exp2(top - higher)
            if NARROW:
                p = tl.exp2(score - (higher - RAISED)[:, None])
                more = dot((p * by_value[None, :]).to(tl.float16), widen(v))
            else:
                p = tl.exp2(score - higher[:, None])
                more = dot(bf16(p), v)
            total = total * fade + tl.sum(p, axis=1)
            acc = acc * fade[:, None] + more
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
    keys: Pages,
    values: Pages,
    tables: torch.Tensor,
    tiles: torch.Tensor,
    out: torch.Tensor | Fp8Rows,
) -> None:
    """out [M, HQ D] <- causal attention of ``queries`` bf16 [M, HQ, D].

    ``tiles`` int32 [ceil(M / TILE_TOKENS), 3], as in ``heads.store_heads``; rows that are nobody's
    are left alone. ``tables`` int32 [contexts, pages]: the pages of each context in order, covering
    its last token here.
    """
    quant = isinstance(out, Fp8Rows)
    narrow = check_heads(keys, values, quant, heads)
    page = page_values(keys).shape[2]
    rows = TILE_TOKENS * (heads.queries // heads.keys)
    extend_kernel[(triton.cdiv(queries.shape[0], TILE_TOKENS), heads.keys)](
        queries,
        page_values(keys),
        page_scales(keys),
        page_values(values),
        page_scales(values),
        tables,
        tables.stride(0),
        tiles,
        out.values if isinstance(out, Fp8Rows) else out,
        out.scales if isinstance(out, Fp8Rows) else queries,
        out.scales.stride(0) if isinstance(out, Fp8Rows) else 0,
        LOG2_E * heads.dim**-0.5,
        HQ=heads.queries,
        HKV=heads.keys,
        D=heads.dim,
        PAGE=page,
        BT=block_tokens(page),
        TILE=TILE_TOKENS,
        QUANT=quant,
        NARROW=narrow,
        **launch_options(warps=8 if rows >= 128 else 4, stages=3),
    )

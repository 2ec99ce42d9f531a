"""MXFP8 attention: prefill over contiguous keys, prefill over pages, decode over pages.

Queries, keys and values are quantised along the head dim. Scores are block-scaled products, the
matrix unit's own on Blackwell; the probabilities stay bf16 and meet values widened to bf16, which
is exact. The query heads of a kv head are folded into a program's rows, so keys are read once for
all of them. No runner calls it: it is for Blackwell, and is proved against its emulation only.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from .attention import merge
from .mxfp8 import Mx, mx_dot, mx_quantise, mx_widen
from .pages import LOG2_E, SCHEDULE, SPLITS, Workspace, stretches
from .rounding import bf16, dot, launch_options

BLOCK_TOKENS = 32
PROGRAM_ROWS = 64
"""Query rows of a prefill program: tokens times the query heads of a kv head."""


@dataclass(frozen=True, slots=True, eq=False)
class MxCache:
    """Keys and values [pages, kv heads, page, D], a page a multiple of 32 tokens."""

    keys: Mx
    values: Mx


@triton.jit
def mx_attend(
    q,
    q_scales,
    KEYS,
    KS,
    VALUES,
    VS,
    TABLE,
    h,
    first,
    last,
    end,
    seen_to,
    scale,
    top,
    total,
    acc,
    tokens,
    HKV: tl.constexpr,
    D: tl.constexpr,
    PAGE: tl.constexpr,
    BT: tl.constexpr,
    R: tl.constexpr,
    PAGED: tl.constexpr,
    NATIVE: tl.constexpr,
):
    """Fold blocks [first, last) into (top [R], total [R], acc [R, D]).

    Row r sees tokens up to ``seen_to[r]``; what lies at ``end`` and behind may be anything.
    """
    t = tl.arange(0, BT)
    d = tl.arange(0, D)
    b = tl.arange(0, D // 32)
    for block in tl.range(first, last):
        token = block * BT
        if PAGED:
            page = tl.load(TABLE + token // PAGE).to(tl.int64)
            row = (page * HKV + h) * PAGE + token % PAGE + t[:, None]
        else:
            row = tl.cast(h, tl.int64) * tokens + token + t[:, None]
        there = (token + t < end)[:, None]
        k = tl.load(KEYS + row * D + d[None, :], mask=there, other=0.0)
        ks = tl.load(KS + row * (D // 32) + b[None, :], mask=there, other=0)
        v = tl.load(VALUES + row * D + d[None, :], mask=there, other=0.0)
        vs = tl.load(VS + row * (D // 32) + b[None, :], mask=there, other=0)
        zero = tl.zeros([R, BT], tl.float32)
        score = mx_dot(q, q_scales, k, ks, zero, R, BT, D, NATIVE) * scale
        score = tl.where(token + t[None, :] <= seen_to[:, None], score, float("-inf"))
        higher = tl.maximum(top, tl.max(score, axis=1))
        fade = tl.exp2(top - higher)
        p = tl.exp2(score - higher[:, None])
        total = total * fade + tl.sum(p, axis=1)
        acc = acc * fade[:, None] + dot(bf16(p), mx_widen(v, vs, BT, D))
        top = higher
    return top, total, acc


@triton.jit(do_not_specialize=["L", "start", "tokens"])
def mx_extend_kernel(
    Q,
    QS,
    KEYS,
    KS,
    VALUES,
    VS,
    TABLE,
    OUT,
    L,
    start,
    tokens,
    scale,
    HQ: tl.constexpr,
    HKV: tl.constexpr,
    D: tl.constexpr,
    PAGE: tl.constexpr,
    BT: tl.constexpr,
    R: tl.constexpr,
    PAGED: tl.constexpr,
    NATIVE: tl.constexpr,
):
    """grid (ceil(L / (R / (HQ / HKV))), HKV)."""
    GQ: tl.constexpr = HQ // HKV
    tile = tl.num_programs(0) - 1 - tl.program_id(0)
    h = tl.program_id(1)
    r = tl.arange(0, R)
    token = tile * (R // GQ) + r // GQ
    live = (token < L)[:, None]
    d = tl.arange(0, D)
    row = tl.minimum(token, L - 1).to(tl.int64) * HQ + h * GQ + r % GQ
    q = tl.load(Q + row[:, None] * D + d[None, :])
    qs = tl.load(QS + row[:, None] * (D // 32) + tl.arange(0, D // 32)[None, :])
    end = tl.minimum(start + (tile + 1) * (R // GQ), start + L)
    _, total, acc = mx_attend(
        q,
        qs,
        KEYS,
        KS,
        VALUES,
        VS,
        TABLE,
        h,
        0,
        tl.cdiv(end, BT),
        end,
        tl.minimum(start + token, end - 1),
        scale,
        tl.full([R], float("-inf"), tl.float32),
        tl.zeros([R], tl.float32),
        tl.zeros([R, D], tl.float32),
        tokens,
        HKV,
        D,
        PAGE,
        BT,
        R,
        PAGED,
        NATIVE,
    )
    tl.store(OUT + row[:, None] * D + d[None, :], bf16(acc / total[:, None]), mask=live)


@triton.jit(do_not_specialize=["table_stride"])
def mx_decode_kernel(
    Q,
    QS,
    KEYS,
    KS,
    VALUES,
    VS,
    TABLES,
    table_stride,
    SLOTS,
    POSITIONS,
    OUTPUTS,
    SUMS,
    ARRIVED,
    OUT,
    scale,
    HQ: tl.constexpr,
    HKV: tl.constexpr,
    D: tl.constexpr,
    PAGE: tl.constexpr,
    BT: tl.constexpr,
    SPLIT_TOKENS: tl.constexpr,
    SPLITS: tl.constexpr,
    NATIVE: tl.constexpr,
):
    """grid (M, HKV, SPLITS)."""
    m = tl.program_id(0)
    h = tl.program_id(1)
    split = tl.program_id(2)
    GQ: tl.constexpr = HQ // HKV
    TIMES: tl.constexpr = 16 // GQ
    length = tl.load(POSITIONS + m) + 1
    blocks = tl.cdiv(length, BT)
    active = stretches(blocks, BT, SPLIT_TOKENS, SPLITS)
    if split < active:
        r = tl.arange(0, 16)
        d = tl.arange(0, D)
        heads = h * GQ + r // TIMES
        row = tl.cast(m, tl.int64) * HQ + heads
        top, total, acc = mx_attend(
            tl.load(Q + row[:, None] * D + d[None, :]),
            tl.load(QS + row[:, None] * (D // 32) + tl.arange(0, D // 32)[None, :]),
            KEYS,
            KS,
            VALUES,
            VS,
            TABLES + tl.load(SLOTS + m).to(tl.int64) * table_stride,
            h,
            blocks * split // active,
            blocks * (split + 1) // active,
            length,
            r * 0 + length - 1,
            scale,
            tl.full([16], float("-inf"), tl.float32),
            tl.zeros([16], tl.float32),
            tl.zeros([16, D], tl.float32),
            0,
            HKV,
            D,
            PAGE,
            BT,
            16,
            True,
            NATIVE,
        )
        live = r % TIMES == 0
        slot = row * SPLITS + split
        tl.store(OUTPUTS + slot[:, None] * D + d[None, :], acc, mask=live[:, None])
        tl.store(SUMS + slot * 2, top, mask=live)
        tl.store(SUMS + slot * 2 + 1, total, mask=live)
        tl.debug_barrier()
        arrived = tl.atomic_add(ARRIVED + m * HKV + h, 1, sem="acq_rel", scope="gpu")
        if arrived == active - 1:
            tl.debug_barrier()
            merge(OUTPUTS, SUMS, m, h, active, OUT, OUT, 0, HQ, GQ, D, SPLITS, False)
            tl.store(ARRIVED + m * HKV + h, 0)


@triton.jit(do_not_specialize=["start", "table_stride"])
def mx_store_kernel(
    X, Q, SC, TABLES, table_stride, SLOTS, POSITIONS, start, HKV: tl.constexpr, D: tl.constexpr,
    PAGE: tl.constexpr, DECODE: tl.constexpr,
):  # fmt: skip
    """grid (M, HKV): one head of one token, quantised into its page."""
    m = tl.program_id(0)
    h = tl.program_id(1)
    position = start + m
    table = TABLES
    if DECODE:
        position = tl.load(POSITIONS + m)
        table += tl.load(SLOTS + m).to(tl.int64) * table_stride
    page = tl.load(table + position // PAGE).to(tl.int64)
    row = (page * HKV + h) * PAGE + position % PAGE + tl.arange(0, 1)[:, None]
    d = tl.arange(0, D)[None, :]
    x = tl.load(X + tl.cast(m * HKV + h, tl.int64) * D + d).to(tl.float32)
    q, scales = mx_quantise(x, 1, D)
    tl.store(Q + row * D + d, q)
    tl.store(SC + row * (D // 32) + tl.arange(0, D // 32)[None, :], scales)


def store_mx(
    x: torch.Tensor,
    pages: Mx,
    table: torch.Tensor,
    start: int = 0,
    *,
    rows: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> None:
    """Quantise keys or values bf16 [M, HKV, D] into ``pages``.

    Tokens ``start`` onwards of the context of ``table`` int32 [pages]; or, with ``rows`` (slots,
    positions) int32 [M] each, row by row, ``table`` int32 [slots, pages].
    """
    m, hkv, d = x.shape
    slots, positions = rows if rows is not None else (table, table)
    mx_store_kernel[(m, hkv)](
        x,
        pages.values,
        pages.scales,
        table,
        table.stride(0),
        slots,
        positions,
        start,
        HKV=hkv,
        D=d,
        PAGE=pages.values.shape[2],
        DECODE=rows is not None,
        **launch_options(warps=1),
    )


def prefill_mx(queries: Mx, keys: Mx, values: Mx, out: torch.Tensor, *, native: bool) -> None:
    """out bf16 [L, HQ, D] <- causal attention over contiguous keys and values [HKV, T, D], T >= L.

    The last of the L queries sees all T tokens.
    """
    hkv, tokens, _ = keys.values.shape
    start = tokens - queries.values.shape[0]
    _extend(queries, keys, values, out, start, hkv, 1, keys.values, tokens, False, native)


def extend_mx(
    queries: Mx, cache: MxCache, table: torch.Tensor, start: int, out: torch.Tensor, *, native: bool
) -> None:
    """out bf16 [L, HQ, D] <- causal attention of tokens ``start`` onwards over pages.

    ``table`` int32: the pages of this context, covering ``start + L`` tokens.
    """
    _, hkv, page, _ = cache.keys.values.shape
    _extend(queries, cache.keys, cache.values, out, start, hkv, page, table, 0, True, native)


def _extend(
    queries: Mx,
    keys: Mx,
    values: Mx,
    out: torch.Tensor,
    start: int,
    hkv: int,
    page: int,
    table: torch.Tensor,
    tokens: int,
    paged: bool,
    native: bool,
) -> None:
    length, hq, d = queries.values.shape
    if paged and page % BLOCK_TOKENS:
        raise ValueError(f"a page of {page} tokens is no multiple of {BLOCK_TOKENS}")
    mx_extend_kernel[(triton.cdiv(length, PROGRAM_ROWS // (hq // hkv)), hkv)](
        queries.values,
        queries.scales,
        keys.values,
        keys.scales,
        values.values,
        values.scales,
        table,
        out,
        length,
        start,
        tokens,
        LOG2_E * d**-0.5,
        HQ=hq,
        HKV=hkv,
        D=d,
        PAGE=page,
        BT=BLOCK_TOKENS,
        R=PROGRAM_ROWS,
        PAGED=paged,
        NATIVE=native,
        **launch_options(warps=4, stages=2),
    )


def decode_mx(
    queries: Mx,
    cache: MxCache,
    tables: torch.Tensor,
    slots: torch.Tensor,
    positions: torch.Tensor,
    work: Workspace,
    out: torch.Tensor,
    *,
    native: bool,
) -> None:
    """out bf16 [M, HQ, D]: one decode step, whose keys and values are in their pages already.

    ``tables`` int32 [slots, pages], ``slots`` and ``positions`` int32 [M], as in
    ``attention.decode_attention``.
    """
    m, hq, d = queries.values.shape
    _, hkv, page, _ = cache.keys.values.shape
    if page % BLOCK_TOKENS:
        raise ValueError(f"a page of {page} tokens is no multiple of {BLOCK_TOKENS}")
    mx_decode_kernel[(m, hkv, SPLITS)](
        queries.values,
        queries.scales,
        cache.keys.values,
        cache.keys.scales,
        cache.values.values,
        cache.values.scales,
        tables,
        tables.stride(0),
        slots,
        positions,
        work.outputs,
        work.sums,
        work.arrived,
        out,
        LOG2_E * d**-0.5,
        HQ=hq,
        HKV=hkv,
        D=d,
        PAGE=page,
        BT=BLOCK_TOKENS,
        SPLIT_TOKENS=SCHEDULE.split_tokens,
        SPLITS=SPLITS,
        NATIVE=native,
        **launch_options(warps=4, stages=2),
    )

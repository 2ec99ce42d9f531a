"""Decode attention over paged keys and values, with an optional shared prefix (cascade).

A program serves one row, one kv head and one stretch of that row's context. It does the whole way
from the projection: adds the partials of the queries, QK-norm, rotation; the program of the first
stretch also makes the new key and value, attends to them from registers and writes them to their
page. The last program of a (row, head) merges the stretches in order and quantises.

Stretches follow from the row's own context alone, so a row's bits depend on nothing else. Rows that
share a prefix are listed in groups of up to ``GROUP_ROWS``: ``prefix_attention`` reads the prefix
once for the whole group, ``decode_attention`` then starts behind it. A row in a group of one gets
the same bits as in a full group.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from .heads import load_heads, load_turn, norm_heads, repeat_rows, rotate_heads, row_factor
from .norm import NormedRows
from .pages import LOG2_E, Heads, attend, block_tokens, check_pages, store_outputs
from .quantise import Fp8Rows
from .rounding import bf16, launch_options, let_next_start, on_bf16_grid, wait_for_previous

GROUP_ROWS = 16
SPLITS = 8
"""Most stretches of a context, and of a prefix."""
SPLIT_TOKENS = 128
"""A context is cut into more stretches only from this length on."""
STAGES = 5
"""Of the inner loop: the page number is one load ahead of the keys it leads to."""


@dataclass(frozen=True, slots=True, eq=False)
class Workspace:
    """Scratch of attention for up to ``rows`` rows, shared by all layers.

    ``outputs`` fp32 [rows, heads, 2 SPLITS, D], ``sums`` fp32 [rows, heads, 2 SPLITS, 2] (maximum,
    denominator); ``arrived`` int32 [rows, kv heads], zero between launches.
    """

    outputs: torch.Tensor
    sums: torch.Tensor
    arrived: torch.Tensor

    @staticmethod
    def empty(rows: int, heads: Heads, device: torch.device | str) -> Workspace:
        return Workspace(
            torch.zeros(rows, heads.queries, 2 * SPLITS, heads.dim, device=device),
            torch.zeros(rows, heads.queries, 2 * SPLITS, 2, device=device),
            torch.zeros(rows, heads.keys, dtype=torch.int32, device=device),
        )


@triton.jit
def stretches(blocks, BT: tl.constexpr, SPLIT_TOKENS: tl.constexpr, SPLITS: tl.constexpr):
    """How many stretches ``blocks`` blocks of BT tokens are cut into."""
    return tl.minimum(tl.cdiv(blocks * BT, SPLIT_TOKENS), SPLITS)


@triton.jit(do_not_specialize=["M", "sq_stride", "table_stride", "osc_stride"])
def decode_kernel(
    QKV,
    SQ,
    sq_stride,
    QN,
    KN,
    COS,
    SIN,
    KEYS,
    VALUES,
    TABLES,
    table_stride,
    SLOTS,
    POSITIONS,
    PREFIX,
    OUTPUTS,
    SUMS,
    ARRIVED,
    OUT,
    OSC,
    osc_stride,
    M,
    K,
    eps,
    scale,
    PARTS: tl.constexpr,
    NORMED: tl.constexpr,
    G: tl.constexpr,
    QK_NORM: tl.constexpr,
    HQ: tl.constexpr,
    HKV: tl.constexpr,
    D: tl.constexpr,
    PAGE: tl.constexpr,
    BT: tl.constexpr,
    SPLIT_TOKENS: tl.constexpr,
    SPLITS: tl.constexpr,
    CASCADE: tl.constexpr,
    QUANT: tl.constexpr,
    PDL: tl.constexpr,
):
    """grid (M, HKV, SPLITS)."""
    m = tl.program_id(0)
    h = tl.program_id(1)
    split = tl.program_id(2)
    GQ: tl.constexpr = HQ // HKV
    # The matrix unit wants 16 rows: each head is repeated to fill them.
    TIMES: tl.constexpr = 16 // GQ
    width: tl.constexpr = (HQ + 2 * HKV) * D
    # What does not come from the kernel before, and what follows from it, needs no waiting.
    position = tl.load(POSITIONS + m)
    table = TABLES + tl.load(SLOTS + m).to(tl.int64) * table_stride
    start = 0
    before = 0
    if CASCADE:
        start = tl.load(PREFIX + m)
        before = stretches(start // BT, BT, SPLIT_TOKENS, SPLITS)
    skipped = start // BT
    blocks = tl.cdiv(position, BT) - skipped
    active = tl.maximum(stretches(blocks, BT, SPLIT_TOKENS, SPLITS), 1)
    if split < active:
        one = tl.arange(0, 1)
        g = tl.arange(0, GQ)
        cos, sin = load_turn(COS, SIN, position + one, D)
        page = tl.load(table + position // PAGE).to(tl.int64)
        wait_for_previous(PDL)
        let_next_start(PDL)
        stride = tl.cast(M, tl.int64) * width
        row = tl.cast(m, tl.int64) * width
        q = load_heads(QKV, row + (h * GQ + g) * D, g >= 0, stride, D, PARTS)
        factor = row_factor(SQ, sq_stride, m, K, eps, NORMED, G)[:, None]
        q = on_bf16_grid(q * factor)
        if QK_NORM:
            q = norm_heads(q, QN, eps, D)
        q = rotate_heads(q, cos, sin, GQ, D)
        queries = repeat_rows(q, TIMES, GQ, D)
        top = tl.full([16], float("-inf"), tl.float32)
        total = tl.zeros([16], tl.float32)
        acc = tl.zeros([D, 16], tl.float32)
        if split == 0:
            k = load_heads(QKV, row + (HQ + h + one) * D, one >= 0, stride, D, PARTS)
            v = load_heads(QKV, row + (HQ + HKV + h + one) * D, one >= 0, stride, D, PARTS)
            k = on_bf16_grid(k * factor)
            v = on_bf16_grid(v * factor)
            if QK_NORM:
                k = norm_heads(k, KN, eps, D)
            k = rotate_heads(k, cos, sin, 1, D)
            at = ((page * HKV + h) * PAGE + position % PAGE) * D
            at = at + one[:, None] * D + tl.arange(0, D)[None, :]
            tl.store(KEYS + at, bf16(k))
            tl.store(VALUES + at, bf16(v))
            top = tl.sum(queries * k, axis=1) * scale
            total = tl.full([16], 1.0, tl.float32)
            acc = acc + tl.trans(v)
        top, total, acc = attend(
            bf16(queries),
            KEYS,
            VALUES,
            table,
            h,
            skipped + blocks * split // active,
            skipped + blocks * (split + 1) // active,
            position,
            scale,
            top,
            total,
            acc,
            HKV,
            D,
            PAGE,
            BT,
        )
        r = tl.arange(0, 16)
        heads = h * GQ + r // TIMES
        live = r % TIMES == 0
        if active + before == 1:
            y = tl.trans(acc / total[None, :])
            store_outputs(y, heads, live, m, OUT, OSC, osc_stride, HQ, D, QUANT)
        else:
            slot = (tl.cast(m, tl.int64) * HQ + heads) * (2 * SPLITS) + SPLITS + split
            where = slot[None, :] * D + tl.arange(0, D)[:, None]
            tl.store(OUTPUTS + where, acc, mask=live[None, :])
            tl.store(SUMS + slot * 2, top, mask=live)
            tl.store(SUMS + slot * 2 + 1, total, mask=live)
            # Stores of all threads come before the count, the count before the last one's loads.
            tl.debug_barrier()
            arrived = tl.atomic_add(ARRIVED + m * HKV + h, 1, sem="acq_rel", scope="gpu")
            if arrived == active - 1:
                tl.debug_barrier()
                merge(
                    OUTPUTS,
                    SUMS,
                    m,
                    h,
                    before,
                    active,
                    OUT,
                    OSC,
                    osc_stride,
                    HQ,
                    GQ,
                    D,
                    SPLITS,
                    QUANT,
                )
                tl.store(ARRIVED + m * HKV + h, 0)


@triton.jit
def merge(
    OUTPUTS,
    SUMS,
    m,
    h,
    before,
    active,
    OUT,
    OSC,
    osc_stride,
    HQ: tl.constexpr,
    GQ: tl.constexpr,
    D: tl.constexpr,
    SPLITS: tl.constexpr,
    QUANT: tl.constexpr,
):
    """Add the stretches of a row's heads: the prefix's first, then the row's own."""
    g = tl.arange(0, GQ)
    s = tl.arange(0, 2 * SPLITS)
    d = tl.arange(0, D)
    used = (s < before) | ((s >= SPLITS) & (s < SPLITS + active))
    heads = h * GQ + g
    slot = (tl.cast(m, tl.int64) * HQ + heads)[:, None] * (2 * SPLITS) + s[None, :]
    top = tl.load(SUMS + slot * 2, mask=used[None, :], other=float("-inf"), cache_modifier=".cg")
    total = tl.load(SUMS + slot * 2 + 1, mask=used[None, :], other=0.0, cache_modifier=".cg")
    acc = tl.load(
        OUTPUTS + slot[:, :, None] * D + d[None, None, :],
        mask=used[None, :, None],
        other=0.0,
        cache_modifier=".cg",
    )
    weight = tl.exp2(top - tl.max(top, axis=1)[:, None])
    y = tl.sum(acc * weight[:, :, None], axis=1) / tl.sum(total * weight, axis=1)[:, None]
    store_outputs(y, heads, heads >= 0, m, OUT, OSC, osc_stride, HQ, D, QUANT)


def decode_attention(
    qkv: torch.Tensor,
    normed: NormedRows | None,
    heads: Heads,
    keys: torch.Tensor,
    values: torch.Tensor,
    tables: torch.Tensor,
    slots: torch.Tensor,
    positions: torch.Tensor,
    work: Workspace,
    out: torch.Tensor | Fp8Rows,
    *,
    prefix: torch.Tensor | None = None,
    pdl: bool = False,
) -> None:
    """One decode step of M rows: writes the new key and value, and ``out`` [M, HQ D].

    ``qkv`` [S, M, (HQ + 2 HKV) D] fp32 partials, or bf16 with S 1; ``normed``: the rows they came
    from, when their rms factor is still to be applied. ``tables`` int32 [slots, pages], ``slots``
    and ``positions`` int32 [M]: row m is token ``positions[m]`` of the context of ``slots[m]``.
    ``prefix`` int32 [M]: tokens that ``prefix_attention`` has already folded in, a multiple of the
    page. ``out``: bf16 rows, or quantised ones when D is 128.
    """
    quant = isinstance(out, Fp8Rows)
    page = keys.shape[2]
    check_pages(keys, values, quant, heads)
    m = qkv.shape[1]
    squares = qkv if normed is None else normed.squares
    depth = 128 if normed is None else normed.rows.values.shape[1]
    decode_kernel[(m, heads.keys, SPLITS)](
        qkv,
        squares,
        squares.stride(0),
        heads.rope[0] if heads.query_weight is None else heads.query_weight,
        heads.rope[0] if heads.key_weight is None else heads.key_weight,
        heads.rope[0],
        heads.rope[1],
        keys,
        values,
        tables,
        tables.stride(0),
        slots,
        positions,
        positions if prefix is None else prefix,
        work.outputs,
        work.sums,
        work.arrived,
        out.values if isinstance(out, Fp8Rows) else out,
        out.scales if isinstance(out, Fp8Rows) else work.sums,
        out.scales.stride(0) if isinstance(out, Fp8Rows) else 0,
        m,
        depth,
        heads.eps,
        LOG2_E * heads.dim**-0.5,
        PARTS=qkv.shape[0],
        NORMED=normed is not None,
        G=triton.next_power_of_2(depth // 128),
        QK_NORM=heads.query_weight is not None,
        HQ=heads.queries,
        HKV=heads.keys,
        D=heads.dim,
        PAGE=page,
        BT=block_tokens(page),
        SPLIT_TOKENS=SPLIT_TOKENS,
        SPLITS=SPLITS,
        CASCADE=prefix is not None,
        QUANT=quant,
        PDL=pdl,
        **launch_options(warps=4, stages=STAGES, pdl=pdl),
    )

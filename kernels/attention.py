"""Decode attention over paged keys and values, with an optional shared prefix (cascade).

``heads.store_heads`` has made each row's queries and put its new key and value into their page. A
program here serves one row, one kv head and one stretch of that row's context, or four of them in
succession; the last program of a (row, head) merges the stretches in order and quantises.

Stretches follow from the row's own length alone, so a row's bits depend on nothing else. Rows that
share a prefix may be listed in groups: ``cascade.prefix_attention`` then folds the prefix's blocks
once for the whole group, and the programs here go on from the sums that it left. That is a matter
of speed only; bits are the same with any grouping and with none.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .cascade import prefix_attention, shared_blocks
from .heads import store_heads
from .kv import Pages, page_scales, page_values
from .norm import NormedRows
from .pages import (
    LOG2_E,
    SPLITS,
    TOGETHER,
    Heads,
    Schedule,
    Workspace,
    attend,
    block_tokens,
    check_heads,
    cut_of,
    fold,
    prefetch_block,
    schedule_of,
    store_outputs,
)
from .quantise import Fp8Rows
from .rounding import launch_options, let_next_start, wait_for_previous

TOGETHER_ROWS = 64
"""From this many rows on there are programs enough without cutting every context."""


@triton.jit(do_not_specialize=["table_stride", "osc_stride"])
def decode_kernel(
    QUERIES,
    KEYS,
    KEY_SCALES,
    VALUES,
    VALUE_SCALES,
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
    scale,
    HQ: tl.constexpr,
    HKV: tl.constexpr,
    D: tl.constexpr,
    PAGE: tl.constexpr,
    BT: tl.constexpr,
    SPLIT_TOKENS: tl.constexpr,
    SPLITS: tl.constexpr,
    EACH: tl.constexpr,
    TIMES: tl.constexpr,
    CASCADE: tl.constexpr,
    QUANT: tl.constexpr,
    NARROW: tl.constexpr,
    PDL: tl.constexpr,
):
    """grid (M, HKV, SPLITS / EACH): EACH (1 or TOGETHER) stretches of a row's context."""
    m = tl.program_id(0)
    h = tl.program_id(1)
    part = tl.program_id(2)
    GQ: tl.constexpr = HQ // HKV
    # The matrix unit wants more rows than there are: each head is repeated to fill them.
    R: tl.constexpr = GQ * TIMES
    # What the kernel before does not write, and what follows from it, needs no waiting.
    length = tl.load(POSITIONS + m) + 1
    table = TABLES + tl.load(SLOTS + m).to(tl.int64) * table_stride
    blocks = tl.cdiv(length, BT)
    each = cut_of(length, SPLIT_TOKENS, SPLITS) * (SPLIT_TOKENS // BT)
    active = tl.cdiv(blocks, each)
    shared = 0
    if CASCADE:
        shared = shared_blocks(PREFIX, POSITIONS, m, BT, SPLIT_TOKENS, SPLITS)
    # Stretches that lie in the prefix are done. The last one never is: the newest token is in it.
    done = shared // each
    split = part * EACH
    if (split + EACH > done) & (split < active):
        # The first stretch of the program that is not done, or only begun.
        own = tl.maximum(split, done)
        first = tl.maximum(own * each, shared)
        if PDL:
            prefetch_block(
                KEYS, KEY_SCALES, VALUES, VALUE_SCALES, table, h, first, HKV, D, PAGE, BT, NARROW
            )
        wait_for_previous(PDL)
        let_next_start(PDL)
        r = tl.arange(0, R)
        d = tl.arange(0, D)
        heads = h * GQ + r // TIMES
        live = r % TIMES == 0
        q = tl.load(QUERIES + (tl.cast(m, tl.int64) * HQ + heads)[:, None] * D + d[None, :])
        slot = (tl.cast(m, tl.int64) * HQ + heads) * SPLITS + split
        top = tl.full([R], float("-inf"), tl.float32)
        total = tl.zeros([R], tl.float32)
        acc = tl.zeros([D, R], tl.float32)
        past_top = top
        past_total = total
        past = acc
        if CASCADE:
            for i in tl.static_range(EACH - 1):
                past_top, past_total, past = fold_stored(
                    OUTPUTS, SUMS, past_top, past_total, past, slot + i, split + i < done, D
                )
            top, total, acc = fold_stored(
                OUTPUTS, SUMS, top, total, acc, slot + own - split, shared > own * each, D
            )
        top, total, acc, past_top, past_total, past = attend(
            q,
            KEYS,
            KEY_SCALES,
            VALUES,
            VALUE_SCALES,
            table,
            h,
            first,
            tl.minimum((split + EACH) * each, blocks),
            each,
            length,
            scale,
            top,
            total,
            acc,
            past_top,
            past_total,
            past,
            HKV,
            D,
            PAGE,
            BT,
            FOLD=EACH > 1,
            NARROW=NARROW,
        )
        if EACH > 1:
            top, total, acc = fold(past_top, past_total, past, top, total, acc)
        if active <= EACH:
            y = tl.trans(acc / total[None, :])
            store_outputs(y, heads, live, m, OUT, OSC, osc_stride, HQ, D, QUANT)
        else:
            tl.store(OUTPUTS + slot[None, :] * D + d[:, None], acc, mask=live[None, :])
            tl.store(SUMS + slot * 2, top, mask=live)
            tl.store(SUMS + slot * 2 + 1, total, mask=live)
            # Stores of all threads come before the count, the count before the last one's loads.
            tl.debug_barrier()
            arrived = tl.atomic_add(ARRIVED + m * HKV + h, 1, sem="acq_rel", scope="gpu")
            if arrived == tl.cdiv(active, EACH) - done // EACH - 1:
                tl.debug_barrier()
                merge(
                    OUTPUTS,
                    SUMS,
                    m,
                    h,
                    active,
                    OUT,
                    OSC,
                    osc_stride,
                    HQ,
                    GQ,
                    D,
                    SPLITS,
                    QUANT,
                    done,
                    EACH,
                )
                tl.store(ARRIVED + m * HKV + h, 0)


@triton.jit
def fold_stored(OUTPUTS, SUMS, top, total, acc, slot, used, D: tl.constexpr):
    """``fold`` with the sums at ``slot`` [R] of the workspace where ``used``, a number, is true."""
    there = slot * 0 + used.to(tl.int64) > 0
    at = slot[None, :] * D + tl.arange(0, D)[:, None]
    return fold(
        top,
        total,
        acc,
        tl.load(SUMS + slot * 2, mask=there, other=float("-inf"), cache_modifier=".cg"),
        tl.load(SUMS + slot * 2 + 1, mask=there, other=0.0, cache_modifier=".cg"),
        tl.load(OUTPUTS + at, mask=there[None, :], other=0.0, cache_modifier=".cg"),
    )


@triton.jit
def merge(
    OUTPUTS,
    SUMS,
    m,
    h,
    active,
    OUT,
    OSC,
    osc_stride,
    HQ: tl.constexpr,
    GQ: tl.constexpr,
    D: tl.constexpr,
    SPLITS: tl.constexpr,
    QUANT: tl.constexpr,
    done=0,
    EACH: tl.constexpr = 1,
):
    """Add the stretches of a row's heads: each TOGETHER in order, then those sums in order."""
    heads = h * GQ + tl.arange(0, GQ)
    slot = (tl.cast(m, tl.int64) * HQ + heads) * SPLITS
    top = tl.full([GQ], float("-inf"), tl.float32)
    total = tl.zeros([GQ], tl.float32)
    acc = tl.zeros([D, GQ], tl.float32)
    for first in tl.static_range(0, SPLITS, 4):
        part_top = tl.full([GQ], float("-inf"), tl.float32)
        part_total = tl.zeros([GQ], tl.float32)
        part = tl.zeros([D, GQ], tl.float32)
        # A program of many stretches has left one sum for all, the prefix one for each.
        for i in tl.static_range(4):
            there = active > first + i
            if i % EACH != 0:
                there = there & (first + EACH <= done)
            part_top, part_total, part = fold_stored(
                OUTPUTS,
                SUMS,
                part_top,
                part_total,
                part,
                slot + first + i,
                there,
                D,
            )
        top, total, acc = fold(top, total, acc, part_top, part_total, part)
    y = tl.trans(acc / total[None, :])
    store_outputs(y, heads, heads >= 0, m, OUT, OSC, osc_stride, HQ, D, QUANT)


def decode_attention(
    qkv: torch.Tensor,
    normed: NormedRows | None,
    heads: Heads,
    keys: Pages,
    values: Pages,
    tables: torch.Tensor,
    slots: torch.Tensor,
    positions: torch.Tensor,
    work: Workspace,
    out: torch.Tensor | Fp8Rows,
    *,
    prefix: torch.Tensor | None = None,
    groups: torch.Tensor | None = None,
    schedule: Schedule | None = None,
    together: bool | None = None,
    pdl: bool = False,
) -> None:
    """One decode step of M rows: writes the new keys and values, and ``out`` [M, HQ D].

    ``qkv`` [S, M, (HQ + 2 HKV) D] fp32 partials, or bf16 with S 1; ``normed``: the rows they came
    from, when their rms factor is still to be applied. ``tables`` int32 [slots, pages], ``slots``
    and ``positions`` int32 [M]: row m is token ``positions[m]`` of the context of ``slots[m]``.
    ``out``: bf16 rows, or quantised ones when D is 128. ``schedule``: that of the pages' kind.

    Sharing: ``groups`` int32 [groups, 16] lists rows whose first tokens lie in the same pages; -1
    for none, the first entry -1 for a group that is not used. ``prefix`` int32 [M, 2]: how many
    tokens (a multiple of the page), and ``cut_on_host`` of the length; both the same in a group.
    Every row with tokens in ``prefix`` is in exactly one group; a row that turns out to be shorter
    than that, or cut otherwise, is left to itself.
    """
    quant = isinstance(out, Fp8Rows)
    narrow = check_heads(keys, values, quant, heads)
    page = page_values(keys).shape[2]
    schedule = schedule or schedule_of(keys)
    m = qkv.shape[1]
    queries = work.queries[:m]
    weights = None
    if heads.query_weight is not None and heads.key_weight is not None:
        weights = (heads.query_weight, heads.key_weight)
    store_heads(
        qkv,
        normed,
        weights,
        heads.rope,
        tables,
        keys,
        values,
        queries,
        heads.eps,
        rows=(slots, positions),
        pdl=pdl,
    )
    cascade = prefix is not None and groups is not None
    if prefix is not None and groups is not None:
        shared = (keys, values, tables, slots, positions, prefix, groups)
        prefix_attention(queries, heads, *shared, work, schedule, pdl=pdl)
    if together is None:
        together = m >= TOGETHER_ROWS
    each = TOGETHER if together else 1
    decode_kernel[(m, heads.keys, SPLITS // each)](
        queries,
        page_values(keys),
        page_scales(keys),
        page_values(values),
        page_scales(values),
        tables,
        tables.stride(0),
        slots,
        positions,
        prefix if cascade else positions,
        work.outputs,
        work.sums,
        work.arrived,
        out.values if isinstance(out, Fp8Rows) else out,
        out.scales if isinstance(out, Fp8Rows) else work.sums,
        out.scales.stride(0) if isinstance(out, Fp8Rows) else 0,
        LOG2_E * heads.dim**-0.5,
        HQ=heads.queries,
        HKV=heads.keys,
        D=heads.dim,
        PAGE=page,
        BT=block_tokens(page, schedule.block_tokens),
        SPLIT_TOKENS=schedule.split_tokens,
        SPLITS=SPLITS,
        EACH=each,
        TIMES=max(1, schedule.columns * heads.keys // heads.queries),
        CASCADE=cascade,
        QUANT=quant,
        NARROW=narrow,
        PDL=pdl,
        **launch_options(warps=schedule.warps, stages=schedule.stages, pdl=pdl),
    )

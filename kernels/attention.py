"""Decode attention over paged keys and values, with an optional shared prefix (cascade).

``heads.store_heads`` has made each row's queries and put its new key and value into their page. A
program here serves one row, one kv head and one stretch of that row's context; the last program of
a (row, head) merges the stretches in order and quantises.

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
from .norm import NormedRows
from .pages import (
    LOG2_E,
    SCHEDULE,
    SPLITS,
    Heads,
    Schedule,
    Workspace,
    attend,
    block_tokens,
    check_pages,
    cut_of,
    prefetch_block,
    store_outputs,
)
from .quantise import Fp8Rows
from .rounding import launch_options, let_next_start, wait_for_previous


@triton.jit(do_not_specialize=["table_stride", "osc_stride"])
def decode_kernel(
    QUERIES,
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
    scale,
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
    if (split >= done) & (split < active):
        first = tl.maximum(split * each, shared)
        if PDL:
            prefetch_block(KEYS, VALUES, table, h, first, HKV, D, PAGE, BT)
        wait_for_previous(PDL)
        let_next_start(PDL)
        r = tl.arange(0, 16)
        d = tl.arange(0, D)
        heads = h * GQ + r // TIMES
        live = r % TIMES == 0
        q = tl.load(QUERIES + (tl.cast(m, tl.int64) * HQ + heads)[:, None] * D + d[None, :])
        slot = (tl.cast(m, tl.int64) * HQ + heads) * SPLITS + split
        top = tl.full([16], float("-inf"), tl.float32)
        total = tl.zeros([16], tl.float32)
        acc = tl.zeros([D, 16], tl.float32)
        if CASCADE:
            begun = tl.zeros([16], tl.int32) + shared > split * each
            top = tl.load(SUMS + slot * 2, mask=begun, other=float("-inf"), cache_modifier=".cg")
            total = tl.load(SUMS + slot * 2 + 1, mask=begun, other=0.0, cache_modifier=".cg")
            acc = tl.load(
                OUTPUTS + slot[None, :] * D + d[:, None],
                mask=begun[None, :],
                other=0.0,
                cache_modifier=".cg",
            )
        top, total, acc = attend(
            q,
            KEYS,
            VALUES,
            table,
            h,
            first,
            tl.minimum((split + 1) * each, blocks),
            length,
            scale,
            top,
            total,
            acc,
            HKV,
            D,
            PAGE,
            BT,
        )
        if active == 1:
            y = tl.trans(acc / total[None, :])
            store_outputs(y, heads, live, m, OUT, OSC, osc_stride, HQ, D, QUANT)
        else:
            tl.store(OUTPUTS + slot[None, :] * D + d[:, None], acc, mask=live[None, :])
            tl.store(SUMS + slot * 2, top, mask=live)
            tl.store(SUMS + slot * 2 + 1, total, mask=live)
            # Stores of all threads come before the count, the count before the last one's loads.
            tl.debug_barrier()
            arrived = tl.atomic_add(ARRIVED + m * HKV + h, 1, sem="acq_rel", scope="gpu")
            if arrived == active - done - 1:
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
                )
                tl.store(ARRIVED + m * HKV + h, 0)


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
):
    """Add the first ``active`` stretches of a row's heads, in order."""
    g = tl.arange(0, GQ)
    s = tl.arange(0, SPLITS)
    d = tl.arange(0, D)
    used = s < active
    heads = h * GQ + g
    slot = (tl.cast(m, tl.int64) * HQ + heads)[:, None] * SPLITS + s[None, :]
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
    groups: torch.Tensor | None = None,
    schedule: Schedule = SCHEDULE,
    pdl: bool = False,
) -> None:
    """One decode step of M rows: writes the new keys and values, and ``out`` [M, HQ D].

    ``qkv`` [S, M, (HQ + 2 HKV) D] fp32 partials, or bf16 with S 1; ``normed``: the rows they came
    from, when their rms factor is still to be applied. ``tables`` int32 [slots, pages], ``slots``
    and ``positions`` int32 [M]: row m is token ``positions[m]`` of the context of ``slots[m]``.
    ``out``: bf16 rows, or quantised ones when D is 128.

    Sharing: ``groups`` int32 [groups, 16] lists rows whose first tokens lie in the same pages; -1
    for none, the first entry -1 for a group that is not used. ``prefix`` int32 [M, 2]: how many
    tokens (a multiple of the page), and ``cut_on_host`` of the length; both the same in a group.
    Every row with tokens in ``prefix`` is in exactly one group; a row that turns out to be shorter
    than that, or cut otherwise, is left to itself.
    """
    quant = isinstance(out, Fp8Rows)
    page = keys.shape[2]
    check_pages(keys, values, quant, heads)
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
    decode_kernel[(m, heads.keys, SPLITS)](
        queries,
        keys,
        values,
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
        CASCADE=cascade,
        QUANT=quant,
        PDL=pdl,
        **launch_options(warps=schedule.warps, stages=schedule.stages, pdl=pdl),
    )

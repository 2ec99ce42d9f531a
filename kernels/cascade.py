"""The part of decode attention that rows of one voice share: its prefix, read once for all.

A program serves one group of up to 16 rows, one kv head and one stretch of their contexts. It folds
the blocks of that stretch that lie in the prefix and leaves the running sums in the workspace,
where ``attention.decode_attention`` takes them up: to the bit what the row's own program would have
computed on the way, so that who is in a group, and whether there is one, shows in no result.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .kv import Pages, page_scales, page_values
from .pages import (
    LOG2_E,
    SPLITS,
    Heads,
    Schedule,
    Workspace,
    attend,
    block_tokens,
    check_heads,
    cut_of,
    prefetch_block,
)
from .rounding import launch_options, let_next_start, wait_for_previous

GROUP_ROWS = 16


@triton.jit
def shared_blocks(
    PREFIX, POSITIONS, m, BT: tl.constexpr, SPLIT_TOKENS: tl.constexpr, SPLITS: tl.constexpr
):
    """Blocks of row ``m`` (a number or many) that its group folds.

    0 where the row's own position says that it is cut otherwise than its group or does not see all
    of the prefix: the host knows positions only of rows that have not ended.
    """
    tokens = tl.load(PREFIX + m * 2)
    cut = tl.load(PREFIX + m * 2 + 1)
    position = tl.load(POSITIONS + m)
    taken = (tokens <= position) & (cut == cut_of(position + 1, SPLIT_TOKENS, SPLITS))
    return tl.where(taken, tokens // BT, 0)


@triton.jit(do_not_specialize=["table_stride"])
def prefix_kernel(
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
    GROUPS,
    OUTPUTS,
    SUMS,
    scale,
    HQ: tl.constexpr,
    HKV: tl.constexpr,
    D: tl.constexpr,
    PAGE: tl.constexpr,
    BT: tl.constexpr,
    ROWS: tl.constexpr,
    SPLIT_TOKENS: tl.constexpr,
    SPLITS: tl.constexpr,
    NARROW: tl.constexpr,
    PDL: tl.constexpr,
):
    """grid (groups, HKV, SPLITS)."""
    group = tl.program_id(0)
    h = tl.program_id(1)
    split = tl.program_id(2)
    GQ: tl.constexpr = HQ // HKV
    R: tl.constexpr = ROWS * GQ
    leader = tl.load(GROUPS + group * ROWS)
    shared = 0
    each = 1
    if leader >= 0:
        shared = tl.load(PREFIX + leader * 2) // BT
        each = tl.load(PREFIX + leader * 2 + 1) * (SPLIT_TOKENS // BT)
    first = split * each
    if first < shared:
        table = TABLES + tl.load(SLOTS + leader).to(tl.int64) * table_stride
        if PDL:
            prefetch_block(
                KEYS, KEY_SCALES, VALUES, VALUE_SCALES, table, h, first, HKV, D, PAGE, BT, NARROW
            )
        r = tl.arange(0, R)
        d = tl.arange(0, D)
        row = tl.load(GROUPS + group * ROWS + r // GQ)
        safe = tl.maximum(row, 0)
        live = (row >= 0) & (shared_blocks(PREFIX, POSITIONS, safe, BT, SPLIT_TOKENS, SPLITS) > 0)
        at = safe.to(tl.int64) * HQ + h * GQ + r % GQ
        wait_for_previous(PDL)
        let_next_start(PDL)
        top = tl.full([R], float("-inf"), tl.float32)
        total = tl.zeros([R], tl.float32)
        acc = tl.zeros([D, R], tl.float32)
        top, total, acc, _, _, _ = attend(
            tl.load(QUERIES + at[:, None] * D + d[None, :]),
            KEYS,
            KEY_SCALES,
            VALUES,
            VALUE_SCALES,
            table,
            h,
            first,
            tl.minimum(first + each, shared),
            each,
            shared * BT,
            scale,
            top,
            total,
            acc,
            top,
            total,
            acc,
            HKV,
            D,
            PAGE,
            BT,
            FOLD=False,
            NARROW=NARROW,
        )
        slot = at * SPLITS + split
        tl.store(OUTPUTS + slot[None, :] * D + d[:, None], acc, mask=live[None, :])
        tl.store(SUMS + slot * 2, top, mask=live)
        tl.store(SUMS + slot * 2 + 1, total, mask=live)
    else:
        # Were every group unused and none waited, the kernel after this one would start too early.
        wait_for_previous(PDL)


def prefix_attention(
    queries: torch.Tensor,
    heads: Heads,
    keys: Pages,
    values: Pages,
    tables: torch.Tensor,
    slots: torch.Tensor,
    positions: torch.Tensor,
    prefix: torch.Tensor,
    groups: torch.Tensor,
    work: Workspace,
    schedule: Schedule,
    *,
    pdl: bool = False,
) -> None:
    """Fold shared prefixes into ``work``, for ``queries`` bf16 [M, HQ, D].

    ``prefix`` int32 [M, 2] and ``groups`` int32 [groups, 16] as in ``attention.decode_attention``,
    and the schedule that it uses.
    """
    narrow = check_heads(keys, values, False, heads)
    page = page_values(keys).shape[2]
    prefix_kernel[(groups.shape[0], heads.keys, SPLITS)](
        queries,
        page_values(keys),
        page_scales(keys),
        page_values(values),
        page_scales(values),
        tables,
        tables.stride(0),
        slots,
        positions,
        prefix,
        groups,
        work.outputs,
        work.sums,
        LOG2_E * heads.dim**-0.5,
        HQ=heads.queries,
        HKV=heads.keys,
        D=heads.dim,
        PAGE=page,
        BT=block_tokens(page, schedule.block_tokens),
        ROWS=GROUP_ROWS,
        SPLIT_TOKENS=schedule.split_tokens,
        SPLITS=SPLITS,
        NARROW=narrow,
        PDL=pdl,
        **launch_options(warps=schedule.warps, stages=schedule.stages, pdl=pdl),
    )

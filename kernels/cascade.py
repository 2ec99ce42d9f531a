"""The part of decode attention that rows of one voice share: its prefix, read once for all.

A program serves one group of up to 16 rows, one kv head and one stretch of the prefix. It leaves
its share in the workspace, where ``attention.decode_attention`` merges it before the row's own
stretches.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .pages import (
    LOG2_E,
    PREFIX_SCHEDULE,
    SPLITS,
    Heads,
    Workspace,
    attend,
    block_tokens,
    check_pages,
    prefetch_block,
    stretches,
)
from .rounding import launch_options, let_next_start, wait_for_previous

GROUP_ROWS = 16


@triton.jit(do_not_specialize=["table_stride"])
def prefix_kernel(
    QUERIES,
    KEYS,
    VALUES,
    TABLES,
    table_stride,
    SLOTS,
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
    PDL: tl.constexpr,
):
    """grid (groups, HKV, SPLITS)."""
    group = tl.program_id(0)
    h = tl.program_id(1)
    split = tl.program_id(2)
    GQ: tl.constexpr = HQ // HKV
    R: tl.constexpr = ROWS * GQ
    leader = tl.load(GROUPS + group * ROWS)
    if leader < 0:
        # Were every group unused and none waited, the kernel after this one would start too early.
        wait_for_previous(PDL)
    else:
        end = tl.load(PREFIX + leader)
        blocks = end // BT
        active = stretches(blocks, BT, SPLIT_TOKENS, SPLITS)
        if split < active:
            table = TABLES + tl.load(SLOTS + leader).to(tl.int64) * table_stride
            first = blocks * split // active
            if PDL:
                prefetch_block(KEYS, VALUES, table, h, first, HKV, D, PAGE, BT)
            r = tl.arange(0, R)
            d = tl.arange(0, D)
            row = tl.load(GROUPS + group * ROWS + r // GQ)
            live = row >= 0
            at = tl.maximum(row, 0).to(tl.int64) * HQ + h * GQ + r % GQ
            wait_for_previous(PDL)
            let_next_start(PDL)
            top, total, acc = attend(
                tl.load(QUERIES + at[:, None] * D + d[None, :]),
                KEYS,
                VALUES,
                table,
                h,
                first,
                blocks * (split + 1) // active,
                end,
                scale,
                tl.full([R], float("-inf"), tl.float32),
                tl.zeros([R], tl.float32),
                tl.zeros([D, R], tl.float32),
                HKV,
                D,
                PAGE,
                BT,
            )
            slot = at * (2 * SPLITS) + split
            tl.store(OUTPUTS + slot[None, :] * D + d[:, None], acc, mask=live[None, :])
            tl.store(SUMS + slot * 2, top, mask=live)
            tl.store(SUMS + slot * 2 + 1, total, mask=live)


def prefix_attention(
    queries: torch.Tensor,
    heads: Heads,
    keys: torch.Tensor,
    values: torch.Tensor,
    tables: torch.Tensor,
    slots: torch.Tensor,
    prefix: torch.Tensor,
    groups: torch.Tensor,
    work: Workspace,
    *,
    pdl: bool = False,
) -> None:
    """Fold shared prefixes into ``work``, for ``queries`` bf16 [M, HQ, D].

    ``prefix`` int32 [M] and ``groups`` int32 [groups, 16] as in ``attention.decode_attention``.
    """
    check_pages(keys, values, False, heads)
    page = keys.shape[2]
    prefix_kernel[(groups.shape[0], heads.keys, SPLITS)](
        queries,
        keys,
        values,
        tables,
        tables.stride(0),
        slots,
        prefix,
        groups,
        work.outputs,
        work.sums,
        LOG2_E * heads.dim**-0.5,
        HQ=heads.queries,
        HKV=heads.keys,
        D=heads.dim,
        PAGE=page,
        BT=block_tokens(page, PREFIX_SCHEDULE.block_tokens),
        ROWS=GROUP_ROWS,
        SPLIT_TOKENS=PREFIX_SCHEDULE.split_tokens,
        SPLITS=SPLITS,
        PDL=pdl,
        **launch_options(warps=PREFIX_SCHEDULE.warps, stages=PREFIX_SCHEDULE.stages, pdl=pdl),
    )

"""The part of decode attention that rows of one voice share: its prefix, read once for all.

A program serves one group of up to 16 rows, one kv head and one stretch of the prefix: the rows'
queries of that head are the long side of the product. It leaves its share in the workspace of
``attention``, where ``decode_attention`` merges it before the row's own stretches.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .attention import GROUP_ROWS, SPLIT_TOKENS, SPLITS, STAGES, Workspace, stretches
from .heads import load_heads, load_turn, norm_heads, rotate_heads
from .norm import NormedRows, load_squares, rms_factor
from .pages import LOG2_E, Heads, attend, block_tokens, check_pages
from .rounding import bf16, launch_options, let_next_start, on_bf16_grid, wait_for_previous


@triton.jit(do_not_specialize=["M", "sq_stride", "table_stride"])
def prefix_kernel(
    QKV,
    SQ,
    sq_stride,
    QN,
    COS,
    SIN,
    KEYS,
    VALUES,
    TABLES,
    table_stride,
    SLOTS,
    POSITIONS,
    PREFIX,
    GROUPS,
    OUTPUTS,
    SUMS,
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
    if leader >= 0:
        end = tl.load(PREFIX + leader)
        blocks = end // BT
        active = stretches(blocks, BT, SPLIT_TOKENS, SPLITS)
        if split < active:
            table = TABLES + tl.load(SLOTS + leader).to(tl.int64) * table_stride
            r = tl.arange(0, R)
            row = tl.load(GROUPS + group * ROWS + r // GQ)
            live = row >= 0
            row = tl.maximum(row, 0)
            heads = h * GQ + r % GQ
            width: tl.constexpr = (HQ + 2 * HKV) * D
            at = row.to(tl.int64) * width + heads * D
            cos, sin = load_turn(COS, SIN, tl.load(POSITIONS + row), D)
            wait_for_previous(PDL)
            let_next_start(PDL)
            q = load_heads(QKV, at, live, tl.cast(M, tl.int64) * width, D, PARTS)
            if NORMED:
                squares = load_squares(SQ, sq_stride, row, live, K, G)
                q = q * rms_factor(squares, K, eps)[:, None]
            q = on_bf16_grid(q)
            if QK_NORM:
                q = norm_heads(q, QN, eps, D)
            q = rotate_heads(q, cos, sin, R, D)
            top, total, acc = attend(
                bf16(q),
                KEYS,
                VALUES,
                table,
                h,
                blocks * split // active,
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
            slot = (row.to(tl.int64) * HQ + heads) * (2 * SPLITS) + split
            where = slot[None, :] * D + tl.arange(0, D)[:, None]
            tl.store(OUTPUTS + where, acc, mask=live[None, :])
            tl.store(SUMS + slot * 2, top, mask=live)
            tl.store(SUMS + slot * 2 + 1, total, mask=live)


def prefix_attention(
    qkv: torch.Tensor,
    normed: NormedRows | None,
    heads: Heads,
    keys: torch.Tensor,
    values: torch.Tensor,
    tables: torch.Tensor,
    slots: torch.Tensor,
    positions: torch.Tensor,
    prefix: torch.Tensor,
    groups: torch.Tensor,
    work: Workspace,
    *,
    pdl: bool = False,
) -> None:
    """Fold the shared prefixes into ``work``; ``decode_attention`` with ``prefix`` follows.

    ``groups`` int32 [groups, 16]: rows that share their first ``prefix[row]`` tokens, -1 for none,
    the first entry -1 for a group that is not used. Every row with ``prefix[row] > 0`` must be in
    exactly one group. The prefix is a multiple of the page. The rest is as in
    ``decode_attention``.
    """
    check_pages(keys, values, False, heads)
    page = keys.shape[2]
    squares = qkv if normed is None else normed.squares
    depth = 128 if normed is None else normed.rows.values.shape[1]
    prefix_kernel[(groups.shape[0], heads.keys, SPLITS)](
        qkv,
        squares,
        squares.stride(0),
        heads.rope[0] if heads.query_weight is None else heads.query_weight,
        heads.rope[0],
        heads.rope[1],
        keys,
        values,
        tables,
        tables.stride(0),
        slots,
        positions,
        prefix,
        groups,
        work.outputs,
        work.sums,
        qkv.shape[1],
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
        ROWS=GROUP_ROWS,
        SPLIT_TOKENS=SPLIT_TOKENS,
        SPLITS=SPLITS,
        PDL=pdl,
        **launch_options(warps=4, stages=STAGES, pdl=pdl),
    )

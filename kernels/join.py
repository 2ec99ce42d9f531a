"""Changes that the host makes to slots between steps: new contents of a row, one page more.

A record is the slot, its state row, its page table; a grant is a place in the flat page tables and
a page. Both lie in one int32 buffer that was copied to the device with the step's plan.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .rounding import launch_options


@triton.jit(do_not_specialize=["joins"])
def join_kernel(
    RECORDS,
    STATE,
    TABLES,
    joins,
    WIDTH: tl.constexpr,
    PAGES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """grid (joins + grants,): records first, then the grants behind them."""
    i = tl.program_id(0)
    record: tl.constexpr = 1 + WIDTH + PAGES
    if i < joins:
        at = RECORDS + tl.cast(i, tl.int64) * record
        slot = tl.load(at).to(tl.int64)
        for start in tl.static_range(0, WIDTH, BLOCK):
            w = start + tl.arange(0, BLOCK)
            tl.store(STATE + slot * WIDTH + w, tl.load(at + 1 + w, mask=w < WIDTH), mask=w < WIDTH)
        for start in tl.range(0, PAGES, BLOCK):
            p = start + tl.arange(0, BLOCK)
            page = tl.load(at + 1 + WIDTH + p, mask=p < PAGES)
            tl.store(TABLES + slot * PAGES + p, page, mask=p < PAGES)
    else:
        at = RECORDS + tl.cast(joins, tl.int64) * record + (i - joins) * 2
        tl.store(TABLES + tl.load(at).to(tl.int64), tl.load(at + 1))


def apply_joins(
    records: torch.Tensor, state: torch.Tensor, tables: torch.Tensor, joins: int, grants: int
) -> None:
    """Write ``joins`` records, then ``grants`` pairs, out of ``records`` int32 [any].

    ``state`` int32 [slots, width] and ``tables`` int32 [slots, pages], both contiguous. A grant
    must not be for a slot that joins in the same call: programs run in any order.
    """
    width, pages = state.shape[1], tables.shape[1]
    join_kernel[(joins + grants,)](
        records,
        state,
        tables,
        joins,
        WIDTH=width,
        PAGES=pages,
        BLOCK=128,
        **launch_options(warps=4),
    )


def apply_joins_reference(
    records: torch.Tensor, state: torch.Tensor, tables: torch.Tensor, joins: int, grants: int
) -> None:
    """The same, one after another."""
    width = state.shape[1]
    record = 1 + width + tables.shape[1]
    for i in range(joins):
        row = records[i * record : (i + 1) * record]
        state[int(row[0])] = row[1 : 1 + width]
        tables[int(row[0])] = row[1 + width :]
    pairs = records[joins * record : joins * record + 2 * grants].view(-1, 2)
    tables.view(-1)[pairs[:, 0].long()] = pairs[:, 1]

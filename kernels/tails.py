"""What streams keep between calls, moved in and out by one kernel each way.

A network's tails (the last inputs of every convolution) lie side by side in one flat fp16 row a
slot. At a call's start they are copied in front of every layer's new steps, wherever that layer's
buffer lies; at its end the last steps of every buffer become the slot's row.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

import torch
import triton
import triton.language as tl

from .rounding import bf16, launch_options, let_next_start, wait_for_previous

_BLOCK = 1024
_ROWS = 4
"""A program's: it asks for 8 KB at once."""


@dataclass(frozen=True, slots=True)
class TailPlace:
    """One layer: ``start`` and ``count`` of its values in a slot's row; ``buffer`` and ``row``, in
    elements from the workspace's start, of its padded steps; ``moved``, how many elements later
    the last ``count`` values of a row lie."""

    start: int
    count: int
    buffer: int
    row: int
    moved: int


@dataclass(frozen=True, slots=True, eq=False)
class TailTable:
    """``segments`` int64 [n, 5]: (start, count, buffer, row, moved), a program has one of some
    rows; ``grain``: all of them are multiples of it, up to the eight values a thread moves."""

    segments: torch.Tensor
    grain: int


def tail_table(places: list[TailPlace], device: torch.device) -> TailTable:
    """The table of ``places``, cut up."""
    segments = [
        (p.start + at, min(_BLOCK, p.count - at), p.buffer + at, p.row, p.moved)
        for p in places
        for at in range(0, p.count, _BLOCK)
    ]
    grain = gcd(8, *(number for segment in segments for number in segment))
    return TailTable(torch.tensor(segments, dtype=torch.int64, device=device), grain)


@triton.jit(do_not_specialize=["rows"])
def tails_kernel(
    WORK, FLAT, flat_row, TABLE, SLOTS, RESET, rows,
    SAVE: tl.constexpr, GRAIN: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """grid (ceil(rows / ROWS), segments)."""
    b = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    live = b < rows
    segment = TABLE + tl.program_id(1) * 5
    # Unaware of these the compiler would move two bytes at a time.
    start = tl.multiple_of(tl.load(segment), GRAIN)
    count = tl.multiple_of(tl.load(segment + 1), GRAIN)
    buffer = tl.multiple_of(tl.load(segment + 2), GRAIN)
    row = tl.multiple_of(tl.load(segment + 3), GRAIN)
    moved = tl.multiple_of(tl.load(segment + 4), GRAIN)
    i = tl.arange(0, BLOCK)
    mask = live[:, None] & (i < count)[None, :]
    slot = tl.load(SLOTS + b, mask=live, other=0)
    flat = FLAT + (slot * flat_row)[:, None] + (start + i)[None, :]
    work = WORK + (b.to(tl.int64) * row)[:, None] + (buffer + i)[None, :]
    let_next_start(PDL)
    wait_for_previous(PDL)
    if SAVE:
        tl.store(flat, tl.load(work + moved, mask=mask, other=0.0), mask=mask)
    else:
        kept = tl.load(RESET + b, mask=live, other=1) == 0
        tl.store(work, tl.load(flat, mask=mask & kept[:, None], other=0.0), mask=mask)


def load_tails(
    flat: torch.Tensor,
    work: torch.Tensor,
    table: TailTable,
    slots: torch.Tensor,
    reset: torch.Tensor,
    pdl: bool = False,
) -> None:
    """The slots' tails, zeros where ``reset`` (bool [rows]), in front of every layer's steps."""
    _move(flat, work, table, slots, reset.view(torch.uint8), save=False, pdl=pdl)


def save_tails(
    flat: torch.Tensor,
    work: torch.Tensor,
    table: TailTable,
    slots: torch.Tensor,
    pdl: bool = False,
) -> None:
    """The last steps of every layer's buffer become the slots' tails."""
    _move(flat, work, table, slots, slots, save=True, pdl=pdl)


def _move(
    flat: torch.Tensor,
    work: torch.Tensor,
    table: TailTable,
    slots: torch.Tensor,
    reset: torch.Tensor,
    *,
    save: bool,
    pdl: bool,
) -> None:
    rows = len(slots)
    grain = gcd(table.grain, flat.stride(0))
    tails_kernel[(triton.cdiv(rows, _ROWS), len(table.segments))](
        work, flat, flat.stride(0), table.segments, slots, reset, rows,
        SAVE=save, GRAIN=grain, ROWS=_ROWS, BLOCK=_BLOCK, PDL=pdl,
        **launch_options(warps=4, pdl=pdl),
    )  # fmt: skip


@triton.jit
def begin_kernel(
    SLOTS, RESET, POSITION, NOW, FREQUENCY, COS, SIN,
    FRAMES: tl.constexpr, HALF: tl.constexpr, HB: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(0)
    slot = tl.load(SLOTS + b)
    position = tl.load(POSITION + slot)
    position = tl.where(tl.load(RESET + b) == 0, position, 0)
    tl.store(NOW + b, position)
    tl.store(POSITION + slot, position + FRAMES)
    i = tl.arange(0, HB)
    frequency = tl.load(FREQUENCY + i, mask=i < HALF, other=0.0)
    for t in range(FRAMES):
        angle = ((position + t).to(tl.float32) * frequency).to(tl.float64)
        at = (b * FRAMES + t) * HALF + i
        tl.store(COS + at, bf16(tl.cos(angle).to(tl.float32)).to(tl.float32), mask=i < HALF)
        tl.store(SIN + at, bf16(tl.sin(angle).to(tl.float32)).to(tl.float32), mask=i < HALF)


def begin(
    slots: torch.Tensor,
    reset: torch.Tensor,
    position: torch.Tensor,
    now: torch.Tensor,
    frequency: torch.Tensor,
    turn: tuple[torch.Tensor, torch.Tensor],
) -> None:
    """``now`` int64 [rows] <- frames behind each stream (0 where ``reset``); ``position`` int64
    [all slots] moves on; ``turn``: bf16-rounded cosine and sine fp32 [rows, frames, half]."""
    _, frames, half = turn[0].shape
    begin_kernel[(len(slots),)](
        slots, reset.view(torch.uint8), position, now, frequency, *turn,
        FRAMES=frames, HALF=half, HB=triton.next_power_of_2(half), **launch_options(warps=1),
    )  # fmt: skip

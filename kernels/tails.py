"""What streams keep between calls, moved in and out by one kernel each way.

A network's tails (the last inputs of every convolution) lie side by side in one flat fp16 row a
slot. At a call's start they are copied in front of every layer's new steps, wherever that layer's
buffer lies; at its end the last steps of every buffer become the slot's row.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from .rounding import bf16, launch_options, let_next_start, wait_for_previous

_BLOCK = 1024


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


def tail_table(places: list[TailPlace], device: torch.device) -> torch.Tensor:
    """int64 [segments, 5]: (start, count, buffer, row, moved), cut so that a program has one."""
    segments = [
        (p.start + at, min(_BLOCK, p.count - at), p.buffer + at, p.row, p.moved)
        for p in places
        for at in range(0, p.count, _BLOCK)
    ]
    return torch.tensor(segments, dtype=torch.int64, device=device)


@triton.jit
def tails_kernel(
    WORK, FLAT, flat_row, TABLE, SLOTS, RESET,
    SAVE: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """grid (rows, segments)."""
    b = tl.program_id(0)
    segment = TABLE + tl.program_id(1) * 5
    start, count = tl.load(segment), tl.load(segment + 1)
    buffer, row, moved = tl.load(segment + 2), tl.load(segment + 3), tl.load(segment + 4)
    i = tl.arange(0, BLOCK)
    mask = i < count
    flat = FLAT + tl.load(SLOTS + b) * flat_row + start + i
    work = WORK + buffer + b.to(tl.int64) * row + i
    let_next_start(PDL)
    wait_for_previous(PDL)
    if SAVE:
        tl.store(flat, tl.load(work + moved, mask=mask, other=0.0), mask=mask)
    else:
        kept = tl.where(tl.load(RESET + b) == 0, count, 0)
        tl.store(work, tl.load(flat, mask=i < kept, other=0.0), mask=mask)


def load_tails(
    flat: torch.Tensor,
    work: torch.Tensor,
    table: torch.Tensor,
    slots: torch.Tensor,
    reset: torch.Tensor,
    pdl: bool = False,
) -> None:
    """The slots' tails, zeros where ``reset`` (bool [rows]), in front of every layer's steps."""
    tails_kernel[(len(slots), len(table))](
        work, flat, flat.stride(0), table, slots, reset.view(torch.uint8),
        SAVE=False, BLOCK=_BLOCK, PDL=pdl, **launch_options(warps=4, pdl=pdl),
    )  # fmt: skip


def save_tails(
    flat: torch.Tensor,
    work: torch.Tensor,
    table: torch.Tensor,
    slots: torch.Tensor,
    pdl: bool = False,
) -> None:
    """The last steps of every layer's buffer become the slots' tails."""
    tails_kernel[(len(slots), len(table))](
        work, flat, flat.stride(0), table, slots, slots,
        SAVE=True, BLOCK=_BLOCK, PDL=pdl, **launch_options(warps=4, pdl=pdl),
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

"""The end of a decode step: results for the host, and each slot's state for the next step.

A slot's state is one row of an int32 tensor whose columns ``Fields`` names. A row that has ended
keeps its state to the last bit, so that a step launched before the host saw the end changes
nothing, and reports the end again.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from .rounding import launch_options, let_next_start, wait_for_previous


@dataclass(frozen=True, slots=True)
class Fields:
    """Column numbers of the state: scalars, then the last column, then the window's tokens."""

    generation: int
    position: int
    draw: int
    first: int
    done: int
    column: int
    codebooks: int
    window: int
    window_frames: int


@triton.jit(do_not_specialize=["end_token", "state_stride", "drawn_stride", "buffer_stride"])
def advance_kernel(
    STATE,
    state_stride,
    SLOTS,
    DRAWN,
    drawn_stride,
    RESULTS,
    buffer_stride,
    BUFFER,
    end_token,
    GENERATION: tl.constexpr,
    POSITION: tl.constexpr,
    DRAW: tl.constexpr,
    FIRST: tl.constexpr,
    DONE: tl.constexpr,
    COLUMN: tl.constexpr,
    C: tl.constexpr,
    C2: tl.constexpr,
    WINDOW: tl.constexpr,
    W: tl.constexpr,
    W2: tl.constexpr,
    PDL: tl.constexpr,
):
    """grid (M,)."""
    m = tl.program_id(0)
    wait_for_previous(PDL)
    let_next_start(PDL)
    state = STATE + tl.load(SLOTS + m).to(tl.int64) * state_stride
    c = tl.arange(0, C2)
    inside = c < C
    column = tl.load(DRAWN + m * drawn_stride + c, mask=inside, other=0)
    token = tl.load(DRAWN + m * drawn_stride)
    done = tl.load(state + DONE)
    generation = tl.load(state + GENERATION)
    position = tl.load(state + POSITION)
    draw = tl.load(state + DRAW)
    first = tl.load(state + FIRST)
    w = tl.arange(0, W2)
    earlier = tl.load(state + WINDOW + w + 1, mask=w < W - 1, other=0)
    earlier = tl.where(w == W - 1, token, earlier)
    ended = (done != 0) | (token == end_token)
    out = RESULTS + tl.load(BUFFER).to(tl.int64) * buffer_stride + m * (C + 2)
    tl.store(out + c, column, mask=inside)
    tl.store(out + C, ended.to(tl.int32))
    tl.store(out + C + 1, generation)
    tl.debug_barrier()
    if ended:
        tl.store(state + DONE, 1)
    else:
        tl.store(state + POSITION, position + 1)
        tl.store(state + DRAW, draw + 1)
        tl.store(state + FIRST, 0)
        tl.store(state + COLUMN + c, column, mask=inside)
        # The first frame of a segment never enters the window.
        tl.store(state + WINDOW + w, tl.where(first != 0, 0, earlier), mask=w < W)


def advance(
    state: torch.Tensor,
    fields: Fields,
    slots: torch.Tensor,
    drawn: torch.Tensor,
    end_token: int,
    results: torch.Tensor,
    buffer: torch.Tensor,
    *,
    pdl: bool = False,
) -> None:
    """Take the ``drawn`` columns int32 [M, 1 + codebooks] over into ``state`` and ``results``.

    ``state`` int32 [slots, width]; ``slots`` int32 [M]; ``results`` int32 [2, rows, codebooks + 3]
    gets column, ended flag and generation of row m in ``results[buffer]``, ``buffer`` int32 [1].
    """
    width = 1 + fields.codebooks
    advance_kernel[(drawn.shape[0],)](
        state,
        state.stride(0),
        slots,
        drawn,
        drawn.stride(0),
        results,
        results.stride(0),
        buffer,
        end_token,
        GENERATION=fields.generation,
        POSITION=fields.position,
        DRAW=fields.draw,
        FIRST=fields.first,
        DONE=fields.done,
        COLUMN=fields.column,
        C=width,
        C2=triton.next_power_of_2(width),
        WINDOW=fields.window,
        W=fields.window_frames,
        W2=triton.next_power_of_2(fields.window_frames),
        PDL=pdl,
        **launch_options(warps=1, pdl=pdl),
    )


def advance_reference(
    state: torch.Tensor,
    fields: Fields,
    slots: torch.Tensor,
    drawn: torch.Tensor,
    end_token: int,
    results: torch.Tensor,
    buffer: torch.Tensor,
) -> None:
    """The same, row by row in plain torch."""
    column = slice(fields.column, fields.column + 1 + fields.codebooks)
    window = slice(fields.window, fields.window + fields.window_frames)
    for m, slot in enumerate(slots.tolist()):
        row = state[slot]
        ended = bool(row[fields.done]) or int(drawn[m, 0]) == end_token
        out = results[int(buffer), m]
        out[:-2] = drawn[m]
        out[-2] = int(ended)
        out[-1] = row[fields.generation]
        if ended:
            row[fields.done] = 1
            continue
        row[fields.position] += 1
        row[fields.draw] += 1
        first = bool(row[fields.first])
        row[fields.first] = 0
        row[column] = drawn[m]
        moved = torch.cat([row[window][1:], drawn[m, :1]])
        row[window] = 0 if first else moved

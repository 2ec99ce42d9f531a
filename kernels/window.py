"""The window of earlier columns that repetition-aware sampling looks back on."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .rounding import launch_options


@triton.jit
def shift_kernel(
    PREV, NEXT, W: tl.constexpr, W2: tl.constexpr, CW: tl.constexpr, CW2: tl.constexpr
):
    """grid (bs,): a program holds its row's whole window before it writes any of it."""
    row = tl.cast(tl.program_id(0), tl.int64)
    w = tl.arange(0, W2)
    c = tl.arange(0, CW2)
    inside = (w < W)[:, None] & (c < CW)[None, :]
    at = row * (W * CW) + w[:, None] * CW + c[None, :]
    moved = tl.load(PREV + at + CW, mask=inside & (w < W - 1)[:, None], other=0)
    new = tl.load(NEXT + row * CW + c, mask=c < CW, other=0)
    moved = tl.where((w == W - 1)[:, None], new[None, :], moved)
    tl.debug_barrier()
    tl.store(PREV + at, moved, mask=inside)


def prev_tokens_shift_inplace(prev: torch.Tensor, next: torch.Tensor) -> None:
    """Roll the window of earlier columns left by one and write ``next`` at its right end.

    ``prev`` int32 [bs, W, cw], ``next`` int32 [bs, cw], both contiguous on one device. Anything
    else is refused with ``TypeError`` (no tensor, other dtype) or ``ValueError`` (rank, shape,
    layout, device); nothing is ever cast, since a cast would shift a copy.
    """
    for name, tensor, rank in (("prev", prev, 3), ("next", next, 2)):
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{name} must be a tensor, is {type(tensor).__name__}")
        if tensor.dtype != torch.int32:
            raise TypeError(f"{name} must be int32, is {tensor.dtype}")
        if tensor.layout != torch.strided:
            raise ValueError(f"{name} must be strided, is {tensor.layout}")
        if tensor.dim() != rank:
            raise ValueError(f"{name} must have rank {rank}, has {tensor.dim()}")
        if not tensor.is_contiguous():
            raise ValueError(f"{name} must be contiguous, has strides {tensor.stride()}")
    bs, w, cw = prev.shape
    if w < 1:
        raise ValueError("prev must hold at least one column per row")
    if tuple(next.shape) != (bs, cw):
        raise ValueError(f"prev {list(prev.shape)} and next {list(next.shape)} do not match")
    if prev.device != next.device:
        raise ValueError(f"prev is on {prev.device}, next on {next.device}")
    if bs and cw:
        shift_kernel[(bs,)](
            prev,
            next,
            W=w,
            W2=triton.next_power_of_2(w),
            CW=cw,
            CW2=triton.next_power_of_2(cw),
            **launch_options(warps=1),
        )


def shift_reference(prev: torch.Tensor, next: torch.Tensor) -> torch.Tensor:
    """What ``prev`` becomes, int32 [bs, W, cw]."""
    return torch.cat([prev[:, 1:], next[:, None]], 1)

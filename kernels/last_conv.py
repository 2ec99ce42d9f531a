"""The last convolution of a codec, to one channel, and tanh: bound by reading its inputs once."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .rounding import launch_options


@triton.jit(do_not_specialize=["length", "a_steps", "total"])
def last_kernel(
    A, a_steps, W, BIAS, OUT, length, total, C: tl.constexpr, CB: tl.constexpr,
    TAPS: tl.constexpr, BM: tl.constexpr,
):  # fmt: skip
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    row = m // length
    first = row * a_steps + (m - row * length)
    channel = tl.arange(0, CB)
    mask = (m < total)[:, None] & (channel < C)[None, :]
    acc = tl.zeros([BM, CB], tl.float32)
    for tap in tl.static_range(TAPS):
        w = tl.load(W + tap * C + channel, mask=channel < C, other=0.0)
        a = tl.load(A + (first + tap)[:, None] * C + channel[None, :], mask=mask, other=0.0)
        acc += a.to(tl.float32) * w[None, :]
    v = tl.sum(acc, 1) + tl.load(BIAS)
    # tanh by the exponential of a value that is never positive, which cannot overflow.
    e = tl.exp(-2.0 * tl.abs(v))
    t = (1.0 - e) / (1.0 + e)
    tl.store(OUT + m, tl.where(v < 0, -t, t), mask=m < total)


def last_conv(
    a: torch.Tensor, taps: torch.Tensor, bias: torch.Tensor, length: int, out: torch.Tensor
) -> None:
    """out fp32 [rows, length] <- tanh of a convolution to one channel. ``a`` as in :func:`conv`;
    ``taps`` fp32 [taps, inputs], the oldest first; ``bias`` fp32 [1]."""
    rows, steps, c = a.shape
    if steps != taps.shape[0] - 1 + length:
        raise ValueError(f"inputs {list(a.shape)} for {taps.shape[0] - 1} + {length} steps")
    block = 32
    last_kernel[(triton.cdiv(rows * length, block),)](
        a, steps, taps, bias, out, length, rows * length,
        C=c, CB=triton.next_power_of_2(c), TAPS=taps.shape[0], BM=block,
        **launch_options(warps=4),
    )  # fmt: skip

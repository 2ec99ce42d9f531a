"""The last convolution of a codec, to one channel, and tanh.

Its inputs are wide and it has one output, so the kernel that makes an input step multiplies it with
all taps at once (``conv``'s ``tapped``) and only those products are kept: a sample is a sum along
their diagonal.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .conv import ConvWeight, prepare_conv
from .rounding import let_next_start, wait_for_previous
from .snake import codec_options

STEP = 8
"""Products that are kept of a step: room for so many taps."""


def prepare_taps(weight: torch.Tensor) -> ConvWeight:
    """``weight`` [1, inputs, taps], at most 8 taps, as 16 outputs of a step: a tap each."""
    _, inputs, taps = weight.shape
    if taps > STEP:
        raise ValueError(f"{taps} taps do not fit {STEP}")
    padded = torch.zeros(16, inputs, 1, device=weight.device)
    padded[:taps, :, 0] = weight[0].t()
    return prepare_conv(padded, None)


@triton.jit(do_not_specialize=["length", "p_steps", "total"])
def last_kernel(
    P, p_steps, BIAS, OUT, length, total,
    TAPS: tl.constexpr, STEP: tl.constexpr, BM: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    row = m // length
    first = row * p_steps + (m - row * length)
    v = tl.zeros([BM], tl.float32) + tl.load(BIAS)
    let_next_start(PDL)
    wait_for_previous(PDL)
    for tap in tl.static_range(TAPS):
        v += tl.load(P + (first + tap) * STEP + tap, mask=m < total, other=0.0)
    # tanh by the exponential of a value that is never positive, which cannot overflow.
    e = tl.exp(-2.0 * tl.abs(v))
    t = (1.0 - e) / (1.0 + e)
    t = tl.where(v < 0, -t, t)
    if OUT.dtype.element_ty == tl.int16:
        # Adding 1.5 * 2^23 rounds to a whole number.
        t = (tl.fma(t, 32767.0, 12582912.0) - 12582912.0).to(tl.int16)
    tl.store(OUT + m, t, mask=m < total)


def last_conv(
    tapped: torch.Tensor,
    taps: int,
    bias: torch.Tensor,
    length: int,
    out: torch.Tensor,
    *,
    pdl: bool = False,
) -> None:
    """out [rows, length] <- tanh of a convolution of ``taps`` taps to one channel: fp32, or int16
    up to 32,767.

    ``tapped`` fp32 [rows, taps - 1 + length, 8 or 16], contiguous: a step's products with the taps,
    the oldest first. ``bias`` fp32 [1].
    """
    rows, steps, width = tapped.shape
    if steps != taps - 1 + length or not tapped.is_contiguous():
        raise ValueError(f"products {list(tapped.shape)} for {taps - 1} + {length} steps")
    block = 256
    last_kernel[(triton.cdiv(rows * length, block),)](
        tapped, steps, bias, out, length, rows * length,
        TAPS=taps, STEP=width, BM=block, PDL=pdl, **codec_options(warps=8, pdl=pdl),
    )  # fmt: skip

"""Small device functions of a codec's layers: snake, exact GELU, and fp32 to fp16 without overflow.

Snake is ``x + sin(a x)^2 / a``; with ``a`` multiplied into the layers around it, ``u + sin(u)^2``.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .rounding import launch_options


def codec_options(*, warps: int, stages: int = 2, pdl: bool = False) -> dict[str, int | bool]:
    """Compiler options of a codec's kernels, which fuse a product with a sum where they say so.

    Left to the compiler that depends on whether both lie in one thread, so on the tile: the sums of
    squares of one row had other bits in a tile of many rows.
    """
    options = launch_options(warps=warps, stages=stages, pdl=pdl)
    return options | {"enable_fp_fusion": False} if options else options


@triton.jit
def half(v):
    """fp32 to fp16, nearest even; what is too large for fp16 becomes its largest value."""
    return tl.minimum(tl.maximum(v, -65504.0), 65504.0).to(tl.float16)


@triton.jit
def snake(u):
    """``u + sin(u)^2`` in fp32, within 1e-5 for |u| below 1e4.

    sin^2 has period pi, so the nearest multiple is taken off (in two parts, to stay exact) and a
    polynomial does the rest: far cheaper than the library's sine, and the same on every device.
    """
    # Adding 1.5 * 2^23 rounds to a whole number.
    turns = tl.fma(u, 0.3183098861837907, 12582912.0) - 12582912.0
    r = tl.fma(turns, -9.676535897932e-4, tl.fma(turns, -3.140625, u))
    q = r * r
    p = tl.fma(q, 2.7557319e-6, -0.00019841269841)
    p = tl.fma(q, p, 0.00833333333333)
    p = tl.fma(q, p, -0.16666666666667)
    s = tl.fma(r, q * p, r)
    return tl.fma(s, s, u)


@triton.jit
def gelu(v):
    return 0.5 * v * (1.0 + tl.math.erf(v * 0.7071067811865476))


@triton.jit
def silu(v):
    return v / (1.0 + tl.exp(-v))


def snake_reference(u: torch.Tensor) -> torch.Tensor:
    return u + torch.sin(u) ** 2

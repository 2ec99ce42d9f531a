"""Small device functions of a codec's layers: snake, exact GELU, and fp32 to fp16 without overflow.

Snake is ``x + sin(a x)^2 / a``; with ``a`` multiplied into the layers around it, ``u + sin(u)^2``.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl


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
    turns = (u * 0.3183098861837907 + 12582912.0) - 12582912.0
    r = (u - turns * 3.140625) - turns * 9.676535897932e-4
    q = r * r
    p = -0.00019841269841 + q * 2.7557319e-6
    p = 0.00833333333333 + q * p
    p = -0.16666666666667 + q * p
    s = r + r * (q * p)
    return u + s * s


@triton.jit
def gelu(v):
    return 0.5 * v * (1.0 + tl.math.erf(v * 0.7071067811865476))


@triton.jit
def silu(v):
    return v / (1.0 + tl.exp(-v))


def snake_reference(u: torch.Tensor) -> torch.Tensor:
    return u + torch.sin(u) ** 2

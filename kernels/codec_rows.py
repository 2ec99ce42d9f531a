"""Kernels that work on one step of a codec's latent at a time: codes to latents, RMSNorm, and the
depthwise convolution with its LayerNorm."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .conv import Steps
from .rounding import launch_options
from .snake import half


@triton.jit
def rms(x, live, eps, D: tl.constexpr):
    return x * tl.rsqrt(tl.sum(tl.where(live, x * x, 0.0), 0) / D + eps)


@triton.jit
def embed_kernel(
    CODES, TABLE, FIRST, LAST, X, Y, eps, D: tl.constexpr, DB: tl.constexpr, BOOKS: tl.constexpr
):
    m = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, DB)
    live = i < D
    x = tl.zeros([DB], tl.float32)
    for book in range(BOOKS):
        code = tl.load(CODES + m * BOOKS + book).to(tl.int64)
        entry = tl.minimum(tl.maximum(code, 0), tl.load(LAST + book)) + tl.load(FIRST + book)
        x += tl.load(TABLE + entry * D + i, mask=live, other=0.0)
    tl.store(X + m * D + i, x, mask=live)
    tl.store(Y + m * D + i, half(rms(x, live, eps, D)), mask=live)


def embed_codes(
    codes: torch.Tensor,
    table: torch.Tensor,
    first: torch.Tensor,
    last: torch.Tensor,
    x: torch.Tensor,
    y: torch.Tensor,
    eps: float,
) -> None:
    """x fp32 [M, D] <- the sum of the codes' entries; y fp16 <- its RMSNorm.

    ``codes`` int [M, books]; ``table`` fp32 [all entries, D]; ``first`` and ``last`` int64 [books],
    where a book begins in the table and its largest code: larger ones count as that.
    """
    m, books = codes.shape
    d = table.shape[1]
    embed_kernel[(m,)](
        codes, table, first, last, x, y, eps,
        D=d, DB=triton.next_power_of_2(d), BOOKS=books, **launch_options(warps=4),
    )  # fmt: skip


@triton.jit
def rms_kernel(X, W, Y, eps, D: tl.constexpr, DB: tl.constexpr, HAS_W: tl.constexpr):
    m = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, DB)
    live = i < D
    y = rms(tl.load(X + m * D + i, mask=live, other=0.0), live, eps, D)
    if HAS_W:
        y *= tl.load(W + i, mask=live, other=0.0)
    tl.store(Y + m * D + i, half(y), mask=live)


def rms_rows(x: torch.Tensor, y: torch.Tensor, eps: float, weight: torch.Tensor | None) -> None:
    """y fp16 [M, D] <- RMSNorm of x fp32 [M, D]."""
    m, d = x.shape
    rms_kernel[(m,)](
        x, x if weight is None else weight, y, eps,
        D=d, DB=triton.next_power_of_2(d), HAS_W=weight is not None, **launch_options(warps=4),
    )  # fmt: skip


@triton.jit
def depthwise_kernel(
    A, a_row, W, BIAS, SCALE, SHIFT, Y, length,
    C: tl.constexpr, CB: tl.constexpr, TAPS: tl.constexpr, EPS: tl.constexpr,
):  # fmt: skip
    m = tl.program_id(0)
    row = m // length
    i = tl.arange(0, CB)
    live = i < C
    at = A + row.to(tl.int64) * a_row + (m - row * length) * C + i
    v = tl.load(BIAS + i, mask=live, other=0.0)
    for tap in tl.static_range(TAPS):
        w = tl.load(W + tap * C + i, mask=live, other=0.0)
        v += tl.load(at + tap * C, mask=live, other=0.0).to(tl.float32) * w
    mean = tl.sum(tl.where(live, v, 0.0), 0) / C
    v = tl.where(live, v - mean, 0.0)
    v = v * tl.rsqrt(tl.sum(v * v, 0) / C + EPS)
    v = v * tl.load(SCALE + i, mask=live, other=0.0) + tl.load(SHIFT + i, mask=live, other=0.0)
    tl.store(Y + m.to(tl.int64) * C + i, half(v), mask=live)


def depthwise_norm(
    a: Steps,
    rows: int,
    length: int,
    taps: tuple[torch.Tensor, torch.Tensor],
    norm: tuple[torch.Tensor, torch.Tensor],
    y: torch.Tensor,
) -> None:
    """y fp16 [rows * length, C] <- LayerNorm (eps 1e-6) of a causal depthwise convolution.

    ``a`` fp16: from a row's first past step on. ``taps``: fp32 [k, C], the oldest first, and bias.
    """
    k, c = taps[0].shape
    depthwise_kernel[(rows * length,)](
        a.data, a.row, *taps, *norm, y, length,
        C=c, CB=triton.next_power_of_2(c), TAPS=k, EPS=1e-6, **launch_options(warps=4),
    )  # fmt: skip

"""Kernels that work on one step of a codec's latent at a time: codes to latents, and the depthwise
convolution with its LayerNorm."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .conv import Steps
from .rounding import let_next_start, wait_for_previous
from .snake import codec_options, half


@triton.jit
def embed_kernel(
    CODES, TABLE, FIRST, LAST, X, Y, SQUARES,
    D: tl.constexpr, DB: tl.constexpr, BOOKS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    m = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, DB)
    live = i < D
    let_next_start(PDL)
    wait_for_previous(PDL)
    x = tl.zeros([DB], tl.float32)
    for book in range(BOOKS):
        code = tl.load(CODES + m * BOOKS + book).to(tl.int64)
        entry = tl.minimum(tl.maximum(code, 0), tl.load(LAST + book)) + tl.load(FIRST + book)
        x += tl.load(TABLE + entry * D + i, mask=live, other=0.0)
    tl.store(X + m * D + i, x, mask=live)
    tl.store(Y + m * D + i, half(x), mask=live)
    tl.store(SQUARES + m, tl.sum(tl.where(live, x * x, 0.0), 0))


def embed_codes(
    codes: torch.Tensor,
    table: torch.Tensor,
    first: torch.Tensor,
    last: torch.Tensor,
    x: torch.Tensor,
    y: torch.Tensor,
    squares: torch.Tensor,
    *,
    pdl: bool = False,
) -> None:
    """x fp32 [M, D] and y fp16 <- the sum of the codes' entries; ``squares`` fp32 [1, M] <- the sum
    of its squares.

    ``codes`` int [M, books]; ``table`` fp32 [all entries, D]; ``first`` and ``last`` int64 [books],
    where a book begins in the table and its largest code: larger ones count as that.
    """
    m, books = codes.shape
    d = table.shape[1]
    embed_kernel[(m,)](
        codes, table, first, last, x, y, squares,
        D=d, DB=triton.next_power_of_2(d), BOOKS=books, PDL=pdl,
        **codec_options(warps=4, pdl=pdl),
    )  # fmt: skip


@triton.jit
def depthwise_kernel(
    A, a_row, W, BIAS, SCALE, SHIFT, Y, length,
    C: tl.constexpr, CB: tl.constexpr, TAPS: tl.constexpr, EPS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    m = tl.program_id(0)
    row = m // length
    i = tl.arange(0, CB)
    live = i < C
    at = A + row.to(tl.int64) * a_row + (m - row * length) * C + i
    v = tl.load(BIAS + i, mask=live, other=0.0)
    let_next_start(PDL)
    wait_for_previous(PDL)
    for tap in tl.static_range(TAPS):
        w = tl.load(W + tap * C + i, mask=live, other=0.0)
        v = tl.fma(tl.load(at + tap * C, mask=live, other=0.0).to(tl.float32), w, v)
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
    *,
    pdl: bool = False,
) -> None:
    """y fp16 [rows * length, C] <- LayerNorm (eps 1e-6) of a causal depthwise convolution.

    ``a`` fp16: from a row's first past step on. ``taps``: fp32 [k, C], the oldest first, and bias.
    """
    k, c = taps[0].shape
    depthwise_kernel[(rows * length,)](
        a.data, a.row, *taps, *norm, y, length,
        C=c, CB=triton.next_power_of_2(c), TAPS=k, EPS=1e-6, PDL=pdl,
        **codec_options(warps=4, pdl=pdl),
    )  # fmt: skip

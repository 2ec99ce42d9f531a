"""Columns to the slow stack's input: the token's row plus the rows of its codes.

A program makes 128 values of one row, so it can also leave them quantised for the first layer.
The sum is rounded to bf16 where an eager bf16 model rounds it.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .norm import NormedRows, store_normed_group
from .rounding import bf16, launch_options, let_next_start, on_bf16_grid, wait_for_previous


@triton.jit(do_not_specialize=["first", "last", "column_stride", "sc_stride", "sq_stride"])
def embed_kernel(
    COLUMNS,
    column_stride,
    SLOTS,
    TOKENS,
    CODES,
    OUT,
    WEIGHT,
    Q,
    SC,
    sc_stride,
    SQ,
    sq_stride,
    D,
    first,
    last,
    divisor,
    BOOKS: tl.constexpr,
    BOOK_SIZE: tl.constexpr,
    HAS_SLOTS: tl.constexpr,
    QUANT: tl.constexpr,
    PDL: tl.constexpr,
):
    """grid (M, D / 128)."""
    m = tl.program_id(0)
    group = tl.program_id(1)
    wait_for_previous(PDL)
    let_next_start(PDL)
    source = m
    if HAS_SLOTS:
        source = tl.load(SLOTS + m)
    column = COLUMNS + tl.cast(source, tl.int64) * column_stride
    token = tl.load(column)
    c = group * 128 + tl.arange(0, 128)
    x = tl.load(TOKENS + tl.cast(token, tl.int64) * D + c).to(tl.float32)
    if (token >= first) & (token <= last):
        codes = tl.zeros([128], tl.float32)
        for book in tl.static_range(BOOKS):
            code = tl.load(column + 1 + book)
            row = tl.cast(book * BOOK_SIZE + code, tl.int64)
            codes += tl.load(CODES + row * D + c).to(tl.float32)
        x = on_bf16_grid(on_bf16_grid(codes) + x)
        x = on_bf16_grid(tl.div_rn(x, tl.zeros_like(x) + divisor))
    tl.store(OUT + tl.cast(m, tl.int64) * D + c, bf16(x))
    if QUANT:
        row = m + tl.arange(0, 1)
        h = tl.reshape(x, [1, 128])
        store_normed_group(h, WEIGHT, Q, SC, sc_stride, SQ, sq_stride, row, row >= 0, group, D)


def embed(
    columns: torch.Tensor,
    tokens: torch.Tensor,
    codes: torch.Tensor,
    semantic: tuple[int, int],
    divisor: float,
    out: torch.Tensor,
    *,
    slots: torch.Tensor | None = None,
    norm_weight: torch.Tensor | None = None,
    normed: NormedRows | None = None,
    pdl: bool = False,
) -> None:
    """out bf16 [M, D] <- the embedding of M columns.

    ``columns`` int32 [rows, 1 + books], any row stride; row m is ``columns[slots[m]]``, or
    ``columns[m]`` without ``slots`` int32 [M]. ``tokens`` bf16 [V, D]; ``codes`` bf16
    [books * book size, D]. A token in ``semantic`` (first, last) adds its codes, and the sum is
    divided by ``divisor``. With ``normed``, also what ``norm.add_norm`` would leave there.
    """
    books = columns.shape[1] - 1
    m, d = out.shape
    embed_kernel[(m, d // 128)](
        columns,
        columns.stride(0),
        columns if slots is None else slots,
        tokens,
        codes,
        out,
        out if norm_weight is None else norm_weight,
        out if normed is None else normed.rows.values,
        out if normed is None else normed.rows.scales,
        0 if normed is None else normed.rows.scales.stride(0),
        out if normed is None else normed.squares,
        0 if normed is None else normed.squares.stride(0),
        d,
        semantic[0],
        semantic[1],
        divisor,
        BOOKS=books,
        BOOK_SIZE=codes.shape[0] // books,
        HAS_SLOTS=slots is not None,
        QUANT=normed is not None,
        PDL=pdl,
        **launch_options(warps=1, pdl=pdl),
    )


def embed_reference(
    columns: torch.Tensor,
    tokens: torch.Tensor,
    codes: torch.Tensor,
    semantic: tuple[int, int],
    divisor: float,
) -> torch.Tensor:
    """bf16 [M, D]."""
    books = columns.shape[1] - 1
    offset = torch.arange(books, device=columns.device) * (codes.shape[0] // books)
    total = codes[columns[:, 1:].long() + offset].float().sum(1).bfloat16()
    token = tokens[columns[:, 0].long()]
    both = ((total + token).float() / divisor).bfloat16()
    is_code = (columns[:, 0] >= semantic[0]) & (columns[:, 0] <= semantic[1])
    return torch.where(is_code[:, None], both, token)

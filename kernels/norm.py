"""Residual add, RMSNorm and quantisation, in two forms.

*Deferred* (between FP8 layers). RMSNorm's factor is one number a row, and the scale of a group of
128 is proportional to it, so the e4m3 values do not depend on it at all. A program therefore
handles 128 columns of a few rows and never waits for the rest of the row: it adds the partial sums
and the residual, quantises ``h * weight``, and leaves the group's sum of squares. Whoever consumes
the product multiplies by ``rms_factor``. The sums of squares are added in float64, where 16-bit
squares add without rounding, so that the layout of a reduction cannot change their bits.

*Whole* (where bf16 rows are wanted: the hidden state handed to the fast stack, the bf16 path). One
program a row, with the rounding points of an eager bf16 model.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from .quantise import ROWS_EACH, Fp8Rows
from .rounding import (
    bf16,
    launch_options,
    let_next_start,
    load_split_sum,
    on_bf16_grid,
    quantise_rows,
    wait_for_previous,
)


@dataclass(frozen=True, slots=True, eq=False)
class NormedRows:
    """Quantised ``h * weight`` and what is needed to finish the norm.

    ``squares`` fp32 [K / 128, rows]: each group's sum of ``h * h``.
    """

    rows: Fp8Rows
    squares: torch.Tensor

    @staticmethod
    def empty(rows: int, k: int, device: torch.device | str) -> NormedRows:
        return NormedRows(
            Fp8Rows.empty(rows, k, device),
            torch.zeros(k // 128, rows, dtype=torch.float32, device=device),
        )

    def narrow(self, start: int, rows: int) -> NormedRows:
        return NormedRows(self.rows.narrow(start, rows), self.squares[:, start : start + rows])


@triton.jit
def load_squares(SQ, sq_stride, rows, live, K, G: tl.constexpr):
    """fp32 [G, R]: the groups' sums of squares of ``rows``; G >= K / 128, a power of two."""
    g = tl.arange(0, G)
    return tl.load(
        SQ + g[:, None] * sq_stride + rows[None, :],
        mask=(g < K // 128)[:, None] & live[None, :],
        other=0.0,
    )


@triton.jit
def rms_factor(squares, K, eps):
    """1 / rms of each row, fp32 [R], from ``load_squares``."""
    total = tl.sum(squares.to(tl.float64), axis=0).to(tl.float32)
    return 1.0 / tl.sqrt_rn(total / K + eps)


@triton.jit
def store_normed_group(h, WEIGHT, Q, SC, sc_stride, SQ, sq_stride, rows, live, group, D):
    """Quantise ``h * weight`` of 128 columns and leave their sum of squares. h fp32 [R, 128]."""
    c = group * 128 + tl.arange(0, 128)
    w = tl.load(WEIGHT + c).to(tl.float32)
    q, scale = quantise_rows(h * w[None, :])
    tl.store(Q + rows[:, None].to(tl.int64) * D + c[None, :], q, mask=live[:, None])
    tl.store(SC + group * sc_stride + rows, scale, mask=live)
    h64 = h.to(tl.float64)
    squares = tl.sum(h64 * h64, axis=1).to(tl.float32)
    tl.store(SQ + group * sq_stride + rows, squares, mask=live)


@triton.jit
def store_normed_row(h, WEIGHT, Q, SC, sc_stride, SQ, sq_stride, row, D, G: tl.constexpr):
    """``store_normed_group`` of a whole row at once: h fp32 [G, 128], G >= D / 128."""
    g = tl.arange(0, G)
    c = g[:, None] * 128 + tl.arange(0, 128)[None, :]
    group = g < D // 128
    live = group[:, None] & (c < D)
    w = tl.load(WEIGHT + c, mask=live, other=0.0).to(tl.float32)
    q, scale = quantise_rows(h * w)
    tl.store(Q + tl.cast(row, tl.int64) * D + c, q, mask=live)
    tl.store(SC + g * sc_stride + row, scale, mask=group)
    h64 = h.to(tl.float64)
    tl.store(SQ + g * sq_stride + row, tl.sum(h64 * h64, axis=1).to(tl.float32), mask=group)


@triton.jit(do_not_specialize=["M", "sc_stride", "sq_stride"])
def add_norm_kernel(
    PART,
    RES,
    WEIGHT,
    Q,
    SC,
    sc_stride,
    SQ,
    sq_stride,
    M,
    D,
    SPLITS: tl.constexpr,
    R: tl.constexpr,
    PDL: tl.constexpr,
):
    """grid (ceil(M / R), D / 128); SPLITS 0: nothing is added to the residual."""
    rows = tl.program_id(0) * R + tl.arange(0, R)
    live = rows < M
    group = tl.program_id(1)
    at = rows[:, None].to(tl.int64) * D + group * 128 + tl.arange(0, 128)[None, :]
    # With partials, the kernel before is the product that made them: the residual is older.
    if SPLITS == 0:
        wait_for_previous(PDL)
    h = tl.load(RES + at, mask=live[:, None], other=0.0).to(tl.float32)
    if SPLITS > 0:
        wait_for_previous(PDL)
    let_next_start(PDL)
    if SPLITS > 0:
        split = tl.cast(M, tl.int64) * D
        h = on_bf16_grid(h + load_split_sum(PART + at, split, live[:, None], SPLITS))
        tl.store(RES + at, bf16(h), mask=live[:, None])
    store_normed_group(h, WEIGHT, Q, SC, sc_stride, SQ, sq_stride, rows, live, group, D)


def add_norm(
    residual: torch.Tensor,
    weight: torch.Tensor,
    out: NormedRows,
    partials: torch.Tensor | None = None,
    *,
    pdl: bool = False,
) -> None:
    """residual bf16 [M, D] += partials [S, M, D] (S 1, 2, 4 or 8; fp32 or bf16); ``out`` <- norm.

    ``weight`` bf16 [D] is that of the norm that follows the addition.
    """
    m, d = residual.shape
    add_norm_kernel[(triton.cdiv(m, ROWS_EACH), d // 128)](
        residual if partials is None else partials,
        residual,
        weight,
        out.rows.values,
        out.rows.scales,
        out.rows.scales.stride(0),
        out.squares,
        out.squares.stride(0),
        m,
        d,
        SPLITS=0 if partials is None else partials.shape[0],
        R=ROWS_EACH,
        PDL=pdl,
        **launch_options(warps=4, pdl=pdl),
    )


@triton.jit(do_not_specialize=["M"])
def whole_norm_kernel(
    PART,
    RES,
    WEIGHT,
    OUT,
    M,
    D,
    eps,
    SPLITS: tl.constexpr,
    D2: tl.constexpr,
    PDL: tl.constexpr,
):
    """grid (M,): residual add and RMSNorm of a whole row, rounded as an eager bf16 model does."""
    row = tl.program_id(0)
    c = tl.arange(0, D2)
    live = c < D
    at = tl.cast(row, tl.int64) * D + c
    w = tl.load(WEIGHT + c, mask=live, other=0.0).to(tl.float32)
    wait_for_previous(PDL)
    let_next_start(PDL)
    h = tl.load(RES + at, mask=live, other=0.0).to(tl.float32)
    if SPLITS > 0:
        split = tl.cast(M, tl.int64) * D
        h = on_bf16_grid(h + on_bf16_grid(load_split_sum(PART + at, split, live, SPLITS)))
        tl.store(RES + at, bf16(h), mask=live)
    r = 1.0 / tl.sqrt_rn(tl.sum(h * h, axis=0) / D + eps)
    tl.store(OUT + at, bf16(on_bf16_grid(h * r) * w), mask=live)


def whole_norm(
    residual: torch.Tensor,
    weight: torch.Tensor,
    out: torch.Tensor,
    eps: float,
    partials: torch.Tensor | None = None,
    *,
    pdl: bool = False,
) -> None:
    """residual bf16 [M, D] += partials [S, M, D]; out bf16 [M, D] <- RMSNorm(residual) * weight."""
    m, d = residual.shape
    whole_norm_kernel[(m,)](
        residual if partials is None else partials,
        residual,
        weight,
        out,
        m,
        d,
        eps,
        SPLITS=0 if partials is None else partials.shape[0],
        D2=triton.next_power_of_2(d),
        PDL=pdl,
        **launch_options(warps=8, pdl=pdl),
    )


def norm_reference(
    residual: torch.Tensor, weight: torch.Tensor, eps: float, delta: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """(new residual, normed rows), fp32 from fp32 or bf16 inputs, without intermediate rounding
    except the residual's own bf16."""
    h = residual.float()
    if delta is not None:
        h = (h + delta.float()).bfloat16().float()
    r = torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + eps)
    return h, h * r * weight.float()

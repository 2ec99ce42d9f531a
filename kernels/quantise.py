"""Block-scaled FP8 ("1x128 activations, 128x128 weights"): formats, preparation, quantisers.

A weight is e4m3 ``[N, K]`` row-major with fp32 scales ``[N / 128, K / 128]`` row-major. An
activation is e4m3 ``[M, K]`` row-major with fp32 scales ``[K / 128, rows]``: one line of scales for
each block of K, so that a program that holds many rows reads them together. Both scales multiply:
value = e4m3 * scale. In files scales are row-major; ``prepare`` is the one place that takes a scale
tensor in from outside, and it refuses a layout that it does not know.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from .rounding import (
    FP8,
    FP8_MAX,
    GROUP,
    launch_options,
    let_next_start,
    quantise_rows,
    wait_for_previous,
)

ROWS_EACH = 4
"""Rows of one program in row-wise kernels: one a warp."""


@dataclass(frozen=True, slots=True, eq=False)
class Fp8Weight:
    """A prepared weight. ``values`` e4m3 [N, K], ``scales`` fp32 [N / 128, K / 128], contiguous."""

    values: torch.Tensor
    scales: torch.Tensor

    @property
    def n(self) -> int:
        return self.values.shape[0]

    @property
    def k(self) -> int:
        return self.values.shape[1]


@dataclass(frozen=True, slots=True, eq=False)
class Fp8Rows:
    """A buffer of quantised rows. ``values`` e4m3 [rows, K], ``scales`` fp32 [K / 128, rows]."""

    values: torch.Tensor
    scales: torch.Tensor

    @staticmethod
    def empty(rows: int, k: int, device: torch.device | str) -> Fp8Rows:
        return Fp8Rows(
            torch.zeros(rows, k, dtype=FP8, device=device),
            torch.zeros(k // GROUP, rows, dtype=torch.float32, device=device),
        )

    def narrow(self, start: int, rows: int) -> Fp8Rows:
        """The same memory, ``rows`` rows from ``start``; scales keep their stride."""
        return Fp8Rows(self.values[start : start + rows], self.scales[:, start : start + rows])


def row_major(scales: torch.Tensor, name: str) -> torch.Tensor:
    """``scales`` [rows, columns] as a contiguous row-major tensor of the same values.

    Row-major and column-major storage are recognised by their strides; anything else (a slice, an
    expanded tensor, a view of other memory) raises ValueError.
    """
    rows, columns = scales.shape
    stride = scales.stride()
    if rows == 1 or columns == 1:
        # A single line has one order; only a gap between its elements would be wrong.
        if stride[1 if rows == 1 else 0] != 1 and scales.numel() > 1:
            raise ValueError(f"{name}: strides {stride} leave gaps in {tuple(scales.shape)}")
        return scales.contiguous()
    if stride == (columns, 1):
        return scales
    if stride == (1, rows):
        return scales.contiguous()
    raise ValueError(f"{name}: strides {stride} are neither row- nor column-major")


def prepare(values: torch.Tensor, scales: torch.Tensor, name: str = "weight") -> Fp8Weight:
    """Take in an e4m3 weight [N, K] and its fp32 scales [N / 128, K / 128].

    TypeError for a wrong dtype, ValueError for a wrong shape or a layout that is not known.
    """
    if values.dtype != FP8:
        raise TypeError(f"{name}: values are {values.dtype}, expected {FP8}")
    if scales.dtype != torch.float32:
        raise TypeError(f"{name}: scales are {scales.dtype}, expected torch.float32")
    if values.ndim != 2 or values.shape[0] % GROUP or values.shape[1] % GROUP:
        raise ValueError(f"{name}: {tuple(values.shape)} is not [N, K] in multiples of {GROUP}")
    expected = (values.shape[0] // GROUP, values.shape[1] // GROUP)
    if tuple(scales.shape) != expected:
        raise ValueError(f"{name}: scales are {tuple(scales.shape)}, expected {expected}")
    if not values.is_contiguous():
        raise ValueError(f"{name}: values have strides {values.stride()}, expected row-major")
    return Fp8Weight(values, row_major(scales, f"{name}: scales"))


def quantise_weight(weight: torch.Tensor) -> Fp8Weight:
    """bf16 or fp32 [N, K], both multiples of 128, to FP8 with the largest magnitude at 448."""
    n, k = weight.shape
    if n % GROUP or k % GROUP:
        raise ValueError(f"{(n, k)} is not in multiples of {GROUP}")
    blocks = weight.float().view(n // GROUP, GROUP, k // GROUP, GROUP)
    scales = blocks.abs().amax(dim=(1, 3)).clamp(min=1e-10) / FP8_MAX
    scaled = blocks / scales[:, None, :, None]
    return Fp8Weight(scaled.clamp(-FP8_MAX, FP8_MAX).to(FP8).view(n, k), scales.contiguous())


def dequantise_weight(weight: Fp8Weight) -> torch.Tensor:
    """fp32 [N, K]."""
    spread = weight.scales.repeat_interleave(GROUP, 0).repeat_interleave(GROUP, 1)
    return weight.values.float() * spread


def worst_block_error(
    weight: Fp8Weight, source: torch.Tensor, blocks: Iterable[tuple[int, int]]
) -> float:
    """Largest relative error of the named 128 x 128 blocks against the tensor they came from.

    About 0.03 when the scales are in place; a scale that belongs to another block shows as 0.3 and
    more wherever block magnitudes differ. For a check at load.
    """
    worst = 0.0
    for row, column in blocks:
        part = (
            slice(row * GROUP, (row + 1) * GROUP),
            slice(column * GROUP, (column + 1) * GROUP),
        )
        ours = weight.values[part].float() * weight.scales[row, column]
        theirs = source[part].float()
        worst = max(worst, float((ours - theirs).norm() / theirs.norm().clamp(min=1e-20)))
    return worst


def quantise_reference(x: torch.Tensor) -> Fp8Rows:
    """Rows [M, K] in plain torch, by the formula the kernels use."""
    m, k = x.shape
    groups = x.float().view(m, k // GROUP, GROUP)
    top = groups.abs().amax(-1).clamp(min=1e-10)
    # A scalar over a tensor would be a reciprocal and a product: another rounding.
    inverse = torch.full_like(top, FP8_MAX) / top
    scaled = (groups * inverse[..., None]).clamp(-FP8_MAX, FP8_MAX)
    return Fp8Rows(scaled.to(FP8).view(m, k), (top * (1 / FP8_MAX)).t().contiguous())


def dequantise_rows(rows: Fp8Rows) -> torch.Tensor:
    """fp32 [M, K]."""
    return rows.values.float() * rows.scales.t().repeat_interleave(GROUP, 1)


@triton.jit(do_not_specialize=["M", "sc_stride"])
def quantise_kernel(X, Q, SC, sc_stride, M, K, R: tl.constexpr, PDL: tl.constexpr):
    """grid (ceil(M / R), K / 128): bf16 [M, K] to e4m3 and scales."""
    rows = tl.program_id(0) * R + tl.arange(0, R)
    group = tl.program_id(1)
    live = rows < M
    at = rows[:, None].to(tl.int64) * K + group * 128 + tl.arange(0, 128)[None, :]
    wait_for_previous(PDL)
    let_next_start(PDL)
    x = tl.load(X + at, mask=live[:, None], other=0.0).to(tl.float32)
    q, scale = quantise_rows(x)
    tl.store(Q + at, q, mask=live[:, None])
    tl.store(SC + group * sc_stride + rows, scale, mask=live)


def quantise(x: torch.Tensor, out: Fp8Rows, *, pdl: bool = False) -> None:
    """Quantise contiguous bf16 rows [M, K] into ``out``."""
    m, k = x.shape
    quantise_kernel[(triton.cdiv(m, ROWS_EACH), k // GROUP)](
        x,
        out.values,
        out.scales,
        out.scales.stride(0),
        m,
        k,
        R=ROWS_EACH,
        PDL=pdl,
        **launch_options(warps=4, pdl=pdl),
    )

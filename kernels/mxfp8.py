"""MXFP8: e4m3 with one power-of-two scale (UE8M0) for 32 values along K. Formats and products.

Values are e4m3 ``[rows, K]``, scales uint8 ``[rows, K / 32]``, both row-major; value = e4m3 *
2 ** (scale - 127). The exponent is rounded up, so nothing saturates. Files hold scales row-major,
and ``prepare_mx`` is the one place that takes them in: it refuses layouts it does not know.

On Blackwell the product is the matrix unit's own (``native``); elsewhere it is emulated without
error: e4m3 times a power of two is a bf16.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from .quantise import row_major
from .rounding import FP8, bf16, dot, fp8, launch_options
from .swiglu import gated

BLOCK = 32
"""Values that share a scale."""


@dataclass(frozen=True, slots=True, eq=False)
class Mx:
    """e4m3 ``values`` [..., K] and uint8 ``scales`` [..., K / 32], contiguous."""

    values: torch.Tensor
    scales: torch.Tensor

    @staticmethod
    def empty(*shape: int, device: torch.device | str) -> Mx:
        return Mx(
            torch.zeros(shape, dtype=FP8, device=device),
            torch.zeros(*shape[:-1], shape[-1] // BLOCK, dtype=torch.uint8, device=device),
        )


def prepare_mx(values: torch.Tensor, scales: torch.Tensor, name: str = "weight") -> Mx:
    """Take in an e4m3 weight [N, K] with its scales.

    ``scales``: uint8 [N, K / 32], or int32 [N, K / 128] with four scales a word, lowest byte first;
    either row-major or column-major by its strides. TypeError for a wrong dtype, ValueError for a
    wrong shape or a layout that is not known.
    """
    if values.dtype != FP8:
        raise TypeError(f"{name}: values are {values.dtype}, expected {FP8}")
    if values.ndim != 2 or values.shape[0] % 128 or values.shape[1] % 128:
        raise ValueError(f"{name}: {tuple(values.shape)} is not [N, K] in multiples of 128")
    if not values.is_contiguous():
        raise ValueError(f"{name}: values have strides {values.stride()}, expected row-major")
    if scales.dtype not in (torch.uint8, torch.int32):
        raise TypeError(f"{name}: scales are {scales.dtype}, expected torch.uint8 or torch.int32")
    n, k = values.shape
    expected = (n, k // BLOCK if scales.dtype == torch.uint8 else k // 128)
    if tuple(scales.shape) != expected:
        raise ValueError(f"{name}: scales are {tuple(scales.shape)}, expected {expected}")
    return Mx(values, row_major(scales, f"{name}: scales").view(torch.uint8))


@triton.jit
def mx_quantise(x, R: tl.constexpr, C: tl.constexpr):
    """fp32 [R, C] to (e4m3 [R, C], uint8 [R, C / 32])."""
    blocks = tl.reshape(x, [R, C // 32, 32])
    top = tl.maximum(tl.max(tl.abs(blocks), axis=2), 1e-30) * (1.0 / 448.0)
    exponent = ((top.to(tl.int32, bitcast=True) + 0x7FFFFF) >> 23) & 0xFF
    exponent = tl.minimum(tl.maximum(exponent, 1), 254)
    inverse = ((254 - exponent) << 23).to(tl.float32, bitcast=True)
    q = tl.minimum(tl.maximum(blocks * inverse[:, :, None], -448.0), 448.0)
    return fp8(tl.reshape(q, [R, C])), exponent.to(tl.uint8)


@triton.jit
def mx_widen(q, scales, R: tl.constexpr, C: tl.constexpr):
    """bf16 [R, C], without error, from e4m3 [R, C] and uint8 [R, C / 32]."""
    factor = (scales.to(tl.int32) << 23).to(tl.float32, bitcast=True)
    blocks = tl.reshape(q.to(tl.float32), [R, C // 32, 32]) * factor[:, :, None]
    return bf16(tl.reshape(blocks, [R, C]))


@triton.jit
def mx_dot(
    a, a_scales, b, b_scales, acc, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
    NATIVE: tl.constexpr,
):  # fmt: skip
    """acc [M, N] + a [M, K] b [N, K]^T."""
    if NATIVE:
        acc = tl.dot_scaled(a, a_scales, "e4m3", tl.trans(b), b_scales, "e4m3", acc)
    else:
        acc += dot(mx_widen(a, a_scales, M, K), tl.trans(mx_widen(b, b_scales, N, K)))
    return acc


@triton.jit(do_not_specialize=["M"])
def mx_quantise_kernel(
    X, Q, SC, M, K, R: tl.constexpr, C: tl.constexpr, GATED: tl.constexpr
):  # fmt: skip
    """grid (ceil(M / R), K / C); GATED: X is gate | up, [M, 2 K], and silu(gate) * up is taken."""
    rows = tl.program_id(0) * R + tl.arange(0, R)
    first = tl.program_id(1) * C
    live = (rows < M)[:, None]
    row = rows[:, None].to(tl.int64)
    c = first + tl.arange(0, C)[None, :]
    if GATED:
        gate = tl.load(X + row * (2 * K) + c, mask=live, other=0.0).to(tl.float32)
        up = tl.load(X + row * (2 * K) + K + c, mask=live, other=0.0).to(tl.float32)
        x = gated(gate, up)
    else:
        x = tl.load(X + row * K + c, mask=live, other=0.0).to(tl.float32)
    q, scales = mx_quantise(x, R, C)
    tl.store(Q + row * K + c, q, mask=live)
    b = first // 32 + tl.arange(0, C // 32)[None, :]
    tl.store(SC + row * (K // 32) + b, scales, mask=live)


def quantise_mx(x: torch.Tensor, out: Mx) -> None:
    """Quantise contiguous bf16 rows [..., K], K a power of two or a multiple of 128."""
    _quantise(x, out, x.shape[-1], False)


def swiglu_mx(gate_up_rows: torch.Tensor, out: Mx) -> None:
    """out [M, I] <- silu(g) * u of bf16 rows [M, 2 I] = g | u."""
    _quantise(gate_up_rows, out, gate_up_rows.shape[-1] // 2, True)


def _quantise(x: torch.Tensor, out: Mx, k: int, gated_rows: bool) -> None:
    m = out.values.numel() // k
    width = 128 if k % 128 == 0 else k
    mx_quantise_kernel[(triton.cdiv(m, 4), k // width)](
        x, out.values, out.scales, m, k, R=4, C=width, GATED=gated_rows, **launch_options(warps=4)
    )


@triton.jit(do_not_specialize=["M"])
def mx_gemm_kernel(
    X,
    XS,
    W,
    WS,
    OUT,
    M,
    N,
    K,
    BM: tl.constexpr,
    BN: tl.constexpr,
    NATIVE: tl.constexpr,
):
    """grid (ceil(M / BM), N / BN). Rows past M re-read the last row and are dropped."""
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    safe = tl.minimum(rows, M - 1)[:, None].to(tl.int64)
    wide = columns[:, None].to(tl.int64)
    c = tl.arange(0, 128)[None, :]
    b = tl.arange(0, 4)[None, :]
    acc = tl.zeros([BM, BN], tl.float32)
    for block in tl.range(0, K // 128):
        x = tl.load(X + safe * K + block * 128 + c)
        w = tl.load(W + wide * K + block * 128 + c)
        xs = tl.load(XS + safe * (K // 32) + block * 4 + b)
        ws = tl.load(WS + wide * (K // 32) + block * 4 + b)
        acc = mx_dot(x, xs, w, ws, acc, BM, BN, 128, NATIVE)
    at = rows[:, None].to(tl.int64) * N + columns[None, :]
    tl.store(OUT + at, bf16(acc), mask=(rows < M)[:, None] & (columns < N)[None, :])


def gemm_mx(x: Mx, weight: Mx, out: torch.Tensor, *, native: bool) -> None:
    """out bf16 [M, N] <- x w^T. ``native``: with the matrix unit's own scaling (Blackwell).

    Emulated, a row has the same bits for every M: the tile of 64 rows serves them all.
    """
    m, k = x.values.shape
    n = weight.values.shape[0]
    if k != weight.values.shape[1]:
        raise ValueError(f"rows have K = {k}, the weight {weight.values.shape[1]}")
    rows = 64
    if native:
        # The instruction is the same for every tile. A widened product's is not below 64 rows.
        rows = 16 if m <= 16 else 32 if m <= 32 else 64 if m <= 64 else 128
    mx_gemm_kernel[(triton.cdiv(m, rows), n // 128)](
        x.values,
        x.scales,
        weight.values,
        weight.scales,
        out,
        m,
        n,
        k,
        BM=rows,
        BN=128,
        NATIVE=native,
        **launch_options(warps=4 if rows <= 64 else 8, stages=3 if rows <= 64 else 2),
    )


def quantise_mx_reference(x: torch.Tensor) -> Mx:
    """Rows [..., K] in plain torch, by the rule the kernels use."""
    blocks = x.float().unflatten(-1, (-1, BLOCK))
    top = blocks.abs().amax(-1).clamp(min=1e-30) * (1 / 448)
    mantissa, exponent = torch.frexp(top)
    power = torch.where(mantissa == 0.5, exponent - 1, exponent).clamp(-126, 127)
    scaled = (blocks * torch.exp2(-power.float())[..., None]).clamp(-448, 448)
    return Mx(scaled.to(FP8).flatten(-2), (power + 127).to(torch.uint8))


def dequantise_mx(x: Mx) -> torch.Tensor:
    """fp32 [..., K], exact."""
    factor = torch.exp2(x.scales.float() - 127).repeat_interleave(BLOCK, -1)
    return x.values.float() * factor

"""SwiGLU of the gate and up projections' rows, left in bf16 or quantised for the product behind it.

The activation has a launch of its own. A product with it in its epilogue holds two accumulators and
was slower at every number of rows, although it writes half as much.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .quantise import Fp8Rows
from .rounding import (
    bf16,
    launch_options,
    let_next_start,
    on_bf16_grid,
    quantise_rows,
    wait_for_previous,
)


def rows_each(rows: int) -> int:
    """Rows of one program: more where there are more programs than a device holds at a time."""
    if rows <= 16:
        return 4
    return 16 if rows <= 128 else 8


@triton.jit
def gated(gate, up):
    """silu(gate) * up with the rounding points of an eager bf16 model; fp32 in and out."""
    g = on_bf16_grid(gate)
    return on_bf16_grid(on_bf16_grid(g / (1.0 + tl.exp(-g))) * on_bf16_grid(up))


@triton.jit(do_not_specialize=["M", "osc_stride"])
def swiglu_kernel(
    X,
    OUT,
    OSC,
    osc_stride,
    M,
    I,  # noqa: E741
    R: tl.constexpr,
    QUANT: tl.constexpr,
    PDL: tl.constexpr,
):
    """grid (ceil(M / R), I / 128): X bf16 [M, 2 I]."""
    rows = tl.program_id(0) * R + tl.arange(0, R)
    group = tl.program_id(1)
    live = rows < M
    c = group * 128 + tl.arange(0, 128)
    source = X + rows[:, None].to(tl.int64) * (2 * I) + c[None, :]
    wait_for_previous(PDL)
    let_next_start(PDL)
    gate = tl.load(source, mask=live[:, None], other=0.0).to(tl.float32)
    up = tl.load(source + I, mask=live[:, None], other=0.0).to(tl.float32)
    y = gated(gate, up)
    at = rows[:, None].to(tl.int64) * I + c[None, :]
    if QUANT:
        q, scale = quantise_rows(y)
        tl.store(OUT + at, q, mask=live[:, None])
        tl.store(OSC + group * osc_stride + rows, scale, mask=live)
    else:
        tl.store(OUT + at, bf16(y), mask=live[:, None])


def swiglu(
    gate_up_rows: torch.Tensor,
    out: torch.Tensor | Fp8Rows,
    *,
    each: int | None = None,
    pdl: bool = False,
) -> None:
    """out [M, I] (bf16, or quantised) <- silu(g) * u of bf16 rows [M, 2 I] = g | u.

    ``each``: rows of one program, a power of two; None picks by M. Bits are the same.
    """
    m, inner = gate_up_rows.shape[0], gate_up_rows.shape[1] // 2
    quant = isinstance(out, Fp8Rows)
    each = rows_each(m) if each is None else each
    swiglu_kernel[(triton.cdiv(m, each), inner // 128)](
        gate_up_rows,
        out.values if isinstance(out, Fp8Rows) else out,
        out.scales if isinstance(out, Fp8Rows) else gate_up_rows,
        out.scales.stride(0) if isinstance(out, Fp8Rows) else 0,
        m,
        inner,
        R=each,
        QUANT=quant,
        PDL=pdl,
        **launch_options(warps=4, pdl=pdl),
    )


def swiglu_reference(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """fp32 rows on the bf16 grid from gate and up [M, I], rounded as an eager bf16 model does."""
    g = gate.bfloat16().float()
    return (
        (torch.nn.functional.silu(g).bfloat16().float() * up.bfloat16().float()).bfloat16().float()
    )

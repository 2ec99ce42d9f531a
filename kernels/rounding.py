"""Rounding and matrix products that give the same bits on a GPU and in Triton's interpreter.

The interpreter truncates where a GPU rounds to nearest even, and multiplies the raw bits of bf16
operands. These device functions spell the operation out in integers when interpreting and are the
plain cast on a GPU. Also here: the few idioms that every kernel family shares.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton import knobs

INTERPRETED: bool = knobs.runtime.interpret
EMULATE = tl.constexpr(INTERPRETED)

FP8 = torch.float8_e4m3fn
FP8_MAX = 448.0
GROUP = 128
"""Values that share one scale along K, and rows of a weight that share one along N."""


@triton.jit
def bf16(x):
    """fp32 to bf16, nearest even."""
    if EMULATE:
        b = x.to(tl.uint32, bitcast=True)
        b = b + 0x7FFF + ((b >> 16) & 1)
        r = (b >> 16).to(tl.uint16).to(tl.bfloat16, bitcast=True)
    else:
        r = x.to(tl.bfloat16)
    return r


@triton.jit
def on_bf16_grid(x):
    """fp32 to the nearest fp32 that bf16 can hold."""
    return bf16(x).to(tl.float32)


@triton.jit
def fp8(x):
    """fp32 within +-448 to e4m3, nearest even."""
    if EMULATE:
        b = x.to(tl.int32, bitcast=True)
        a = b & 0x7FFFFFFF
        normal = ((a + 0x7FFFF + ((a >> 20) & 1)) >> 20) - (120 << 3)
        # Adding 1.5 * 2^23 leaves a multiple of 2^-9, the spacing of e4m3 subnormals.
        subnormal = ((a.to(tl.float32, bitcast=True) * 512.0 + 12582912.0) - 12582912.0).to(
            tl.int32
        )
        r = tl.where(a < 0x3C800000, subnormal, normal) | ((b >> 24) & 0x80)
        r = r.to(tl.uint8).to(tl.float8e4nv, bitcast=True)
    else:
        r = x.to(tl.float8e4nv)
    return r


@triton.jit
def dot(a, b):
    """fp32 product of two fp8 or two bf16 tiles."""
    if EMULATE:
        # In float64 the order of the sum, which the host's BLAS picks by shape, does not show.
        wide = tl.dot(a.to(tl.float32).to(tl.float64), b.to(tl.float32).to(tl.float64))
        r = wide.to(tl.float32)
    else:
        r = tl.dot(a, b)
    return r


@triton.jit
def widen(x):
    """e4m3 to f16, exactly.

    Four at a time, and declared impure: else the compiler moves the cast behind a change of layout
    and shuffles single bytes for longer than everything else together takes.
    """
    if EMULATE:
        r = x.to(tl.float16)
    else:
        r = tl.inline_asm_elementwise(
            "{ .reg .b16 a, b; mov.b32 {a, b}, $2;"
            " cvt.rn.f16x2.e4m3x2 $0, a; cvt.rn.f16x2.e4m3x2 $1, b; }",
            "=r,=r,r",
            [x],
            dtype=tl.float16,
            is_pure=False,
            pack=4,
        )
    return r


@triton.jit
def group_scale(amax):
    """The scale of a group and its inverse, from the largest magnitude: value = e4m3 * scale."""
    top = tl.maximum(amax, 1e-10)
    return top * (1.0 / 448.0), tl.div_rn(tl.zeros_like(top) + 448.0, top)


@triton.jit
def quantise_rows(v):
    """fp32 [R, 128] to (e4m3 [R, 128], fp32 scale [R])."""
    scale, inverse = group_scale(tl.max(tl.abs(v), axis=1))
    q = tl.minimum(tl.maximum(v * inverse[:, None], -448.0), 448.0)
    return fp8(q), scale


@triton.jit
def load_split_sum(ptrs, split_stride, mask, SPLITS: tl.constexpr):
    """Sum of ``SPLITS`` (1, 2, 4 or 8) partial tiles as fp32: each four in order, then the fours.

    The order is what lets one program stand for four neighbouring splits with the same bits.
    """
    t = tl.load(ptrs, mask=mask, other=0.0).to(tl.float32)
    for j in tl.static_range(1, SPLITS if SPLITS < 4 else 4):
        t += tl.load(ptrs + j * split_stride, mask=mask, other=0.0).to(tl.float32)
    if SPLITS == 8:
        u = tl.load(ptrs + 4 * split_stride, mask=mask, other=0.0).to(tl.float32)
        for j in tl.static_range(5, 8):
            u += tl.load(ptrs + j * split_stride, mask=mask, other=0.0).to(tl.float32)
        t += u
    return t


@triton.jit
def wait_for_previous(PDL: tl.constexpr):
    """Programmatic dependent launch: block until the kernel before this one is complete."""
    if PDL:
        tl.extra.cuda.gdc_wait()


@triton.jit
def let_next_start(PDL: tl.constexpr):
    """Programmatic dependent launch: the next kernel's programs may be scheduled from here on."""
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def prefetch_lines(ptrs):
    """Ask the L2 cache for the 128-byte lines at ``ptrs``. Nothing waits for it; a GPU's alone."""
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.b32 $0, 0;",
        "=r,l",
        [ptrs],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


def launch_options(*, warps: int, stages: int = 2, pdl: bool = False) -> dict[str, int | bool]:
    """Compiler options of a launch; the interpreter takes none of them.

    Fused multiply-add is asked for by name: its default changes between versions, and bits with it.
    """
    if INTERPRETED:
        return {}
    return {
        "num_warps": warps,
        "num_stages": stages,
        "launch_pdl": pdl,
        "enable_fp_fusion": True,
    }

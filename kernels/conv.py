"""Causal convolutions of a streaming codec as implicit GEMMs: fp16 operands, fp32 sums.

Activations are channels last, ``[rows, past + length, channels]`` with ``past = (taps - 1) d``: the
steps a convolution looks back on lie in front of a row's new ones, so no program ever asks where a
step comes from. A transposed convolution of kernel 2 s is one of 2 taps to s times the channels,
read as s steps. Bias, snake, the residual sum and the snake of the *next* layer happen on the way
out; a whole residual unit is one kernel where one program holds all channels.

The order of a sum follows from the layer's tile alone (``Tile.inner``), never from rows, length or
``Tile.steps``: an output's bits are the same alone and among neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from .rounding import launch_options
from .snake import gelu, half, silu, snake, snake_reference

PLAIN, SNAKE, GELU, GLU = range(4)
_PLAIN, _SNAKE, _GELU, _GLU = (tl.constexpr(i) for i in range(4))


@dataclass(frozen=True, slots=True)
class Tile:
    """How a convolution is cut up. ``inner`` must not depend on the number of rows."""

    steps: int
    """Output steps of a program: 16, 32, 64, 128 or 256."""
    columns: int
    """Output channels of a program, a power of two..."""
    more: int = 0
    """...and a second, smaller power of two beside them, so that 192 need not become 256."""
    inner: int = 64
    """Input channels of one product."""
    warps: int = 4
    stages: int = 3
    tma: bool = True
    """Fetch inputs with the bulk copy engine where a program's steps lie in one row."""
    weight_tma: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class ConvWeight:
    """``values`` fp16 [outputs, taps * width]: for each output, tap by tap (the oldest first) the
    input channels, filled up with zeros to ``width``; ``bias`` fp32 [outputs]."""

    values: torch.Tensor
    bias: torch.Tensor
    taps: int
    dilation: int
    inputs: int
    width: int

    @property
    def outputs(self) -> int:
        return self.values.shape[0]

    @property
    def past(self) -> int:
        """Steps that lie in front of a row's new ones."""
        return (self.taps - 1) * self.dilation


def prepare_conv(weight: torch.Tensor, bias: torch.Tensor | None, dilation: int = 1) -> ConvWeight:
    """``weight`` [outputs, inputs, taps] in any float type, the oldest tap first."""
    outputs, inputs, taps = weight.shape
    grain = 32 if inputs > 16 else 16
    width = -(-inputs // grain) * grain
    values = F.pad(weight.permute(0, 2, 1), (0, width - inputs))
    if bias is None:
        bias = torch.zeros(outputs, device=weight.device)
    return ConvWeight(
        values.reshape(outputs, taps * width).half().contiguous(),
        bias.float().contiguous(),
        taps,
        dilation,
        inputs,
        width,
    )


def prepare_up(weight: torch.Tensor, bias: torch.Tensor, stride: int) -> ConvWeight:
    """A transposed convolution ``weight`` [inputs, outputs, k], k = stride or 2 stride, as a plain
    one to ``stride * outputs`` channels: step t's outputs t s .. t s + s - 1, side by side."""
    inputs, outputs, k = weight.shape
    taps = weight.reshape(inputs, outputs, k // stride, stride).permute(3, 1, 0, 2).flip(3)
    flat = taps.reshape(stride * outputs, inputs, k // stride)
    return prepare_conv(flat, bias.repeat(stride))


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """Where rows of steps lie: ``data`` is the first row's first new step, ``row`` the distance
    between rows in elements."""

    data: torch.Tensor
    row: int


@triton.jit
def load_inputs(A, first, offset, live, c, CI: tl.constexpr, BK: tl.constexpr, TMA: tl.constexpr,
                MASKED: tl.constexpr):  # fmt: skip
    """fp16 [steps, BK]: channels ``c`` onwards of the steps ``first + offset``."""
    if TMA:
        a = A.load([first + offset, c])
    else:
        channel = c + tl.arange(0, BK)
        at = (first + offset)[:, None] * CI + channel[None, :]
        if MASKED:
            a = tl.load(A + at, mask=(channel < CI)[None, :] & live[:, None], other=0.0)
        else:
            a = tl.load(A + at, mask=live[:, None], other=0.0)
    return a


@triton.jit
def load_weight(W, n0, k, N, KW, BN: tl.constexpr, BK: tl.constexpr, TMA: tl.constexpr):
    """fp16 [BK, BN]: columns k onwards of rows ``n0`` onwards, transposed."""
    if TMA:
        w = W.load([n0, k])
    else:
        n = n0 + tl.arange(0, BN)
        at = n[:, None] * KW + (k + tl.arange(0, BK))[None, :]
        w = tl.load(W + at, mask=(n < N)[:, None], other=0.0)
    return tl.trans(w)


@triton.jit
def write_part(
    v, n0, row, step, live, R, r_row, X, x_row, ALPHA, S, s_row,
    N: tl.constexpr, BN: tl.constexpr,
    HAS_R: tl.constexpr, HAS_X: tl.constexpr, HAS_S: tl.constexpr,
):  # fmt: skip
    """Add the residual, store the sum, store its snake: whichever are wanted."""
    n = n0 + tl.arange(0, BN)
    mask = live[:, None] & (n < N)[None, :]
    inside = step[:, None] * N + n[None, :]
    if HAS_R:
        v += tl.load(R + row[:, None] * r_row + inside, mask=mask, other=0.0).to(tl.float32)
    if HAS_X:
        at = X + row[:, None] * x_row + inside
        if X.dtype.element_ty == tl.float16:
            tl.store(at, half(v), mask=mask)
        else:
            tl.store(at, v, mask=mask)
    if HAS_S:
        u = v * tl.load(ALPHA + n, mask=n < N, other=0.0)[None, :]
        tl.store(S + row[:, None] * s_row + inside, half(snake(u)), mask=mask)


@triton.jit
def with_bias(acc, BIAS, n0, N, BN: tl.constexpr):
    n = n0 + tl.arange(0, BN)
    return acc + tl.load(BIAS + n, mask=n < N, other=0.0)[None, :]


@triton.jit
def load_square(W, n0, k0, N, KW, BN: tl.constexpr, BK: tl.constexpr):
    """fp16 [BK, BN] of a small weight [N, KW], transposed; zeros outside."""
    n = n0 + tl.arange(0, BN)
    k = k0 + tl.arange(0, BK)
    mask = (n < N)[None, :] & (k < KW)[:, None]
    return tl.load(W + n[None, :] * KW + k[:, None], mask=mask, other=0.0)


@triton.jit(do_not_specialize=["rows", "length", "a_steps"])
def conv_kernel(
    A, A_TAIL, a_steps, W0, W1, W0_TAIL, W1_TAIL, BIAS, W2, BIAS2,
    R, r_row, X, x_row, ALPHA, S, s_row, rows, length,
    N: tl.constexpr, CI: tl.constexpr, CP: tl.constexpr, CP2: tl.constexpr,
    TAPS: tl.constexpr, DIL: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BN1: tl.constexpr, BK: tl.constexpr, BT: tl.constexpr,
    ACT: tl.constexpr, UNIT: tl.constexpr,
    HAS_R: tl.constexpr, HAS_X: tl.constexpr, HAS_S: tl.constexpr,
    TMA: tl.constexpr, WTMA: tl.constexpr,
):  # fmt: skip
    """grid (ceil(N / columns) * ceil(rows * length / BM)); programs on the same steps are
    neighbours. GLU: ``W`` holds gates, then as many values. UNIT: a 1 x 1 convolution follows."""
    columns: tl.constexpr = BN if ACT == _GLU else BN + BN1
    across: tl.constexpr = (N + columns - 1) // columns
    n0 = (tl.program_id(0) % across) * columns
    n1 = N + n0 if ACT == _GLU else n0 + BN
    weight_rows: tl.constexpr = 2 * N if ACT == _GLU else N
    m = tl.program_id(0) // across * BM + tl.arange(0, BM)
    row = m // length
    step = m - row * length
    live = row < rows
    if TMA:
        m0 = tl.program_id(0) // across * BM
        row0 = m0 // length
        first = row0 * a_steps + (m0 - row0 * length)
    else:
        first = row * a_steps + step
    MAIN: tl.constexpr = CP // BK
    masked: tl.constexpr = CP != CI
    acc = tl.zeros([BM, BN], tl.float32)
    if BN1 > 0:
        acc1 = tl.zeros([BM, BN1], tl.float32)
    for i in tl.range(0, TAPS * MAIN):
        tap = i % TAPS
        c = i // TAPS * BK
        a = load_inputs(A, first, tap * DIL, live, c, CI, BK, TMA, masked)
        w = load_weight(W0, n0, tap * CP + c, weight_rows, TAPS * CP, BN, BK, WTMA)
        acc = tl.dot(a, w, acc)
        if BN1 > 0:
            w1 = load_weight(W1, n1, tap * CP + c, weight_rows, TAPS * CP, BN1, BK, WTMA)
            acc1 = tl.dot(a, w1, acc1)
    if BT > 0:
        for tap in tl.range(0, TAPS):
            a = load_inputs(A_TAIL, first, tap * DIL, live, MAIN * BK, CI, BT, TMA, masked)
            k = tap * CP + MAIN * BK
            w = load_weight(W0_TAIL, n0, k, weight_rows, TAPS * CP, BN, BT, WTMA)
            acc = tl.dot(a, w, acc)
            if BN1 > 0:
                w1 = load_weight(W1_TAIL, n1, k, weight_rows, TAPS * CP, BN1, BT, WTMA)
                acc1 = tl.dot(a, w1, acc1)
    acc = with_bias(acc, BIAS, n0, weight_rows, BN)
    if BN1 > 0:
        acc1 = with_bias(acc1, BIAS, n1, weight_rows, BN1)
    if ACT == _GLU:
        acc = silu(acc) * acc1
    elif ACT == _SNAKE:
        acc = snake(acc)
        if BN1 > 0:
            acc1 = snake(acc1)
    elif ACT == _GELU:
        acc = gelu(acc)
        if BN1 > 0:
            acc1 = gelu(acc1)
    if UNIT:
        h = half(acc)
        acc = tl.dot(h, load_square(W2, 0, 0, N, CP2, BN, BN))
        if BN1 > 0:
            h1 = half(acc1)
            acc = tl.dot(h1, load_square(W2, 0, BN, N, CP2, BN, BN1), acc)
            acc1 = tl.dot(h, load_square(W2, BN, 0, N, CP2, BN1, BN))
            acc1 = tl.dot(h1, load_square(W2, BN, BN, N, CP2, BN1, BN1), acc1)
            acc1 = with_bias(acc1, BIAS2, BN, N, BN1)
        acc = with_bias(acc, BIAS2, 0, N, BN)
    write_part(acc, n0, row, step, live, R, r_row, X, x_row, ALPHA, S, s_row,
               N, BN, HAS_R, HAS_X, HAS_S)  # fmt: skip
    if BN1 > 0 and ACT != _GLU:
        write_part(acc1, n1, row, step, live, R, r_row, X, x_row, ALPHA, S, s_row,
                   N, BN1, HAS_R, HAS_X, HAS_S)  # fmt: skip


def conv(
    a: torch.Tensor,
    weight: ConvWeight,
    length: int,
    tile: Tile,
    *,
    act: int = PLAIN,
    unit: ConvWeight | None = None,
    residual: Steps | None = None,
    out: Steps | None = None,
    alpha: torch.Tensor | None = None,
    snaked: Steps | None = None,
) -> None:
    """``out`` and ``snaked`` <- a causal convolution of ``a``.

    ``a`` fp16 [rows, past + length, inputs], contiguous. With ``v`` the convolution plus bias, then
    ``act`` (GLU: ``weight`` has gates, then values, and half as many columns come out), then the
    1 x 1 convolution ``unit``, then plus ``residual``: ``out`` gets v (fp16 or fp32) and ``snaked``
    fp16 the snake of ``alpha v``. Columns side by side that belong to later steps are the caller's
    reading of ``out``. ``residual`` may be ``out``.
    """
    rows, steps, inputs = a.shape
    if steps != weight.past + length or inputs != weight.inputs or not a.is_contiguous():
        raise ValueError(
            f"inputs {list(a.shape)} for {weight.past} + {length} steps of {weight.inputs}"
        )
    if a.numel() >= 2**31 or rows * length * weight.outputs >= 2**31:
        raise ValueError("more than 2^31 elements in one convolution")
    if snaked is not None and alpha is None:
        raise ValueError("snake without alpha")
    n = weight.outputs // 2 if act == GLU else weight.outputs
    columns = tile.columns if act == GLU else tile.columns + tile.more
    if act == GLU and tile.more != tile.columns:
        raise ValueError("gates and values need equal columns")
    if unit is not None and (columns < n or unit.inputs != n or unit.outputs != n):
        raise ValueError(f"a unit of {n} channels in one program of {columns} columns")
    inner = min(tile.inner, weight.width)
    tail = weight.width % inner
    tma = tile.tma and length % tile.steps == 0 and inputs % 8 == 0
    a2 = a.view(rows * steps, inputs)
    k = weight.taps * weight.width
    w2 = weight.values

    def box(data: torch.Tensor, first: int, second: int, wanted: bool) -> object:
        if not wanted or not first or not second:
            return data
        return TensorDescriptor.from_tensor(data, [first, second])

    any_bias = weight.bias
    r, x, s = residual, out, snaked
    conv_kernel[(triton.cdiv(n, columns) * triton.cdiv(rows * length, tile.steps),)](
        box(a2, tile.steps, inner, tma),
        box(a2, tile.steps, tail, tma),
        steps,
        box(w2, tile.columns, inner, tile.weight_tma),
        box(w2, tile.more, inner, tile.weight_tma),
        box(w2, tile.columns, tail, tile.weight_tma),
        box(w2, tile.more, tail, tile.weight_tma),
        weight.bias,
        w2 if unit is None else unit.values,
        any_bias if unit is None else unit.bias,
        a2 if r is None else r.data,
        0 if r is None else r.row,
        a2 if x is None else x.data,
        0 if x is None else x.row,
        any_bias if alpha is None else alpha,
        a2 if s is None else s.data,
        0 if s is None else s.row,
        rows,
        length,
        N=n,
        CI=inputs,
        CP=weight.width,
        CP2=1 if unit is None else unit.width,
        TAPS=weight.taps,
        DIL=weight.dilation,
        BM=tile.steps,
        BN=tile.columns,
        BN1=tile.more,
        BK=inner,
        BT=tail,
        ACT=act,
        UNIT=unit is not None,
        HAS_R=r is not None,
        HAS_X=x is not None,
        HAS_S=s is not None,
        TMA=tma,
        WTMA=tile.weight_tma,
        **launch_options(warps=tile.warps, stages=tile.stages),
    )
    assert k == w2.shape[1]


def conv_reference(
    a: torch.Tensor,
    weight: ConvWeight,
    *,
    act: int = PLAIN,
    unit: ConvWeight | None = None,
    residual: torch.Tensor | None = None,
) -> torch.Tensor:
    """float64 [rows, length, outputs]: what :func:`conv` gives ``out``."""
    values = weight.values.double().view(weight.outputs, weight.taps, weight.width)
    values = values[:, :, : weight.inputs].permute(0, 2, 1)
    v = F.conv1d(a.double().transpose(1, 2), values, weight.bias.double(), dilation=weight.dilation)
    v = v.transpose(1, 2)
    if act == GLU:
        gate, value = v.chunk(2, -1)
        v = F.silu(gate) * value
    elif act == SNAKE:
        v = snake_reference(v)
    elif act == GELU:
        v = F.gelu(v)
    if unit is not None:
        v = conv_reference(v.half(), unit)
    return v if residual is None else v + residual.double()

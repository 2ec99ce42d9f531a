"""Causal convolutions of a streaming codec as implicit GEMMs: fp16 operands, fp32 sums.

Activations are channels last, ``[rows, past + length, channels]`` with ``past = (taps - 1) d``: the
steps a convolution looks back on lie in front of a row's new ones, so no program ever asks where a
step comes from. A transposed convolution of kernel 2 s is one of 2 taps to s times the channels,
read as s steps. Bias, snake, the residual sum and the snake of the *next* layer happen on the way
out; a whole residual unit is one kernel where one program holds all channels.

The order of a sum follows from the weight alone (``Tile.inner`` and ``Tile.chunks`` are the same
for all its tiles), never from rows, length or ``Tile.steps``: an output's bits are the same alone
and among neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
import triton
from triton.tools.tensor_descriptor import TensorDescriptor

from .conv_kernel import GELU, GLU, HALF, NO_SECOND, PLAIN, SNAKE, SNAKED, TAPPED, conv_kernel
from .snake import codec_options, snake_reference

__all__ = [
    "GELU",
    "GLU",
    "PLAIN",
    "SNAKE",
    "ConvWeight",
    "Normed",
    "Scratch",
    "Steps",
    "Tile",
    "conv",
    "conv_reference",
    "prepare_conv",
    "prepare_up",
]


@dataclass(frozen=True, slots=True)
class Tile:
    """How a convolution is cut up. ``inner`` and ``chunks`` must not depend on the rows' number."""

    steps: int
    """Output steps of a program: 64, 128 or 256 (for fewer the matrix unit sums otherwise)."""
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
    chunks: int = 1
    """Parts of the sum over inputs and taps, each from zero, that are added in order..."""
    splits: int = 1
    """...by one program (1), or with a program for each part (``chunks``)."""
    ahead: int = 0
    """Lines of 128 bytes of each weight row to ask L2 for while the kernel before still runs: a
    power of two."""
    registers: int = 0
    """The most of a thread, so that more programs fit on a multiprocessor; 0: what they like."""


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


@dataclass(frozen=True, slots=True, eq=False)
class Normed:
    """Inputs to be scaled to a root mean square of 1: ``squares`` fp32 [groups, rows * length] are
    sums of squares over groups of channels."""

    squares: torch.Tensor
    eps: float


@dataclass(frozen=True, slots=True, eq=False)
class Scratch:
    """Where programs leave parts of sums: ``parts`` fp32; ``arrived`` int32, 0 between calls."""

    parts: torch.Tensor
    arrived: torch.Tensor

    @classmethod
    def empty(cls, device: torch.device | str, values: int, tiles: int) -> Scratch:
        return cls(
            torch.empty(values, device=device), torch.zeros(tiles, dtype=torch.int32, device=device)
        )


def _checked(
    a: torch.Tensor, weight: ConvWeight, length: int, tile: Tile, act: int, n: int, columns: int
) -> None:
    rows, steps, inputs = a.shape
    if steps != weight.past + length or inputs != weight.inputs or not a.is_contiguous():
        raise ValueError(
            f"inputs {list(a.shape)} for {weight.past} + {length} steps of {weight.inputs}"
        )
    if a.numel() >= 2**31 or rows * length * weight.outputs >= 2**31:
        raise ValueError("more than 2^31 elements in one convolution")
    if act == GLU and tile.more != tile.columns:
        raise ValueError("gates and values need equal columns")
    if tile.chunks > 1 and (weight.width % tile.inner or tile.more):
        raise ValueError("a sum in chunks takes whole products and one piece of columns")
    if weight.taps * (weight.width // tile.inner) % tile.chunks:
        raise ValueError(f"{tile.chunks} chunks of {weight.taps} x {weight.width} inputs")
    if tile.splits not in (1, tile.chunks):
        raise ValueError("a program has one chunk or all")


def conv(
    a: torch.Tensor,
    weight: ConvWeight,
    length: int,
    tile: Tile,
    *,
    act: int = PLAIN,
    normed: Normed | None = None,
    unit: ConvWeight | None = None,
    residual: Steps | None = None,
    out: Steps | None = None,
    squares: torch.Tensor | None = None,
    alpha: torch.Tensor | None = None,
    snaked: Steps | None = None,
    halved: Steps | None = None,
    taps: ConvWeight | None = None,
    tapped: Steps | None = None,
    scratch: Scratch | None = None,
    pdl: bool = False,
) -> None:
    """``out`` and one of ``snaked``, ``halved`` and ``tapped`` <- a causal convolution of ``a``.

    ``a`` fp16 [rows, past + length, inputs], contiguous, is scaled as ``normed`` says. With ``v``
    the convolution plus bias, then ``act`` (GLU: ``weight`` has gates, then values, and half as
    many columns come out), then the 1 x 1 convolution ``unit``, then plus ``residual``: ``out``
    gets v (fp16 or fp32), ``squares`` fp32 [programs across, rows * length] the sums of v^2 over a
    program's columns, ``snaked`` fp16 the snake of ``alpha v``, ``halved`` fp16 v, and ``tapped``
    fp32 [8] a step the products of that snake with ``taps`` (16 outputs, the last 8 of them left
    out). Columns side by side that belong to later steps are the caller's reading of ``out``.
    ``residual`` may be ``out``. ``scratch``: for tiles with splits.
    """
    n = weight.outputs // 2 if act == GLU else weight.outputs
    columns = tile.columns if act == GLU else tile.columns + tile.more
    _checked(a, weight, length, tile, act, n, columns)
    rows, steps, inputs = a.shape
    whole = columns >= n
    if unit is not None and not (whole and unit.inputs == unit.outputs == n):
        raise ValueError(f"a unit of {n} channels in one program of {columns} columns")
    if taps is not None and not (whole and taps.inputs == n and taps.outputs == 16):
        raise ValueError(f"taps of {n} channels in one program of {columns} columns")
    if (snaked or tapped) is not None and alpha is None:
        raise ValueError("snake without alpha")
    inner = min(tile.inner, weight.width)
    tail = weight.width % inner
    flat = rows == 1 or weight.past == 0
    tma = tile.tma and inputs % 8 == 0 and (flat or length % tile.steps == 0)
    a2 = a.view(rows * steps, inputs)
    w2 = weight.values

    def box(data: torch.Tensor, first: int, second: int, wanted: bool) -> object:
        if not wanted or not first or not second:
            return data
        return TensorDescriptor.from_tensor(data, [first, second])

    any_bias = weight.bias
    programs = triton.cdiv(n, columns) * triton.cdiv(rows * length, tile.steps)
    if tile.splits > 1 and (
        scratch is None
        or scratch.parts.numel() < programs * tile.splits * tile.steps * columns
        or scratch.arrived.numel() < programs
    ):
        raise ValueError("too little scratch for the parts of sums")
    kinds = ((SNAKED, snaked), (HALF, halved), (TAPPED, tapped))
    kind, s = next(((k, there) for k, there in kinds if there is not None), (NO_SECOND, None))
    r, x = residual, out
    options = codec_options(warps=tile.warps, stages=tile.stages, pdl=pdl)
    if options and tile.registers:
        options["maxnreg"] = tile.registers
    conv_kernel[(programs, tile.splits)](
        box(a2, tile.steps, inner, tma),
        box(a2, tile.steps, tail, tma),
        steps,
        w2,
        box(w2, tile.columns, inner, tile.weight_tma),
        box(w2, tile.more, inner, tile.weight_tma),
        box(w2, tile.columns, tail, tile.weight_tma),
        box(w2, tile.more, tail, tile.weight_tma),
        any_bias,
        w2 if unit is None else unit.values,
        any_bias if unit is None else unit.bias,
        any_bias if normed is None else normed.squares,
        0.0 if normed is None else normed.eps,
        a2 if r is None else r.data,
        0 if r is None else r.row,
        a2 if x is None else x.data,
        0 if x is None else x.row,
        any_bias if squares is None else squares,
        any_bias if alpha is None else alpha,
        a2 if s is None else s.data,
        0 if s is None else s.row,
        w2 if taps is None else taps.values,
        any_bias if scratch is None else scratch.parts,
        any_bias if scratch is None else scratch.arrived,
        rows,
        length,
        N=n,
        CI=inputs,
        CP=weight.width,
        CP2=1 if unit is None else unit.width,
        CP3=1 if taps is None else taps.width,
        TAPS=weight.taps,
        DIL=weight.dilation,
        BM=tile.steps,
        BN=tile.columns,
        BN1=tile.more,
        BK=inner,
        BT=tail,
        CHUNKS=tile.chunks,
        SPLITS=tile.splits,
        AHEAD=tile.ahead if pdl and inner % 64 == 0 else 0,
        GROUPS=0 if normed is None else normed.squares.shape[0],
        ACT=act,
        UNIT=unit is not None,
        HAS_R=r is not None,
        HAS_X=x is not None,
        HAS_SQUARES=squares is not None,
        KIND=kind,
        TMA=tma,
        WTMA=tile.weight_tma,
        PDL=pdl,
        **options,
    )


def conv_reference(
    a: torch.Tensor,
    weight: ConvWeight,
    *,
    act: int = PLAIN,
    normed: bool = False,
    unit: ConvWeight | None = None,
    residual: torch.Tensor | None = None,
) -> torch.Tensor:
    """float64 [rows, length, outputs]: what :func:`conv` gives ``out``."""
    values = weight.values.double().view(weight.outputs, weight.taps, weight.width)
    values = values[:, :, : weight.inputs].permute(0, 2, 1)
    x = a.double()
    if normed:
        x = x * torch.rsqrt((x * x).mean(-1, keepdim=True))
    v = F.conv1d(x.transpose(1, 2), values, weight.bias.double(), dilation=weight.dilation)
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

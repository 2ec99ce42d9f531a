"""The convolutional parts of the codec, each able to continue where its last call stopped.

Activations are float32 [B, T, C], channels last: there a transposed convolution is a plain one
followed by a free reshape, one frame's channels are contiguous, and oneDNN needs no reordering.
Owns the arithmetic and which tail each layer keeps (``state.py`` owns the memory). Everything is
causal: an output never depends on later input, so any cut of the input gives the same output.

Snake is ``x + sin(a x)^2 / a``. With ``u = a x`` it is ``(u + sin(u)^2) / a``, so each layer before
a snake has ``a`` multiplied into its weights where it can, and each layer after it divides by ``a``
in its weights: what runs is ``u + sin(u)^2`` alone. (The reference adds 1e-9 to the divisor, which
changes the result by less than 1e-9 x^2.)
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .state import StatePlan, Step

# oneDNN with weights laid out once instead of at every call: two to three times faster at the
# sizes of one frame, and a row's bits do not depend on how many rows or threads there are (those of
# F.linear do). Private to torch (its compiler uses them), hence looked up with care.
_PACK = getattr(torch.ops.mkldnn, "_reorder_convolution_weight", None)
_PACKED = getattr(torch.ops.mkldnn, "_convolution_pointwise", None)
_PACKED_ADD = getattr(torch.ops.mkldnn, "_convolution_pointwise_", None)
_PACK_LINEAR = getattr(torch.ops.mkldnn, "_reorder_linear_weight", None)
_PACKED_LINEAR = getattr(torch.ops.mkldnn, "_linear_pointwise", None)


def can_pack(device: torch.device) -> bool:
    """Whether layers on ``device`` run with prepacked weights."""
    operators = (_PACK, _PACKED, _PACKED_ADD, _PACK_LINEAR, _PACKED_LINEAR)
    return device.type == "cpu" and torch.backends.mkldnn.is_available() and None not in operators


class Linear:
    """[..., I] -> [..., O]."""

    def __init__(
        self, weight: Tensor, bias: Tensor | None = None, *, packed: bool | None = None
    ) -> None:
        """``weight`` [O, I], ``bias`` [O]. ``packed``: None chooses by device."""
        self._weight, self._bias = weight.contiguous(), bias
        self._packed = can_pack(weight.device) if packed is None else packed
        if self._packed:
            self._weight = _PACK_LINEAR(self._weight, 8)

    def __call__(self, x: Tensor) -> Tensor:
        if self._packed:
            return _PACKED_LINEAR(x, self._weight, self._bias, "none", [], "")
        return F.linear(x, self._weight, self._bias)


class Conv:
    """A convolution without padding: [B, L, I] -> [B, (L - (k - 1) d - 1) // stride + 1, O]."""

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor,
        *,
        stride: int = 1,
        dilation: int = 1,
        groups: int = 1,
        packed: bool | None = None,
    ) -> None:
        """``weight`` [O, I / groups, k], ``bias`` [O]. ``packed``: None chooses by device."""
        out, inner, k = weight.shape
        self.inputs, self.outputs, self.kernel = inner * groups, out, k
        self.stride, self.dilation, self._groups = stride, dilation, groups
        self.bias = bias.contiguous()
        self.weight = weight.unsqueeze(2).contiguous(memory_format=torch.channels_last)
        self.packed = can_pack(weight.device) if packed is None else packed
        if self.packed:
            reach = (k - 1) * dilation + 1
            shape = [1, self.inputs, 1, reach + 63 * stride]
            self.weight = _PACK(self.weight, [0, 0], [1, stride], [1, dilation], groups, shape)

    def __call__(self, x: Tensor) -> Tensor:
        x4 = _as_image(x)
        if self.packed:
            y4 = _PACKED(
                x4,
                self.weight,
                self.bias,
                [0, 0],
                [1, self.stride],
                [1, self.dilation],
                self._groups,
                "none",
                [],
                "",
            )
        else:
            y4 = F.conv2d(
                x4,
                self.weight,
                self.bias,
                stride=(1, self.stride),
                dilation=(1, self.dilation),
                groups=self._groups,
            )
        return _as_sequence(y4)

    def cast(self, dtype: torch.dtype) -> None:
        """Compute in ``dtype`` from here on. Not for packed weights."""
        assert not self.packed
        self.weight, self.bias = self.weight.to(dtype), self.bias.to(dtype)

    def add_to(self, total: Tensor, x: Tensor) -> Tensor:
        """``total`` [B, L, O] plus the convolution of ``x``, in place."""
        if not self.packed:
            return total.add_(self(x))
        _PACKED_ADD.binary(
            _as_image(total),
            _as_image(x),
            self.weight,
            self.bias,
            [0, 0],
            [1, self.stride],
            [1, self.dilation],
            self._groups,
            "add",
            1.0,
            None,
            [],
            None,
        )
        return total


def _as_image(x: Tensor) -> Tensor:
    """[B, L, C] contiguous as [B, C, 1, L] in channels-last layout, without a copy."""
    b, length, c = x.shape
    return x.as_strided((b, c, 1, length), (length * c, 1, length * c, c))


def _as_sequence(y: Tensor) -> Tensor:
    """[B, C, 1, L] back to [B, L, C] contiguous; copies only if the layout was another one."""
    return y.squeeze(2).transpose(1, 2).contiguous()


class CausalConv:
    """A convolution that sees ``(k - 1) d + 1 - stride`` inputs of the past.

    Input lengths must be multiples of ``stride``.
    """

    def __init__(self, conv: Conv, plan: StatePlan) -> None:
        self._conv = conv
        past = (conv.kernel - 1) * conv.dilation + 1 - conv.stride
        self._tail = plan.tail(past, conv.inputs) if past else None

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        tail = self._tail
        if tail is None:
            return self._conv(x)
        x = torch.cat((tail.of(step.before).to(x.dtype), x), 1)
        tail.of(step.after).copy_(x[:, x.shape[1] - tail.rows :])
        return self._conv(x)

    def cast(self, dtype: torch.dtype) -> None:
        """See :meth:`Conv.cast`; what is kept between calls stays float32."""
        self._conv.cast(dtype)


class UpConv:
    """A causal transposed convolution, kernel ``stride`` or ``2 stride``: [B, T, I] -> [B, sT, O].

    Output ``t s + r`` is ``W[r] x[t] + W[s + r] x[t - 1]``: a convolution of kernel 1 or 2 to
    ``s O`` channels, which channels-last layout lets us read as ``s`` steps of ``O``.
    """

    def __init__(self, weight: Tensor, bias: Tensor, stride: int, plan: StatePlan) -> None:
        """``weight`` [I, O, k] as a transposed convolution has it, ``bias`` [O]."""
        inputs, self._outputs, k = weight.shape
        taps = weight.reshape(inputs, self._outputs, k // stride, stride)
        # [s, O, I, taps], the oldest input first.
        taps = taps.permute(3, 1, 0, 2).flip(3)
        flat = taps.reshape(stride * self._outputs, inputs, k // stride).contiguous()
        bias = bias.repeat(stride)
        self._conv = CausalConv(Conv(flat, bias), plan) if k > stride else None
        self._linear = Linear(flat[:, :, 0], bias)

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        y = self._conv(x, step) if self._conv else self._linear(x)
        return y.reshape(x.shape[0], -1, self._outputs)

    def cast(self, dtype: torch.dtype) -> None:
        """See :meth:`Conv.cast`."""
        assert self._conv is not None
        self._conv.cast(dtype)


def safe_alpha(alpha: Tensor) -> Tensor:
    """Snake's ``alpha`` [1, C, 1] as [C], kept away from zero so that one can divide by it."""
    alpha = alpha.reshape(-1)
    tiny = torch.full_like(alpha, 1e-12)
    return torch.where(alpha.abs() < 1e-12, tiny, alpha)


def snake_(u: Tensor) -> Tensor:
    """``u + sin(u)^2`` in place; see the module docstring for where ``alpha`` went."""
    s = torch.sin(u)
    return u.addcmul_(s, s)


class ResidualUnit:
    """snake, kernel 7 with dilation, snake, kernel 1, plus the input. Overwrites its input."""

    def __init__(
        self,
        alpha_in: Tensor,
        wide: tuple[Tensor, Tensor],
        alpha_mid: Tensor,
        narrow: tuple[Tensor, Tensor],
        dilation: int,
        plan: StatePlan,
    ) -> None:
        self._alpha, mid = safe_alpha(alpha_in), safe_alpha(alpha_mid)
        weight = wide[0] * mid[:, None, None] / self._alpha[None, :, None]
        self._wide = CausalConv(Conv(weight, wide[1] * mid, dilation=dilation), plan)
        self._narrow = Conv(narrow[0] / mid[None, :, None], narrow[1])

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        u = snake_(x * self._alpha)
        return self._narrow.add_to(x, snake_(self._wide(u, step)))

    def cast(self, dtype: torch.dtype) -> None:
        """See :meth:`Conv.cast`."""
        self._alpha = self._alpha.to(dtype)
        self._wide.cast(dtype)
        self._narrow.cast(dtype)


class ConvNeXt:
    """Depthwise kernel 7, LayerNorm, C -> 4C -> C with GELU, scaled, plus the input."""

    def __init__(
        self,
        depthwise: tuple[Tensor, Tensor],
        norm: tuple[Tensor, Tensor],
        widen: tuple[Tensor, Tensor],
        narrow: tuple[Tensor, Tensor],
        gamma: Tensor,
        plan: StatePlan,
    ) -> None:
        self._depthwise = CausalConv(Conv(*depthwise, groups=depthwise[0].shape[0]), plan)
        self._norm, self._widen = norm, Linear(*widen)
        self._narrow = Linear(narrow[0] * gamma[:, None], narrow[1] * gamma)

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        y = self._depthwise(x, step)
        y = F.layer_norm(y, (y.shape[-1],), *self._norm, eps=1e-6)
        return self._narrow(F.gelu(self._widen(y))).add_(x)

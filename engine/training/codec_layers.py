"""The layers of the codec as it is trained, with parameters under the names of ``codec.pth``.

All causal, on [B, channels, T]. The rotary tables here are those of the DualAR as well.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from ..codec.config import WindowShape

MAX_STEPS = 8192
_LENGTH = ".parametrizations.weight.original0"
_DIRECTION = ".parametrizations.weight.original1"


def snake(x: Tensor, alpha: Tensor) -> Tensor:
    """``x`` [B, C, T] bent by waves of a frequency for each channel, ``alpha`` [1, C, 1]."""
    alpha = alpha.to(x.dtype)
    return x + torch.sin(alpha * x).square() / (alpha + 1e-9)


class Snake(nn.Module):
    """:func:`snake`. ``fused``: what computes it in training, where every call is of the same
    few shapes; whole utterances, which are of any length, are left to the plain function."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.ones(1, channels, 1))
        self.fused: Callable[[Tensor, Tensor], Tensor] | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.fused is None or not torch.is_grad_enabled():
            return snake(x, self.alpha)
        return self.fused(x, self.alpha)


class CausalConv(nn.Module):
    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: int,
        *,
        dilation: int = 1,
        stride: int = 1,
        groups: int = 1,
        normed: bool = True,
    ) -> None:
        super().__init__()
        conv = nn.Conv1d(inputs, outputs, kernel, stride, dilation=dilation, groups=groups)
        spread = 0.5 / math.sqrt(inputs // groups * kernel) if normed else 0.02
        nn.init.trunc_normal_(conv.weight, std=spread)
        nn.init.zeros_(conv.bias)
        self.conv = weight_norm(conv) if normed else conv
        self._left, self._stride = (kernel - 1) * dilation + 1 - stride, stride

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(F.pad(x, (self._left, -x.shape[-1] % self._stride)))


class CausalUpConv(nn.Module):
    def __init__(
        self, inputs: int, outputs: int, kernel: int, stride: int, normed: bool = True
    ) -> None:
        super().__init__()
        conv = nn.ConvTranspose1d(inputs, outputs, kernel, stride)
        nn.init.trunc_normal_(conv.weight, std=0.5 / math.sqrt(inputs * kernel / stride))
        nn.init.zeros_(conv.bias)
        self.conv = weight_norm(conv) if normed else conv
        self._stride = stride

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x)[..., : x.shape[-1] * self._stride]


class ResidualUnit(nn.Module):
    def __init__(self, channels: int, dilation: int) -> None:
        super().__init__()
        self.block = nn.Sequential(
            Snake(channels),
            CausalConv(channels, channels, 7, dilation=dilation),
            Snake(channels),
            CausalConv(channels, channels, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.block(x)


def units(channels: int) -> list[nn.Module]:
    return [ResidualUnit(channels, dilation) for dilation in (1, 3, 9)]


class Block(nn.Module):
    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.block = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return self.block(x)


class RMSNorm(nn.Module):
    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self._eps = eps

    def forward(self, x: Tensor) -> Tensor:
        y = x.float()
        y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + self._eps)
        return y.type_as(x) * self.weight.type_as(x)


def rope_table(positions: int, head_dim: int, base: float) -> Tensor:
    """cos and sin [positions, head_dim / 2, 2], rounded to bfloat16 as every loader rounds them."""
    frequencies = 1.0 / base ** (torch.arange(0, head_dim, 2).float() / head_dim)
    angles = torch.outer(torch.arange(positions).float(), frequencies)
    return torch.stack([angles.cos(), angles.sin()], -1).bfloat16().float()


def rotate(x: Tensor, turns: Tensor) -> Tensor:
    """Interleaved pairs: ``x`` [B, T, heads, dim], ``turns`` [B or 1, T, 1, dim / 2, 2]."""
    a, b = x.float().unflatten(-1, (-1, 2)).unbind(-1)
    cos, sin = turns.unbind(-1)
    return torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2).type_as(x)


class FeedForward(nn.Module):
    def __init__(self, dim: int, inner: int) -> None:
        super().__init__()
        self.w1 = nn.Linear(dim, inner, bias=False)
        self.w3 = nn.Linear(dim, inner, bias=False)
        self.w2 = nn.Linear(inner, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class _Scale(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(0.1 * torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma.type_as(x)


class _Attention(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.wqkv = nn.Linear(dim, 3 * dim, bias=False)
        self.wo = nn.Linear(dim, dim, bias=False)
        self._heads = heads

    def forward(self, x: Tensor, turns: Tensor, seen: Tensor) -> Tensor:
        query, key, value = self.wqkv(x).unflatten(-1, (3, self._heads, -1)).unbind(2)
        query, key = rotate(query, turns), rotate(key, turns)
        mixed = F.scaled_dot_product_attention(
            query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), attn_mask=seen
        )
        return self.wo(mixed.transpose(1, 2).flatten(2))


class _Layer(nn.Module):
    def __init__(self, shape: WindowShape) -> None:
        super().__init__()
        self.attention = _Attention(shape.dim, shape.heads)
        self.feed_forward = FeedForward(shape.dim, shape.intermediate)
        self.attention_norm = RMSNorm(shape.dim, shape.norm_eps)
        self.ffn_norm = RMSNorm(shape.dim, shape.norm_eps)
        self.attention_layer_scale = _Scale(shape.dim)
        self.ffn_layer_scale = _Scale(shape.dim)

    def forward(self, x: Tensor, turns: Tensor, seen: Tensor) -> Tensor:
        x = x + self.attention_layer_scale(self.attention(self.attention_norm(x), turns, seen))
        return x + self.ffn_layer_scale(self.feed_forward(self.ffn_norm(x)))


class WindowTransformer(nn.Module):
    """[B, C, T] -> [B, C, T]; a step sees the last ``window`` steps."""

    def __init__(self, shape: WindowShape) -> None:
        super().__init__()
        self.layers = nn.ModuleList(_Layer(shape) for _ in range(shape.layers))
        self.norm = RMSNorm(shape.dim, shape.norm_eps)
        table = rope_table(MAX_STEPS, shape.head_dim, shape.rope_base)
        self.register_buffer("turns", table[None, :, None], persistent=False)
        self._window = shape.window

    def forward(self, x: Tensor) -> Tensor:
        x = x.transpose(1, 2)
        step = torch.arange(x.shape[1], device=x.device)
        seen = (step[None] <= step[:, None]) & (step[None] > step[:, None] - self._window)
        for layer in self.layers:
            x = layer(x, self.turns[:, : x.shape[1]], seen)
        return self.norm(x).transpose(1, 2)


class ConvNeXt(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dwconv = CausalConv(dim, dim, 7, groups=dim, normed=False)
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        self.pwconv1 = nn.Linear(dim, 4 * dim)
        self.pwconv2 = nn.Linear(4 * dim, dim)
        self.gamma = nn.Parameter(0.1 * torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.dwconv(x).transpose(1, 2))
        y = self.pwconv2(F.gelu(self.pwconv1(y)))
        return x + (self.gamma.type_as(y) * y).transpose(1, 2)


def normed(weights: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """An export's tensors under the names of ``own``, in float32. Weights that were exported
    folded are taken apart into direction and length; older names of these two are known."""
    found = {
        key.replace(".weight_g", _LENGTH).replace(".weight_v", _DIRECTION): value.float()
        for key, value in weights.items()
    }
    for key in [key for key in own if key.endswith(_LENGTH) and key not in found]:
        name = key.removesuffix(_LENGTH)
        folded = found.pop(f"{name}.weight")
        found[key] = folded.flatten(1).norm(dim=1).view(own[key].shape)
        found[name + _DIRECTION] = folded
    return found

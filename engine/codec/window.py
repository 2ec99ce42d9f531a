"""The codec's transformers, whose queries see a bounded window of the past.

Owns attention over a ring of keys and values plus the new steps, and the rotary positions.
Positions are absolute from the stream's start and have no upper end: the cosines are computed for
the positions of the call, in double precision from single-precision angles and then rounded to
bfloat16, which gives the values of the reference's table at every position. (A stream that
restarted its positions would differ from one that did not, because of that rounding.)
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from .config import WindowShape
from .layers import Linear
from .state import StatePlan, Step


@dataclass(frozen=True, slots=True)
class BlockWeights:
    """As on disk: ``wqkv`` [3 dim, dim] (q, k, v), ``wo`` [dim, dim], ``w1``/``w3`` [ffn, dim],
    ``w2`` [dim, ffn], norms and scales [dim]."""

    wqkv: Tensor
    wo: Tensor
    w1: Tensor
    w2: Tensor
    w3: Tensor
    attention_norm: Tensor
    ffn_norm: Tensor
    attention_scale: Tensor
    ffn_scale: Tensor


class WindowTransformer:
    """[B, T, dim] -> [B, T, dim], ``steps_per_frame`` steps for each frame of ``Step.position``."""

    def __init__(
        self,
        shape: WindowShape,
        blocks: list[BlockWeights],
        norm: Tensor,
        steps_per_frame: int,
        plan: StatePlan,
    ) -> None:
        self._shape, self._steps_per_frame = shape, steps_per_frame
        self._ring = plan.ring(shape.layers, shape.window, shape.dim)
        self._blocks = [_Block(shape, weights) for weights in blocks]
        self._norm = norm
        exponent = torch.arange(0, shape.head_dim, 2, device=norm.device).float() / shape.head_dim
        self._frequency = 1.0 / (shape.rope_base**exponent)
        self._slot = torch.arange(shape.window, device=norm.device)

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        steps = x.shape[1]
        window = self._shape.window
        first = step.position[:, None] * self._steps_per_frame
        position = first + torch.arange(steps, device=x.device)
        # The ring's entry j holds the latest position before the call that is j modulo the window.
        held = first - 1 - torch.remainder(first - 1 - self._slot, window)
        keys = torch.cat((held, position), 1)[:, None, None, :]
        query = position[:, None, :, None]
        seen = (keys >= 0) & (keys <= query) & (keys > query - window)
        turn = self._rotation(position)
        kept = min(steps, window)
        row = step.slots[:, None] * window + torch.remainder(position[:, steps - kept :], window)
        ring = step.rings[self._ring.index]
        for layer, block in enumerate(self._blocks):
            x = block(x, ring[layer], step.slots, row.flatten(), kept, turn, seen)
        return F.rms_norm(x, (x.shape[-1],), self._norm, self._shape.norm_eps)

    def _rotation(self, position: Tensor) -> Tensor:
        """complex64 [B, T, 1, head_dim / 2]."""
        angle = (position[..., None].float() * self._frequency).double()
        cos, sin = angle.cos().bfloat16().float(), angle.sin().bfloat16().float()
        return torch.complex(cos, sin)[:, :, None]


class _Block:
    """One layer, with the norms' weights and the layer scales multiplied into the matrices."""

    def __init__(self, shape: WindowShape, w: BlockWeights) -> None:
        self._heads, self._eps = shape.heads, shape.norm_eps
        self._wqkv = Linear(w.wqkv * w.attention_norm)
        self._wo = Linear(w.wo * w.attention_scale[:, None])
        self._w13 = Linear(torch.cat((w.w1, w.w3)) * w.ffn_norm)
        self._w2 = Linear(w.w2 * w.ffn_scale[:, None])

    def __call__(
        self,
        x: Tensor,
        ring: Tensor,
        slots: Tensor,
        row: Tensor,
        kept: int,
        turn: Tensor,
        seen: Tensor,
    ) -> Tensor:
        b, steps, dim = x.shape
        window = ring.shape[2]
        qkv = self._wqkv(F.rms_norm(x, (dim,), None, self._eps))
        qkv = qkv.view(b, steps, 3, self._heads, -1)
        pairs = torch.view_as_complex(qkv[:, :, :2].unflatten(-1, (-1, 2)))
        qk = torch.view_as_real(pairs * turn[:, :, None]).flatten(-2)
        query, key = qk[:, :, 0], qk[:, :, 1].reshape(b, steps, dim)
        value = qkv[:, :, 2].reshape(b, steps, dim)
        old = ring.index_select(1, slots)
        keys = torch.cat((old[0], key), 1).view(b, window + steps, self._heads, -1)
        values = torch.cat((old[1], value), 1).view(b, window + steps, self._heads, -1)
        for held, new in ((ring[0], key), (ring[1], value)):
            recent = new[:, steps - kept :].reshape(-1, dim)
            held.view(-1, dim).index_copy_(0, row, recent)
        mixed = F.scaled_dot_product_attention(
            query.transpose(1, 2), keys.transpose(1, 2), values.transpose(1, 2), attn_mask=seen
        )
        x = self._wo(mixed.transpose(1, 2).reshape(b, steps, dim)).add_(x)
        gate, up = self._w13(F.rms_norm(x, (dim,), None, self._eps)).chunk(2, -1)
        return self._w2(F.silu(gate).mul_(up)).add_(x)

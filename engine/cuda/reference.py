"""The device's model in plain torch: what its kernels compute, with nothing clever about it.

Owns the arithmetic of a decode in the dtype that the weights are in, with the roundings of
``stack.py`` and its kernels in place and every product exact (float64). Kernel by kernel a device
differs from it by the order in which a product is added. Through a whole quantised model that is
enough to move logits as far as quantisation itself did, since each rounding that falls the other
way moves others: compare shares and distances, not bits.

For tests and gates: a whole stream is one call per stack, at no speed. Knows nothing of slots,
pages or threads. CPU or GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.kernels.embedding import embed_reference
from shoal.kernels.heads import heads_reference
from shoal.kernels.kv import quantise_heads
from shoal.kernels.mxfp8 import Mx, dequantise_mx, quantise_mx_reference
from shoal.kernels.pages import Heads, fp8_attention_reference
from shoal.kernels.quantise import (
    Fp8Weight,
    dequantise_rows,
    dequantise_weight,
    quantise_reference,
)
from shoal.kernels.swiglu import swiglu_reference

from .kv_pool import KvDtype
from .product import Product
from .weights import CudaWeights, StackWeights

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""(layer, queries [B, T, heads, dim], keys, values [B, T, kv heads, dim]) -> output like queries,
not rounded."""


@dataclass(frozen=True, slots=True, eq=False)
class Logits:
    """fp32, on the bf16 grid, of F frames. A token is judged by the row that it was drawn from."""

    slow: Tensor
    """[F, codebook_size + 1]: every code of the first codebook, then the end token."""
    fast: Tensor
    """[F, codebooks - 1, codebook_size]."""


class Context:
    """One stream: its keys and values so far, bf16 [positions, kv heads, dim] per layer, before
    they are quantised to ``kv_dtype``."""

    def __init__(self, weights: CudaWeights, kv_dtype: KvDtype = "bf16") -> None:
        self._weights = weights
        self._kv_dtype = kv_dtype
        self._positions = 0
        self._keys: list[Tensor | None] = [None] * len(weights.slow.layers)
        self._values: list[Tensor | None] = [None] * len(weights.slow.layers)

    @property
    def kept(self) -> list[tuple[Tensor, Tensor]]:
        """Keys and values of each layer so far, bf16 [positions, kv heads, dim]; of a context that
        has been fed."""
        pairs = zip(self._keys, self._values, strict=True)
        return [(k, v) for k, v in pairs if k is not None and v is not None]

    def prefill(self, columns: Tensor) -> None:
        """Take in ``columns`` int32 [T, 1 + codebooks] of the prompt, in bf16 as on the device."""
        self._run(self._weights.prefill, columns)

    def frames(self, columns: Tensor, drawn: Tensor) -> Logits:
        """Feed ``columns`` int32 [F, 1 + codebooks] and return the logits behind each of them.

        ``drawn`` int64 [F, codebooks - 1]: codes 0 .. codebooks - 2 of the frame that each column
        led to, which is what the fast stack is fed.
        """
        weights = self._weights
        h, normed = self._run(weights.slow, columns)
        source = normed if weights.norm_fast_input else h
        return Logits(self._slow(normed), self._fast(source, drawn))

    def greedy(self, column: Tensor, frames: int) -> Tensor:
        """int32 [frames, 1 + codebooks]: what greedy decoding draws after ``column``. Stops behind
        the end token."""
        weights = self._weights
        drawn: list[Tensor] = []
        for _ in range(frames):
            h, normed = self._run(weights.slow, column.unsqueeze(0))
            token = int(self._slow(normed).argmax())
            ended = token == weights.codebook_size
            frame = [0 if ended else token]
            source = normed if weights.norm_fast_input else h
            for _book in range(1, weights.codebooks):
                so_far = torch.tensor([frame], device=column.device)
                frame.append(int(self._fast(source, so_far)[0, -1].argmax()))
            first = weights.end_token if ended else weights.semantic_begin + token
            column = torch.tensor([first, *frame], dtype=torch.int32, device=column.device)
            drawn.append(column)
            if ended:
                break
        return torch.stack(drawn)

    def _run(self, stack: StackWeights, columns: Tensor) -> tuple[Tensor, Tensor]:
        weights = self._weights
        semantic = (weights.semantic_begin, weights.semantic_begin + weights.codebook_size - 1)
        tables = (weights.embeddings, weights.codebook_embeddings)
        x = embed_reference(columns, *tables, semantic, weights.embedding_scale)
        start = self._positions
        positions = torch.arange(start, start + len(columns), device=x.device)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keys, values = self._keys[layer], self._values[layer]
            keys = k[0] if keys is None else torch.cat([keys, k[0]])
            values = v[0] if values is None else torch.cat([values, v[0]])
            self._keys[layer], self._values[layer] = keys, values
            if self._kv_dtype == "fp8":
                kept = quantise_heads(keys), quantise_heads(values)
                return fp8_attention_reference(q[0], *kept, start)[None]
            return _attention(q, keys[None], values[None], start)

        h, normed = run_stack(stack, x[None], positions, attend)
        self._positions += len(columns)
        return h[0], normed[0]

    def _slow(self, normed: Tensor) -> Tensor:
        """Logits [F, codes + 1] of normed rows [F, dim]."""
        weights = self._weights
        codes = product(normed, weights.slow.head)
        return torch.cat([codes, product(normed, weights.end_row)], 1).bfloat16().float()

    def _fast(self, source: Tensor, drawn: Tensor) -> Tensor:
        """Logits [F, books, codes] after the hidden row [F, dim] and ``drawn`` [F, books]."""
        weights = self._weights
        if weights.fast_project is not None:
            weight, bias = weights.fast_project
            source = torch.addmm(bias, source, weight.t())
        x = torch.cat([source[:, None], weights.fast_embeddings[drawn]], 1)
        positions = torch.arange(x.shape[1], device=x.device)
        _, normed = run_stack(weights.fast, x, positions, lambda _, q, k, v: _attention(q, k, v, 0))
        return product(normed[:, 1:], weights.fast.head).bfloat16().float()


def run_stack(
    stack: StackWeights, x: Tensor, positions: Tensor, attend: Attend
) -> tuple[Tensor, Tensor]:
    """(residual, normed), bf16 [B, T, dim]. Roundings are those of the stack of its dtype."""
    deferred = isinstance(stack.head, Fp8Weight)
    eps = stack.eps
    h = x.bfloat16()
    for index, layer in enumerate(stack.layers):
        qkv = _normed_product(h, layer.attention_norm, layer.qkv, eps, deferred)
        q, k, v = _split(qkv, layer.heads)
        q = _turned(q, layer.heads.query_weight, layer.heads, positions)
        k = _turned(k, layer.heads.key_weight, layer.heads, positions)
        attended = attend(index, q, k, v)
        delta = product(attended.flatten(2).bfloat16(), layer.out)
        h = _added(h, delta, deferred)
        both = _normed_product(h, layer.ffn_norm, layer.gate_up, eps, deferred)
        inner = both.shape[-1] // 2
        gated = swiglu_reference(both[..., :inner], both[..., inner:]).bfloat16()
        last = index + 1 == len(stack.layers)
        h = _added(h, product(gated, layer.down), deferred and not last)
    return h, _norm(h, stack.norm, eps)


def _added(h: Tensor, delta: Tensor, deferred: bool) -> Tensor:
    """The residual after ``delta`` float64: of FP8 rows the sum itself is not rounded first."""
    part = delta.float() if deferred else delta.bfloat16().float()
    return (h.float() + part).bfloat16()


def _norm(h: Tensor, weight: Tensor, eps: float) -> Tensor:
    r = 1.0 / torch.sqrt(h.float().pow(2).mean(-1, keepdim=True) + eps)
    return ((h.float() * r).bfloat16().float() * weight.float()).bfloat16()


def _normed_product(h: Tensor, norm: Tensor, weight: Product, eps: float, deferred: bool) -> Tensor:
    """bf16 rows of RMSNorm(h) times a weight."""
    if not deferred:
        return product(_norm(h, norm, eps), weight).bfloat16()
    factor = 1.0 / torch.sqrt(h.double().pow(2).sum(-1, keepdim=True).float() / h.shape[-1] + eps)
    return (product(h.float() * norm.float(), weight).float() * factor).bfloat16()


def product(x: Tensor, weight: Product) -> Tensor:
    """float64 rows of ``x`` times ``weight``, both as the device multiplies them."""
    rows = x.reshape(-1, x.shape[-1])
    if isinstance(weight, Fp8Weight):
        wide = dequantise_weight(weight).double()
        product = dequantise_rows(quantise_reference(rows)).double() @ wide.t()
    elif isinstance(weight, Mx):
        product = (
            dequantise_mx(quantise_mx_reference(rows)).double() @ dequantise_mx(weight).double().t()
        )
    else:
        product = rows.double() @ weight.double().t()
    return product.view(*x.shape[:-1], -1)


def _split(qkv: Tensor, heads: Heads) -> tuple[Tensor, Tensor, Tensor]:
    parts = qkv.unflatten(-1, (-1, heads.dim))
    return parts.split([heads.queries, heads.keys, heads.keys], dim=2)


def _turned(x: Tensor, weight: Tensor | None, heads: Heads, positions: Tensor) -> Tensor:
    rows = x.flatten(0, 1)
    turned = heads_reference(rows, weight, heads.rope, positions.repeat(len(x)), heads.eps)
    return turned.view(x.shape)


def _attention(q: Tensor, keys: Tensor, values: Tensor, first: int) -> Tensor:
    """Causal: query t sees keys 0 .. first + t. Probabilities are rounded as the matrix unit's
    operand is, before they are divided by their sum."""
    group = q.shape[2] // keys.shape[2]
    k, v = (x.double().repeat_interleave(group, 2) for x in (keys, values))
    score = torch.einsum("bqhd,bkhd->bhqk", q.double(), k) * q.shape[-1] ** -0.5
    at = torch.arange(q.shape[1], device=q.device) + first
    hidden = torch.arange(k.shape[1], device=q.device)[None] > at[:, None]
    score = score.masked_fill(hidden, -torch.inf)
    p = torch.exp(score - score.amax(-1, keepdim=True))
    y = torch.einsum("bhqk,bkhd->bqhd", p.bfloat16().double(), v)
    return y / p.sum(-1).transpose(1, 2)[..., None]


def with_scales_misread(weight: Product) -> Product:
    """``weight`` as if its scales had been written in the other order: the bug that a gate must
    see. At full speed, without an error, and wrong."""
    match weight:
        case Fp8Weight(values, scales):
            return Fp8Weight(values, scales.t().contiguous().view(scales.shape))
        case Mx(values, scales):
            return Mx(values, scales.t().contiguous().view(scales.shape))
        case _:
            return weight

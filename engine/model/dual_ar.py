"""The DualAR forward in plain torch: slow stack over paged KV, fast stack over one frame.

Owns the arithmetic of both transformers and the weights in the form it wants them (projections
fused, head cut to the candidates). Knows nothing of slots, sampling parameters or threads. A
row's result does not depend on the rows beside it as far as that of a matrix product does not:
attention runs sequence by sequence, all else row by row.

Written in the subset of Python that TorchScript compiles, because one compiled call per step
does not hold the interpreter's lock while it computes; it runs just as well uncompiled.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .config import DualARConfig, StackConfig

TENSORS_PER_LAYER = 7


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """``x`` [N, in] by ``weight`` [out, in], which may be packed for oneDNN."""
    if weight.is_mkldnn:
        return torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], "")
    return F.linear(x, weight)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMS norm over the last dim."""
    scale = torch.rsqrt((x * x).mean(-1, keepdim=True).add_(eps))
    return x * scale * weight


def rotate(x: Tensor, turns: Tensor) -> Tensor:
    """RoPE over interleaved pairs: ``x`` [N, heads, dim], ``turns`` complex [N, 1, dim / 2]."""
    pairs = torch.view_as_complex(x.reshape(x.size(0), x.size(1), -1, 2))
    return torch.view_as_real(pairs * turns).flatten(2)


def rope_table(positions: int, head_dim: int, base: float) -> Tensor:
    """cos + i sin as complex64 [positions, head_dim / 2], both rounded to bfloat16.

    The model was trained with rounded tables; exact ones measurably change it.
    """
    frequencies = 1.0 / base ** (torch.arange(0, head_dim, 2)[: head_dim // 2].float() / head_dim)
    angles = torch.outer(torch.arange(positions).float(), frequencies)
    rounded = torch.stack([angles.cos(), angles.sin()], -1).bfloat16().float()
    return torch.view_as_complex(rounded.contiguous())


class Stack(nn.Module):
    """One transformer stack. Its attention is the caller's: see ``project`` and ``finish``."""

    def __init__(self, config: StackConfig, eps: float, layers: list[Tensor]) -> None:
        """``layers``: per layer attention norm, wqkv, qk norm [heads + kv_heads, head_dim] (or
        empty), wo, ffn norm, w1 over w3, w2."""
        super().__init__()
        self.count = config.layers
        self.per_layer = TENSORS_PER_LAYER
        self.heads = config.heads
        self.kv_heads = config.kv_heads
        self.head_dim = config.head_dim
        self.group = config.heads // config.kv_heads
        self.ffn_dim = config.ffn_dim
        self.qk_norm = config.qk_norm
        self.eps = eps
        self.layers = layers

    def project(self, x: Tensor, layer: int, turns: Tensor) -> tuple[Tensor, Tensor]:
        """Queries [N, heads, head_dim], and keys over values [N, 2 * kv_heads, head_dim]."""
        at = layer * self.per_layer
        fused = linear(rms_norm(x, self.layers[at], self.eps), self.layers[at + 1])
        fused = fused.view(x.size(0), self.heads + 2 * self.kv_heads, self.head_dim)
        rotated = fused[:, : self.heads + self.kv_heads]
        if self.qk_norm:
            rotated = rms_norm(rotated, self.layers[at + 2], self.eps)
        rotated = rotate(rotated, turns)
        keys_values = torch.cat(
            [rotated[:, self.heads :], fused[:, self.heads + self.kv_heads :]], 1
        )
        return rotated[:, : self.heads], keys_values

    def finish(self, x: Tensor, attended: Tensor, layer: int) -> Tensor:
        """Residual [N, dim] after attention's output [N, heads * head_dim] and the FFN."""
        at = layer * self.per_layer
        x = x + linear(attended, self.layers[at + 3])
        hidden = linear(rms_norm(x, self.layers[at + 4], self.eps), self.layers[at + 5])
        gated = F.silu(hidden[:, : self.ffn_dim]).mul_(hidden[:, self.ffn_dim :])
        return x + linear(gated, self.layers[at + 6])


class DualAR(nn.Module):
    """Both stacks, embeddings and heads of one checkpoint, in float32."""

    def __init__(
        self,
        config: DualARConfig,
        weights: dict[str, Tensor],
        semantic: range,
        end_token: int,
        *,
        packed: bool = False,
    ) -> None:
        """``weights`` as :func:`.weights.load_weights` returns them. ``packed`` lays the linear
        weights out for oneDNN, which is faster from two rows on and takes a CPU."""
        super().__init__()

        def take(key: str) -> Tensor:
            return weights[key].detach().to(torch.float32).contiguous()

        def pack(weight: Tensor) -> Tensor:
            return torch.ops.mkldnn._reorder_linear_weight(weight, 8) if packed else weight

        self.codebooks = config.codebooks
        self.codebook_size = config.codebook_size
        self.semantic_begin = semantic.start
        self.end_token = end_token
        self.eps = config.norm_eps
        self.embedding_scale = math.sqrt(config.codebooks + 1) if config.scale_embeddings else 1.0
        self.norm_fast_input = config.norm_fast_input
        self.projects_fast_input = config.projects_fast_input

        self.embeddings = take("embeddings.weight")
        self.codebook_embeddings = take("codebook_embeddings.weight")
        self.codebook_offsets = torch.arange(config.codebooks) * config.codebook_size
        self.slow = _stack(config.slow, config.norm_eps, "layers", take, pack)
        self.norm = take("norm.weight")
        head = self.embeddings if config.tied_head else take("output.weight")
        candidates = [*semantic, end_token]
        self.head = pack(head[torch.tensor(candidates)].contiguous())
        self.slow_turns = rope_table(config.max_seq_len, config.slow.head_dim, config.rope_base)

        self.fast = _stack(config.fast, config.norm_eps, "fast_layers", take, pack)
        empty = torch.empty(0)
        projects = config.projects_fast_input
        self.fast_project = pack(take("fast_project_in.weight")) if projects else empty
        self.fast_project_bias = take("fast_project_in.bias") if projects else empty
        self.fast_embeddings = take("fast_embeddings.weight")
        self.fast_norm = take("fast_norm.weight")
        self.fast_output = pack(take("fast_output.weight"))
        self.fast_turns = rope_table(config.codebooks, config.fast.head_dim, config.rope_base)
        # Positions 0 and 1 run together; position 0 must not see position 1.
        pair = torch.zeros(2, 1, 2)
        pair[0, 0, 1] = -float("inf")
        self.pair_mask = pair.expand(2, self.fast.group, 2).reshape(-1, 2).contiguous()

    @torch.jit.export
    def embed(self, columns: Tensor) -> Tensor:
        """Columns int32 [N, 1 + codebooks] to the slow stack's input [N, dim]."""
        tokens = columns[:, 0]
        text = F.embedding(tokens, self.embeddings)
        codes = F.embedding(columns[:, 1:] + self.codebook_offsets, self.codebook_embeddings)
        frame = (text + codes.sum(1)) / self.embedding_scale
        is_frame = (tokens >= self.semantic_begin) & (
            tokens < self.semantic_begin + self.codebook_size
        )
        return torch.where(is_frame.unsqueeze(1), frame, text)

    @torch.jit.export
    def slow_stack(
        self,
        x: Tensor,
        positions: Tensor,
        pools: list[Tensor],
        page_tokens: int,
        places: Tensor,
        tables: list[Tensor],
        lengths: list[int],
        counts: list[int],
        mask: Tensor,
    ) -> Tensor:
        """Run the slow stack over some sequences at once; writes their keys and values.

        ``x`` [N, dim] holds ``counts[s]`` rows of each sequence in turn, then rows to ignore.
        ``positions`` int64 [N]. Each layer's pool [2 * kv_heads, pages * page_tokens, head_dim]
        takes row r at ``places[r]``; then sequence s attends to the first ``lengths[s]``
        positions of the pages in ``tables[s]``. ``mask`` [rows * group, length] is added to the
        scores of sequences of several rows. Returns the residual [N, dim].
        """
        turns = self.slow_turns[positions].unsqueeze(1)
        live = places.size(0)
        kv_heads, group, head_dim = self.slow.kv_heads, self.slow.group, self.slow.head_dim
        attended = torch.zeros([x.size(0), self.slow.heads * head_dim])
        for layer in range(self.slow.count):
            queries, keys_values = self.slow.project(x, layer, turns)
            pool = pools[layer]
            pool.index_copy_(1, places, keys_values[:live].transpose(0, 1))
            paged = pool.view(2 * kv_heads, -1, page_tokens * head_dim)
            row = 0
            for s in range(len(tables)):
                n = counts[s]
                context = paged.index_select(1, tables[s]).view(2 * kv_heads, -1, head_dim)
                context = context[:, : lengths[s]].unsqueeze(0)
                q = queries[row : row + n].view(n, kv_heads, group, head_dim)
                q = q.transpose(0, 1).reshape(1, kv_heads, n * group, head_dim)
                if n == 1:
                    o = F.scaled_dot_product_attention(
                        q, context[:, :kv_heads], context[:, kv_heads:]
                    )
                else:
                    o = F.scaled_dot_product_attention(
                        q, context[:, :kv_heads], context[:, kv_heads:], attn_mask=mask
                    )
                o = o.view(kv_heads, n, group, head_dim).transpose(0, 1)
                attended[row : row + n] = o.reshape(n, kv_heads * group * head_dim)
                row += n
            x = self.slow.finish(x, attended, layer)
        return x

    @torch.jit.export
    def slow_head(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Residual [N, dim] to the fast stack's first input [N, fast dim] and the candidates'
        logits [N, codebook_size + 1], the end token last."""
        normed = rms_norm(x, self.norm, self.eps)
        logits = linear(normed, self.head)
        hidden = normed if self.norm_fast_input else x
        if self.projects_fast_input:
            hidden = linear(hidden, self.fast_project) + self.fast_project_bias
        return hidden, logits

    @torch.jit.export
    def fast_first(self, hidden: Tensor, code: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Positions 0 (``hidden`` [N, fast dim]) and 1 (``code`` [N], the semantic code).

        Returns logits [N, codebook_size] of codebook 1 and the frame's keys and values per layer,
        [N, 2 * kv_heads, codebooks, head_dim].
        """
        n = hidden.size(0)
        kv_heads, group, head_dim = self.fast.kv_heads, self.fast.group, self.fast.head_dim
        x = torch.stack([hidden, F.embedding(code, self.fast_embeddings)], 1).flatten(0, 1)
        turns = self.fast_turns[:2].repeat(n, 1).unsqueeze(1)
        caches: list[Tensor] = []
        for layer in range(self.fast.count):
            queries, keys_values = self.fast.project(x, layer, turns)
            cache = torch.empty([n, 2 * kv_heads, self.codebooks, head_dim])
            cache[:, :, :2] = keys_values.view(n, 2, 2 * kv_heads, head_dim).transpose(1, 2)
            caches.append(cache)
            q = queries.view(n, 2, kv_heads, group, head_dim).transpose(1, 2)
            o = F.scaled_dot_product_attention(
                q.reshape(n, kv_heads, 2 * group, head_dim),
                cache[:, :kv_heads, :2],
                cache[:, kv_heads:, :2],
                attn_mask=self.pair_mask,
            )
            o = o.view(n, kv_heads, 2, group, head_dim).transpose(1, 2)
            x = self.fast.finish(x, o.reshape(2 * n, kv_heads * group * head_dim), layer)
        return self.fast_head(x.view(n, 2, -1)[:, 1].contiguous()), caches

    @torch.jit.export
    def fast_next(self, code: Tensor, position: int, caches: list[Tensor]) -> Tensor:
        """``code`` [N] of codebook ``position - 1`` to logits of codebook ``position``."""
        n = code.size(0)
        kv_heads, group, head_dim = self.fast.kv_heads, self.fast.group, self.fast.head_dim
        x = F.embedding(code, self.fast_embeddings)
        turns = self.fast_turns[position : position + 1].unsqueeze(1)
        for layer in range(self.fast.count):
            queries, keys_values = self.fast.project(x, layer, turns)
            cache = caches[layer]
            cache[:, :, position] = keys_values
            o = F.scaled_dot_product_attention(
                queries.view(n, kv_heads, group, head_dim),
                cache[:, :kv_heads, : position + 1],
                cache[:, kv_heads:, : position + 1],
            )
            x = self.fast.finish(x, o.reshape(n, kv_heads * group * head_dim), layer)
        return self.fast_head(x)

    def fast_head(self, x: Tensor) -> Tensor:
        return linear(rms_norm(x, self.fast_norm, self.eps), self.fast_output)


def _stack(config: StackConfig, eps: float, prefix: str, take, pack) -> Stack:
    layers: list[Tensor] = []
    for index in range(config.layers):
        at = f"{prefix}.{index}"
        qk_norm = torch.empty(0)
        if config.qk_norm:
            q = take(f"{at}.attention.q_norm.weight").expand(config.heads, -1)
            k = take(f"{at}.attention.k_norm.weight").expand(config.kv_heads, -1)
            qk_norm = torch.cat([q, k])
        gate_up = torch.cat(
            [take(f"{at}.feed_forward.w1.weight"), take(f"{at}.feed_forward.w3.weight")]
        )
        layers += [
            take(f"{at}.attention_norm.weight"),
            pack(take(f"{at}.attention.wqkv.weight")),
            qk_norm,
            pack(take(f"{at}.attention.wo.weight")),
            take(f"{at}.ffn_norm.weight"),
            pack(gate_up),
            pack(take(f"{at}.feed_forward.w2.weight")),
        ]
    return Stack(config, eps, layers)

"""The DualAR as it is trained: parameters under the engine's canonical names, whole rows at once.

Beside the two stacks there is what only training needs: dropout on the residual branches, a reader
that finds the next phonemes in the middle of the slow stack, and guided heads, attention heads of
the slow stack that are held to the letter being spoken. The guided heads are ordinary heads of the
exported model; only the loss that taught them is left behind.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..model.config import DualARConfig, StackConfig
from . import vocabulary as v
from .codec_layers import FeedForward, RMSNorm, rope_table, rotate
from .texts import PHONEMES

BUILTIN = DualARConfig(
    layout="s2",
    vocab_size=v.VOCABULARY,
    codebooks=8,
    codebook_size=v.CODEBOOK_SIZE,
    max_seq_len=2048,
    rope_base=10000.0,
    norm_eps=1e-6,
    slow=StackConfig(8, 256, 4, 2, 64, 640, True),
    fast=StackConfig(2, 256, 4, 2, 64, 512, True),
    tied_head=True,
    scale_embeddings=True,
    norm_fast_input=True,
    semantic_begin=v.SEMANTIC_BEGIN,
    end_token=v.END,
)
"""9.7 M parameters, 19.3 MB in bfloat16."""

REACH = 1
"""Letters on either side of the one being spoken that a guided head may look at."""


@dataclass(frozen=True, slots=True)
class Guides:
    """Which heads are guided, as (layer, head), and the layer behind which phonemes are read."""

    heads: tuple[tuple[int, int], ...] = ((2, 0), (4, 0))
    phonemes_after: int = 4


@dataclass(slots=True, eq=False)
class Losses:
    slow: Tensor
    fast: Tensor
    guided: Tensor
    phonemes: Tensor
    accuracy: Tensor


class _Attention(nn.Module):
    def __init__(self, shape: StackConfig, eps: float, guided: tuple[int, ...] = ()) -> None:
        super().__init__()
        self.wqkv = nn.Linear(shape.dim, shape.qkv_dim, bias=False)
        self.wo = nn.Linear(shape.heads * shape.head_dim, shape.dim, bias=False)
        self._qk_norm = shape.qk_norm
        if shape.qk_norm:
            self.q_norm = RMSNorm(shape.head_dim, eps)
            self.k_norm = RMSNorm(shape.head_dim, eps)
        self._shape, self._guided = shape, guided

    def forward(self, x: Tensor, turns: Tensor, attend: Any) -> tuple[Tensor, list[Tensor]]:
        """``attend(q, k, v)`` on [B, heads, T, dim]. Also the scores of the guided heads,
        [B, T, T] each."""
        s = self._shape
        fused = self.wqkv(x).unflatten(-1, (-1, s.head_dim))
        query, key, value = fused.split([s.heads, s.kv_heads, s.kv_heads], 2)
        if self._qk_norm:
            query, key = self.q_norm(query), self.k_norm(key)
        query = rotate(query, turns).transpose(1, 2)
        key, value = rotate(key, turns).transpose(1, 2), value.transpose(1, 2)
        group = s.heads // s.kv_heads
        scores = [
            query[:, head] @ key[:, head // group].transpose(1, 2) / math.sqrt(s.head_dim)
            for head in self._guided
        ]
        mixed = attend(query, key, value)
        return self.wo(mixed.transpose(1, 2).flatten(2)), scores


class _Layer(nn.Module):
    def __init__(
        self, shape: StackConfig, eps: float, dropout: float, guided: tuple[int, ...] = ()
    ) -> None:
        super().__init__()
        self.attention = _Attention(shape, eps, guided)
        self.feed_forward = FeedForward(shape.dim, shape.ffn_dim)
        self.attention_norm = RMSNorm(shape.dim, eps)
        self.ffn_norm = RMSNorm(shape.dim, eps)
        self.dropout = dropout

    def forward(self, x: Tensor, turns: Tensor, attend: Any) -> tuple[Tensor, list[Tensor]]:
        mixed, scores = self.attention(self.attention_norm(x), turns, attend)
        x = x + F.dropout(mixed, self.dropout, self.training)
        fed = self.feed_forward(self.ffn_norm(x))
        return x + F.dropout(fed, self.dropout, self.training), scores


class _Causal:
    """Attention of a stack that sees all that came before, in rows of its own."""

    def __init__(self, group: int) -> None:
        self._group = group

    def __call__(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        key = key.repeat_interleave(self._group, 1)
        value = value.repeat_interleave(self._group, 1)
        return F.scaled_dot_product_attention(query, key, value, is_causal=True)


class Masked:
    """Attention under a mask [B, 1, T, T]: the conversation so far."""

    def __init__(self, mask: Tensor, group: int) -> None:
        self._mask, self._group = mask, group

    def __call__(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        key = key.repeat_interleave(self._group, 1)
        value = value.repeat_interleave(self._group, 1)
        return F.scaled_dot_product_attention(query, key, value, attn_mask=self._mask)


class TrainedDualAR(nn.Module):
    def __init__(
        self, config: DualARConfig = BUILTIN, dropout: float = 0.0, guides: Guides | None = None
    ) -> None:
        super().__init__()
        if config.projects_fast_input or not config.tied_head or not config.scale_embeddings:
            raise ValueError("only stacks of one width with a tied head can be trained here")
        self.config = config
        self.guides = guides or Guides()
        slow, fast, eps = config.slow, config.fast, config.norm_eps
        self.embeddings = nn.Embedding(config.vocab_size, slow.dim)
        self.codebook_embeddings = nn.Embedding(config.codebooks * config.codebook_size, slow.dim)
        heads = [
            tuple(head for layer, head in self.guides.heads if layer == index)
            for index in range(slow.layers)
        ]
        self.layers = nn.ModuleList(_Layer(slow, eps, dropout, guided) for guided in heads)
        self.norm = RMSNorm(slow.dim, eps)
        self.fast_embeddings = nn.Embedding(config.codebook_size, fast.dim)
        self.fast_layers = nn.ModuleList(_Layer(fast, eps, dropout) for _ in range(fast.layers))
        self.fast_norm = RMSNorm(fast.dim, eps)
        self.fast_output = nn.Linear(fast.dim, config.codebook_size, bias=False)
        self.reader = nn.Linear(slow.dim, 2 * PHONEMES)
        slow_turns = rope_table(config.max_seq_len, slow.head_dim, config.rope_base)
        fast_turns = rope_table(config.codebooks, fast.head_dim, config.rope_base)
        self.register_buffer("slow_turns", slow_turns, persistent=False)
        self.register_buffer("fast_turns", fast_turns[None, :, None], persistent=False)
        offsets = torch.arange(config.codebooks) * config.codebook_size
        self.register_buffer("offsets", offsets, persistent=False)
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:
                deep = name.endswith(("wo.weight", "w2.weight"))
                nn.init.normal_(parameter, std=0.02 / (math.sqrt(2 * slow.layers) if deep else 1))

    def exported(self) -> dict[str, Tensor]:
        """The parameters that the engine knows, by its canonical names."""
        return {k: p for k, p in self.state_dict().items() if not k.startswith("reader.")}

    def embed(self, columns: Tensor) -> Tensor:
        tokens = columns[..., 0]
        text = self.embeddings(tokens)
        codes = self.codebook_embeddings(columns[..., 1:] + self.offsets).sum(-2)
        frame = (text + codes) / math.sqrt(self.config.codebooks + 1)
        return torch.where((tokens >= v.SEMANTIC_BEGIN)[..., None], frame, text)

    def slow(self, columns: Tensor, place: Tensor, attend: Any) -> tuple[Tensor, Tensor, list]:
        """Normed output and the reader's input [B, T, dim], and the guided heads' scores."""
        x = self.embed(columns)
        turns = self.slow_turns[place][:, :, None]
        read = x
        scores: list[Tensor] = []
        for index, layer in enumerate(self.layers):
            x, guided = layer(x, turns, attend)
            scores += guided
            if index == self.guides.phonemes_after:
                read = x
        return self.norm(x), read, scores

    def logits(self, hidden: Tensor) -> Tensor:
        """Over the whole vocabulary; the head is the embedding."""
        return F.linear(hidden, self.embeddings.weight)

    def fast(self, hidden: Tensor, codes: Tensor) -> Tensor:
        """``hidden`` [N, dim] and ``codes`` [N, K] -> logits [N, K - 1, size] of books 1 .. K - 1.

        As the engine runs it: the logits of the first position are never used.
        """
        x = torch.cat([hidden[:, None], self.fast_embeddings(codes[:, :-1]).type_as(hidden)], 1)
        attend = _Causal(self.config.fast.heads // self.config.fast.kv_heads)
        for layer in self.fast_layers:
            x, _ = layer(x, self.fast_turns[:, : x.shape[1]], attend)
        return self.fast_output(self.fast_norm(x[:, 1:]))

    def losses(
        self,
        columns: Tensor,
        slow: Tensor,
        place: Tensor,
        conversation: Tensor,
        target: Tensor,
        phonemes: Tensor,
        fast_at: Tensor,
        fast_codes: Tensor,
        attend: Any,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """The fields of :class:`Losses` for :class:`.rows.Rows`."""
        hidden, read, scores = self.slow(columns, place, attend)
        flat, wanted = hidden.flatten(0, 1), slow.flatten()
        logits = self.logits(flat).float()
        slow_loss = F.cross_entropy(logits, wanted, ignore_index=-100)
        known = wanted >= 0
        right = (logits.argmax(-1) == wanted) & known
        fast_logits = self.fast(flat[fast_at], fast_codes).float()
        fast_loss = F.cross_entropy(fast_logits.flatten(0, 1), fast_codes[:, 1:].flatten())
        guided = self._guided(scores, conversation, target)
        shown = self.reader(read).float().unflatten(-1, (2, PHONEMES))
        phoneme_loss = F.cross_entropy(shown.flatten(0, 2), phonemes.flatten(), ignore_index=-100)
        return slow_loss, fast_loss, guided, phoneme_loss, right.sum() / known.sum()

    def _guided(self, scores: list[Tensor], conversation: Tensor, target: Tensor) -> Tensor:
        """How unlikely it is, in nats, that a guided head looks where the sound is spelled."""
        if not scores:
            return conversation.new_zeros((), dtype=torch.float32)
        step = torch.arange(target.shape[1], device=target.device)
        seen = (conversation[:, :, None] == conversation[:, None]) & (step[:, None] >= step)
        near = (step - target[..., None]).abs() <= REACH
        known = target >= 0
        total = torch.zeros((), device=target.device)
        for score in scores:
            score = score.float().masked_fill(~seen, -1e4)
            missed = score.logsumexp(-1) - score.masked_fill(~near, -1e4).logsumexp(-1)
            total = total + (missed * known).sum() / known.sum().clamp(min=1)
        return total / len(scores)

"""The codec as it is trained: modules whose parameters bear the names of ``codec.pth``.

The same layers as ``engine.codec`` (which folds the weights and streams), for whole batches and
with gradients. Everything is causal; rotary tables are rounded as the loader rounds them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from ..codec.config import CodecConfig, QuantizerShape, WindowShape
from .codec_layers import (
    Block,
    CausalConv,
    CausalUpConv,
    ConvNeXt,
    Snake,
    WindowTransformer,
    units,
)

BUILTIN = CodecConfig(
    sample_rate=24000,
    encoder_dim=16,
    encoder_rates=(2, 5, 5, 6),
    encoder_transformer_layers=(0, 0, 0, 0),
    decoder_dim=256,
    decoder_rates=(6, 5, 5, 2),
    quantizer=QuantizerShape(192, 7, 1024, 1024, 8, (2, 2)),
    pre_post=WindowShape(1, 192, 3, 512, 32),
)
"""24 kHz, 1200 samples a frame, 8 codebooks of 1024, 5.0 M parameters."""


class Encoder(nn.Module):
    def __init__(self, config: CodecConfig) -> None:
        super().__init__()
        if any(config.encoder_transformer_layers):
            raise ValueError("a codec with transformers in its encoder cannot be trained here")
        channels = config.encoder_dim
        layers: list[nn.Module] = [CausalConv(1, channels, 7)]
        for rate in config.encoder_rates:
            down = CausalConv(channels, 2 * channels, 2 * rate, stride=rate)
            layers.append(Block(*units(channels), Snake(channels), down))
            channels *= 2
        latent = config.quantizer.latent_dim
        self.block = nn.Sequential(*layers, Snake(channels), CausalConv(channels, latent, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.block(x)


class Decoder(nn.Module):
    def __init__(self, config: CodecConfig) -> None:
        super().__init__()
        channels = config.decoder_dim
        layers: list[nn.Module] = [CausalConv(config.quantizer.latent_dim, channels, 7)]
        for rate in config.decoder_rates:
            half = channels // 2
            up = CausalUpConv(channels, half, 2 * rate, rate)
            layers.append(Block(Snake(channels), up, *units(half)))
            channels = half
        self.model = nn.Sequential(*layers, Snake(channels), CausalConv(channels, 1, 7))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.model(x))


class Book(nn.Module):
    """One codebook: the nearest direction in a small space, with a straight-through gradient."""

    def __init__(self, latent: int, size: int, dim: int) -> None:
        super().__init__()
        self.in_proj = weight_norm(nn.Conv1d(latent, dim, 1))
        self.out_proj = weight_norm(nn.Conv1d(dim, latent, 1))
        self.codebook = nn.Embedding(size, dim)
        self.register_buffer("usage", torch.zeros(size), persistent=False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """float32 [B, latent, T] -> what it decodes to, codes [B, T], squared distance [B], the
        points [B, dim, T]."""
        point = self.in_proj(x)
        near = F.normalize(point.transpose(1, 2), dim=-1) @ F.normalize(self.codebook.weight).t()
        codes = near.argmax(-1)
        entry = F.embedding(codes, self.codebook.weight).transpose(1, 2)
        # A quarter of the pull is on the encoder, the whole of it on the entry.
        pulled = F.mse_loss(entry, point.detach(), reduction="none").mean((1, 2))
        pulling = F.mse_loss(point, entry.detach(), reduction="none").mean((1, 2))
        out = self.out_proj(point + (entry - point).detach())
        return out, codes, pulled + 0.25 * pulling, point

    def decode(self, codes: Tensor) -> Tensor:
        return self.out_proj(F.embedding(codes, self.codebook.weight).transpose(1, 2))

    @torch.no_grad()
    def restart(self, point: Tensor, codes: Tensor) -> None:
        """Entries that are hardly ever drawn become points of this batch."""
        size = self.codebook.weight.shape[0]
        drawn = torch.bincount(codes.flatten(), minlength=size).float()
        share = codes.numel() / size
        self.usage.mul_(0.8).add_(drawn, alpha=0.2)
        dead = self.usage < 0.05 * share
        points = point.transpose(1, 2).reshape(-1, point.shape[1])
        fresh = points[torch.randint(0, len(points), (size,), device=points.device)]
        self.codebook.weight.copy_(torch.where(dead[:, None], fresh, self.codebook.weight))
        self.usage.copy_(torch.where(dead, torch.full_like(self.usage, 0.5 * share), self.usage))


class _Books(nn.Module):
    def __init__(self, latent: int, count: int, size: int, dim: int) -> None:
        super().__init__()
        self.quantizers = nn.ModuleList(Book(latent, size, dim) for _ in range(count))


@dataclass(slots=True, eq=False)
class Quantized:
    """``audio`` as decoded; ``codes`` int [B, NQ, T]; ``semantic`` what the first book
    decodes to [B, latent, T]; ``distance`` the loss of the books; ``points`` of each book."""

    audio: Tensor
    codes: Tensor
    semantic: Tensor
    distance: Tensor
    points: list[Tensor]


class _Quantizer(nn.Module):
    def __init__(self, config: CodecConfig) -> None:
        super().__init__()
        q = config.quantizer
        latent = q.latent_dim
        self.semantic_quantizer = _Books(latent, 1, q.semantic_codebook_size, q.code_dim)
        self.quantizer = _Books(latent, q.residual_books, q.codebook_size, q.code_dim)
        self.downsample = nn.Sequential(
            *(
                nn.Sequential(
                    CausalConv(latent, latent, f, stride=f, normed=False), ConvNeXt(latent)
                )
                for f in q.downsample
            )
        )
        self.upsample = nn.Sequential(
            *(
                nn.Sequential(CausalUpConv(latent, latent, f, f, normed=False), ConvNeXt(latent))
                for f in reversed(q.downsample)
            )
        )
        self.pre_module = WindowTransformer(config.pre_post)
        self.post_module = WindowTransformer(config.pre_post)

    @property
    def books(self) -> list[Book]:
        return [*self.semantic_quantizer.quantizers, *self.quantizer.quantizers]


class TrainedCodec(nn.Module):
    """``audio`` [B, 1, N] with N whole frames."""

    def __init__(self, config: CodecConfig = BUILTIN) -> None:
        super().__init__()
        self.config = config
        self.encoder = Encoder(config)
        self.quantizer = _Quantizer(config)
        self.decoder = Decoder(config)

    def forward(
        self, audio: Tensor, residuals: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, list[Tensor]]:
        """The fields of :class:`Quantized`. ``residuals`` int [B]: how many residual books each
        item is decoded from."""
        latent = self.quantizer.pre_module(self.quantizer.downsample(self.encoder(audio)))
        with torch.autocast(audio.device.type, enabled=False):
            semantic, total, codes, distance, points = self._quantize(latent.float(), residuals)
        decoded = self.decoder(self.quantizer.upsample(self.quantizer.post_module(total)))
        return decoded, codes, semantic, distance, points

    def _quantize(
        self, rest: Tensor, residuals: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, list[Tensor]]:
        total = torch.zeros_like(rest)
        semantic = total
        distance = torch.zeros(len(rest), device=rest.device)
        codes: list[Tensor] = []
        points: list[Tensor] = []
        for number, book in enumerate(self.quantizer.books):
            part, drawn, apart, point = book(rest)
            used = (residuals >= number).float()
            total = total + part * used[:, None, None]
            rest = rest - part
            distance = distance + apart * used
            codes.append(drawn)
            points.append(point.detach())
            if number == 0:
                semantic = part
        return semantic, total, torch.stack(codes, 1), distance.mean(), points

    @torch.no_grad()
    def restart(self, quantized: Quantized) -> None:
        for number, book in enumerate(self.quantizer.books):
            book.restart(quantized.points[number], quantized.codes[:, number])

    @torch.no_grad()
    def encode(self, audio: Tensor) -> Tensor:
        """-> int [B, NQ, T], the residual of each book to the next, in float32."""
        latent = self.quantizer.pre_module(self.quantizer.downsample(self.encoder(audio)))
        every = torch.full((len(audio),), len(self.quantizer.books), device=audio.device)
        return self._quantize(latent.float(), every)[2]

    @torch.no_grad()
    def decode(self, codes: Tensor) -> Tensor:
        """int [B, NQ, T] -> [B, 1, samples]."""
        parts = [book.decode(codes[:, i]) for i, book in enumerate(self.quantizer.books)]
        total = torch.stack(parts).sum(0)
        return self.decoder(self.quantizer.upsample(self.quantizer.post_module(total)))


def describe(config: CodecConfig) -> dict[str, object]:
    """What ``codec_config.json`` says of ``config``."""
    q, w = config.quantizer, config.pre_post
    return {
        "sample_rate": config.sample_rate,
        "encoder_dim": config.encoder_dim,
        "encoder_rates": list(config.encoder_rates),
        "encoder_transformer_layers": list(config.encoder_transformer_layers),
        "decoder_dim": config.decoder_dim,
        "decoder_rates": list(config.decoder_rates),
        "quantizer": {
            "input_dim": q.latent_dim,
            "n_codebooks": q.residual_books,
            "codebook_size": q.codebook_size,
            "semantic_codebook_size": q.semantic_codebook_size,
            "codebook_dim": q.code_dim,
            "downsample_factor": list(q.downsample),
        },
        "pre_post_module": {
            "window_size": w.window,
            "n_layer": w.layers,
            "n_head": w.heads,
            "dim": w.dim,
            "intermediate_size": w.intermediate,
            "rope_base": int(w.rope_base),
            "norm_eps": w.norm_eps,
        },
    }

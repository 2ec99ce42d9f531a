"""The decoding network: frames of codes to samples.

Owns which layers there are, in which order, under which names on disk. The state of streams is
passed in (``state.py``); see ``stream.py`` for who uses it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .config import CodecConfig, WindowShape
from .layers import CausalConv, Conv, ConvNeXt, ResidualUnit, UpConv, safe_alpha, snake_
from .rvq import Book, Codebooks
from .state import StatePlan, Step
from .weights import Weights
from .window import BlockWeights, WindowTransformer

DILATIONS = (1, 3, 9)


class Decoder:
    """codes int [B, T, NQ] -> float32 [B, T * frame_samples] in -1 .. 1."""

    def __init__(
        self,
        config: CodecConfig,
        books: Codebooks,
        weights: Weights,
        compute: torch.dtype = torch.float32,
    ) -> None:
        """``compute``: what the convolutions, nearly all of the work, multiply in. float16 keeps
        the mantissa of TF32 at half the traffic; weights are folded in float32 first."""
        self.plan = StatePlan()
        self._compute = compute
        self._books = books
        latent = config.quantizer.latent_dim
        self._transformer = read_transformer(
            weights, "quantizer.post_module", config.pre_post, 1, self.plan
        )
        self._upsample: list[tuple[UpConv, ConvNeXt]] = []
        for i, factor in enumerate(reversed(config.quantizer.downsample)):
            at = f"quantizer.upsample.{i}"
            kernel = weights.conv(f"{at}.0.conv", latent, latent, factor)
            up = UpConv(*kernel, factor, self.plan)
            self._upsample.append((up, read_convnext(weights, f"{at}.1", latent, self.plan)))
        channels = config.decoder_dim
        self._first = CausalConv(
            Conv(*weights.normed("decoder.model.0.conv", channels, latent, 7)), self.plan
        )
        self._blocks: list[_Block] = []
        for i, rate in enumerate(config.decoder_rates, start=1):
            at = f"decoder.model.{i}.block"
            self._blocks.append(_Block(weights, at, channels, rate, self.plan))
            channels //= 2
        end = len(config.decoder_rates) + 1
        alpha = safe_alpha(weights.take(f"decoder.model.{end}.alpha", 1, channels, 1))
        self._alpha = alpha
        weight, bias = weights.normed(f"decoder.model.{end + 1}.conv", 1, channels, 7)
        self._last = CausalConv(Conv(weight / alpha[None, :, None], bias), self.plan)
        if compute != torch.float32:
            self._alpha = self._alpha.to(compute)
            for layer in (self._first, *self._blocks, self._last):
                layer.cast(compute)

    def __call__(self, codes: Tensor, step: Step) -> Tensor:
        x = self.latent(codes, step)
        x = self._first(x.to(self._compute), step)
        for block in self._blocks:
            x = block(x, step)
        return torch.tanh(self._last(snake_(x * self._alpha), step).float()).squeeze(2)

    def latent(self, codes: Tensor, step: Step) -> Tensor:
        """What the convolutions start from: [B, T * steps_per_frame, latent]."""
        x = self._transformer(self._books.decode(codes), step)
        for up, mix in self._upsample:
            x = mix(up(x, step), step)
        return x


class _Block:
    """snake, transposed convolution (C -> C / 2, ``rate`` steps out of one), three units."""

    def __init__(
        self, weights: Weights, at: str, channels: int, rate: int, plan: StatePlan
    ) -> None:
        half = channels // 2
        self._alpha = safe_alpha(weights.take(f"{at}.0.alpha", 1, channels, 1))
        weight, bias = weights.normed(f"{at}.1.conv", channels, half, 2 * rate, bias=half)
        self._up = UpConv(weight / self._alpha[:, None, None], bias, rate, plan)
        self._units = [
            read_unit(weights, f"{at}.{i}", half, dilation, plan)
            for i, dilation in enumerate(DILATIONS, start=2)
        ]

    def cast(self, dtype: torch.dtype) -> None:
        """See :meth:`.layers.Conv.cast`."""
        self._alpha = self._alpha.to(dtype)
        self._up.cast(dtype)
        for unit in self._units:
            unit.cast(dtype)

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        x = self._up(snake_(x * self._alpha), step)
        for unit in self._units:
            x = unit(x, step)
        return x


def read_books(config: CodecConfig, weights: Weights) -> Codebooks:
    """The semantic codebook and the residual ones."""
    q = config.quantizer
    places = [("quantizer.semantic_quantizer.quantizers.0", q.semantic_codebook_size)]
    places += [
        (f"quantizer.quantizer.quantizers.{i}", q.codebook_size) for i in range(q.residual_books)
    ]
    books: list[Book] = []
    for at, size in places:
        into = weights.normed(f"{at}.in_proj", q.code_dim, q.latent_dim, 1, old=True)
        out = weights.normed(f"{at}.out_proj", q.latent_dim, q.code_dim, 1, old=True)
        entries = weights.take(f"{at}.codebook.weight", size, q.code_dim)
        books.append(Book(entries, (into[0][..., 0], into[1]), (out[0][..., 0], out[1])))
    return Codebooks(books)


def read_unit(
    weights: Weights, at: str, channels: int, dilation: int, plan: StatePlan
) -> ResidualUnit:
    return ResidualUnit(
        weights.take(f"{at}.block.0.alpha", 1, channels, 1),
        weights.normed(f"{at}.block.1.conv", channels, channels, 7),
        weights.take(f"{at}.block.2.alpha", 1, channels, 1),
        weights.normed(f"{at}.block.3.conv", channels, channels, 1),
        dilation,
        plan,
    )


def read_convnext(weights: Weights, at: str, channels: int, plan: StatePlan) -> ConvNeXt:
    gamma = weights.take(f"{at}.gamma", channels)
    return ConvNeXt(
        weights.conv(f"{at}.dwconv.conv", channels, 1, 7),
        weights.affine(f"{at}.norm", channels),
        weights.linear(f"{at}.pwconv1", 4 * channels, channels),
        weights.linear(f"{at}.pwconv2", channels, 4 * channels),
        gamma,
        plan,
    )


def read_transformer(
    weights: Weights, at: str, shape: WindowShape, steps_per_frame: int, plan: StatePlan
) -> WindowTransformer:
    return WindowTransformer(shape, *read_blocks(weights, at, shape), steps_per_frame, plan)


def read_blocks(weights: Weights, at: str, shape: WindowShape) -> tuple[list[BlockWeights], Tensor]:
    """A transformer's layers, and the weight of the norm after them."""
    dim, inner = shape.dim, shape.intermediate

    def block(at: str) -> BlockWeights:
        return BlockWeights(
            wqkv=weights.take(f"{at}.attention.wqkv.weight", 3 * dim, dim),
            wo=weights.take(f"{at}.attention.wo.weight", dim, dim),
            w1=weights.take(f"{at}.feed_forward.w1.weight", inner, dim),
            w2=weights.take(f"{at}.feed_forward.w2.weight", dim, inner),
            w3=weights.take(f"{at}.feed_forward.w3.weight", inner, dim),
            attention_norm=weights.take(f"{at}.attention_norm.weight", dim),
            ffn_norm=weights.take(f"{at}.ffn_norm.weight", dim),
            attention_scale=weights.take(f"{at}.attention_layer_scale.gamma", dim),
            ffn_scale=weights.take(f"{at}.ffn_layer_scale.gamma", dim),
        )

    blocks = [block(f"{at}.layers.{i}") for i in range(shape.layers)]
    return blocks, weights.take(f"{at}.norm.weight", dim)

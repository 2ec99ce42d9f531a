"""The decoding network's weights as the device's kernels want them: fp16, folded, laid out once.

Owns the names and the folding (``decoder.py`` has the same network in plain torch, and says what it
computes). Needs Triton, so only what runs on a GPU imports it. Nothing here changes after loading.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.kernels.conv import ConvWeight, prepare_conv, prepare_up
from shoal.kernels.last_conv import prepare_taps

from .config import CodecConfig
from .decoder import DILATIONS, read_blocks
from .layers import safe_alpha
from .rvq import Codebooks
from .weights import Weights
from .window import BlockWeights


@dataclass(frozen=True, slots=True, eq=False)
class Mix:
    """A ConvNeXt layer: depthwise taps [k, C] and bias, LayerNorm, and the two products."""

    taps: tuple[Tensor, Tensor]
    norm: tuple[Tensor, Tensor]
    widen: ConvWeight
    narrow: ConvWeight


@dataclass(frozen=True, slots=True, eq=False)
class AttentionLayer:
    """Norm weights and layer scales multiplied in; ``w13`` has gates, then values."""

    wqkv: ConvWeight
    wo: ConvWeight
    w13: ConvWeight
    w2: ConvWeight


@dataclass(frozen=True, slots=True, eq=False)
class Unit:
    """A residual unit; ``after`` is the alpha of the snake that follows it."""

    wide: ConvWeight
    narrow: ConvWeight
    after: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """``after``: the alpha of the snake behind ``up``, once for each of its outputs."""

    up: ConvWeight
    after: Tensor
    units: tuple[Unit, ...]


class DeviceNetwork:
    """codes to samples; see ``device_streams.py`` for what runs it."""

    def __init__(self, config: CodecConfig, books: Codebooks, weights: Weights) -> None:
        self.config = config
        self.books = tuple(tensor.contiguous() for tensor in books.table)
        blocks, norm = read_blocks(weights, "quantizer.post_module", config.pre_post)
        self.layers = tuple(_attention_layer(w) for w in blocks)
        half = torch.arange(0, config.pre_post.head_dim, 2, device=norm.device).float()
        self.frequency = 1.0 / (config.pre_post.rope_base ** (half / config.pre_post.head_dim))
        latent = config.quantizer.latent_dim
        mixes: list[tuple[ConvWeight, Mix]] = []
        for i, factor in enumerate(reversed(config.quantizer.downsample)):
            at = f"quantizer.upsample.{i}"
            kernel, bias = weights.conv(f"{at}.0.conv", latent, latent, factor)
            if not i:  # the transformer's last norm
                kernel = kernel * norm[:, None, None]
            up = prepare_up(kernel, bias, factor)
            mixes.append((up, _mix(weights, f"{at}.1", latent)))
        self.mixes = tuple(mixes)
        channels = config.decoder_dim
        self.first = prepare_conv(*weights.normed("decoder.model.0.conv", channels, latent, 7))
        alpha = _alpha(weights, "decoder.model.1.block.0", channels)
        self.first_after = alpha
        decoder_blocks: list[Block] = []
        for i, rate in enumerate(config.decoder_rates, start=1):
            last = i == len(config.decoder_rates)
            after = f"decoder.model.{i + 1}" if last else f"decoder.model.{i + 1}.block.0"
            channels //= 2
            following = _alpha(weights, after, channels)
            at = f"decoder.model.{i}.block"
            decoder_blocks.append(_block(weights, at, channels, rate, alpha, following))
            alpha = following
        self.blocks = tuple(decoder_blocks)
        end = len(config.decoder_rates) + 2
        weight, bias = weights.normed(f"decoder.model.{end}.conv", 1, channels, 7)
        self.last = prepare_taps(weight / alpha[:, None])
        self.last_taps, self.last_bias = weight.shape[2], bias


def _alpha(weights: Weights, at: str, channels: int) -> Tensor:
    return safe_alpha(weights.take(f"{at}.alpha", 1, channels, 1)).contiguous()


def _linear(weight: Tensor, bias: Tensor | None = None) -> ConvWeight:
    return prepare_conv(weight[:, :, None], bias)


def _attention_layer(w: BlockWeights) -> AttentionLayer:
    return AttentionLayer(
        _linear(w.wqkv * w.attention_norm),
        _linear(w.wo * w.attention_scale[:, None]),
        _linear(torch.cat((w.w1, w.w3)) * w.ffn_norm),
        _linear(w.w2 * w.ffn_scale[:, None]),
    )


def _mix(weights: Weights, at: str, channels: int) -> Mix:
    gamma = weights.take(f"{at}.gamma", channels)
    taps, bias = weights.conv(f"{at}.dwconv.conv", channels, 1, 7)
    narrow, narrow_bias = weights.linear(f"{at}.pwconv2", channels, 4 * channels)
    return Mix(
        (taps[:, 0].t().contiguous(), bias),
        weights.affine(f"{at}.norm", channels),
        _linear(*weights.linear(f"{at}.pwconv1", 4 * channels, channels)),
        _linear(narrow * gamma[:, None], narrow_bias * gamma),
    )


def _block(
    weights: Weights, at: str, channels: int, rate: int, before: Tensor, following: Tensor
) -> Block:
    """``before``, ``following``: alphas of the snakes in front of the block and behind it."""
    weight, bias = weights.normed(f"{at}.1.conv", 2 * channels, channels, 2 * rate, bias=channels)
    up = prepare_up(weight / before[:, None, None], bias, rate)
    places = [f"{at}.{i}.block" for i in range(2, 2 + len(DILATIONS))]
    alphas = [_alpha(weights, f"{place}.0", channels) for place in places]
    units: list[Unit] = []
    for place, dilation, alpha, after in zip(
        places, DILATIONS, alphas, [*alphas[1:], following], strict=True
    ):
        mid = _alpha(weights, f"{place}.2", channels)
        wide, wide_bias = weights.normed(f"{place}.1.conv", channels, channels, 7)
        narrow, narrow_bias = weights.normed(f"{place}.3.conv", channels, channels, 1)
        wide = wide * mid[:, None, None] / alpha[None, :, None]
        units.append(
            Unit(
                prepare_conv(wide, wide_bias * mid, dilation),
                prepare_conv(narrow / mid[None, :, None], narrow_bias),
                after,
            )
        )
    return Block(up, alphas[0].repeat(rate), tuple(units))

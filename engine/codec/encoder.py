"""The encoding network: samples to frames of codes. Used once for each reference recording.

Owns which layers there are, in which order, under which names on disk. It streams like the decoder
does, so that a long recording needs no more memory than a short one.
"""

from __future__ import annotations

import math

from torch import Tensor

from .config import CodecConfig
from .decoder import DILATIONS, read_convnext, read_transformer, read_unit
from .layers import CausalConv, Conv, ConvNeXt, safe_alpha, snake_
from .rvq import Codebooks
from .state import StatePlan, Step
from .weights import Weights


class Encoder:
    """samples float32 [B, T * frame_samples] -> codes int32 [B, T, NQ]."""

    def __init__(self, config: CodecConfig, books: Codebooks, weights: Weights) -> None:
        self.plan = StatePlan()
        self._books = books
        latent, channels = config.quantizer.latent_dim, config.encoder_dim
        self._first = CausalConv(
            Conv(*weights.normed("encoder.block.0.conv", channels, 1, 7)), self.plan
        )
        self._blocks: list[_Block] = []
        for i in range(len(config.encoder_rates)):
            self._blocks.append(_Block(config, weights, i, self.plan))
        channels *= 2 ** len(config.encoder_rates)
        end = len(config.encoder_rates) + 1
        self._alpha = safe_alpha(weights.take(f"encoder.block.{end}.alpha", 1, channels, 1))
        weight, bias = weights.normed(f"encoder.block.{end + 1}.conv", latent, channels, 3)
        self._last = CausalConv(Conv(weight / self._alpha[None, :, None], bias), self.plan)
        self._downsample: list[tuple[CausalConv, ConvNeXt]] = []
        for i, factor in enumerate(config.quantizer.downsample):
            at = f"quantizer.downsample.{i}"
            conv = Conv(*weights.conv(f"{at}.0.conv", latent, latent, factor), stride=factor)
            mix = read_convnext(weights, f"{at}.1", latent, self.plan)
            self._downsample.append((CausalConv(conv, self.plan), mix))
        self._transformer = read_transformer(
            weights, "quantizer.pre_module", config.pre_post, 1, self.plan
        )

    def __call__(self, samples: Tensor, step: Step) -> Tensor:
        x = self._first(samples[:, :, None], step)
        for block in self._blocks:
            x = block(x, step)
        x = self._last(snake_(x * self._alpha), step)
        for down, mix in self._downsample:
            x = mix(down(x, step), step)
        return self._books.encode(self._transformer(x, step))


class _Block:
    """Three units, snake, strided convolution (C -> 2 C), and a transformer where there is one."""

    def __init__(self, config: CodecConfig, weights: Weights, index: int, plan: StatePlan) -> None:
        at = f"encoder.block.{index + 1}.block"
        rate, channels = config.encoder_rates[index], config.encoder_dim * 2**index
        self._units = [
            read_unit(weights, f"{at}.{i}", channels, dilation, plan)
            for i, dilation in enumerate(DILATIONS)
        ]
        self._alpha = safe_alpha(weights.take(f"{at}.3.alpha", 1, channels, 1))
        weight, bias = weights.normed(f"{at}.4.conv", 2 * channels, channels, 2 * rate)
        self._down = CausalConv(Conv(weight / self._alpha[None, :, None], bias, stride=rate), plan)
        shape = config.encoder_transformer(index)
        samples_per_step = math.prod(config.encoder_rates[: index + 1])
        self._transformer = shape and read_transformer(
            weights, f"{at}.5", shape, config.frame_samples // samples_per_step, plan
        )

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        for unit in self._units:
            x = unit(x, step)
        x = self._down(snake_(x * self._alpha), step)
        return self._transformer(x, step) if self._transformer else x

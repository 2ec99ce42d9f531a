"""The teacher's sound side: per-phoneme features and durations to samples (Kokoro-82M).

Every norm sees an utterance's true length only, so padding changes nothing. On a GPU the
convolutions run in float16 and what lies between them is fused, because the memory traffic of the
norms, not arithmetic, sets the speed. Inference only.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from .fusing import Fused
from .kokoro_text import PROSODY, Weights

SAMPLES_PER_FRAME = 600
"""25 ms at 24 kHz, the teacher's frame."""
HARMONICS = 9
_TIMBRE = slice(0, 128)
_STFT, _HOP = 20, 5
_STEPS_PER_PITCH = 300
_KERNELS = (3, 7, 11)
_DILATIONS = (1, 3, 5)


@dataclass(frozen=True, slots=True)
class _Span:
    """Which steps are real: ``mask`` float [B, 1, T], ``count`` [B, 1, 1]."""

    mask: Tensor
    count: Tensor

    def times(self, factor: int) -> _Span:
        return _Span(self.mask.repeat_interleave(factor, -1), self.count * factor)


def _normed(x: Tensor, gain: Tensor, offset: Tensor, mask: Tensor, count: Tensor) -> Tensor:
    x = x.float()
    mean = (x * mask).sum(-1, keepdim=True) / count
    centred = (x - mean) * mask
    variance = (centred * centred).sum(-1, keepdim=True) / count
    return ((1 + gain) * torch.rsqrt(variance + 1e-5) * centred + offset) * mask


def norm_leaky(x: Tensor, gain: Tensor, offset: Tensor, mask: Tensor, count: Tensor, like: Tensor):
    return F.leaky_relu(_normed(x, gain, offset, mask, count), 0.2).to(like.dtype)


def norm_snake(
    x: Tensor,
    gain: Tensor,
    offset: Tensor,
    mask: Tensor,
    count: Tensor,
    alpha: Tensor,
    like: Tensor,
):
    y = _normed(x, gain, offset, mask, count)
    return (y + torch.sin(alpha * y).square() / alpha).to(like.dtype)


def add_masked(x: Tensor, y: Tensor, mask: Tensor, scale: float) -> Tensor:
    return (x.float() + y.float()) * mask * scale


class SoundSide:
    """See :meth:`__call__`."""

    def __init__(self, weights: Weights) -> None:
        self._w = weights
        self._window = torch.hann_window(_STFT, device=weights.device)
        self._like = torch.empty(
            0, dtype=torch.float16 if weights.half else torch.float32, device=weights.device
        )
        self._norm_leaky: Callable[..., Tensor] = Fused(norm_leaky)
        self._norm_snake: Callable[..., Tensor] = Fused(norm_snake)
        self._add: Callable[..., Tensor] = Fused(add_masked)

    @torch.inference_mode()
    def __call__(
        self, prosody: Tensor, sound: Tensor, durations: Tensor, style: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """What ``TextSide`` gives, to samples [B, 600 F], frames [B] and the index of the phoneme
        each frame belongs to, int64 [B, F]."""
        frames = durations.sum(1)
        longest = int(frames.max())
        ends = durations.cumsum(1)
        ticks = torch.arange(longest, device=frames.device)[None].expand(len(frames), -1)
        index = torch.searchsorted(ends, ticks.contiguous(), right=True)
        index = index.clamp(max=durations.shape[1] - 1)
        mask = (ticks < frames[:, None]).float()[:, None]
        span = _Span(mask, frames.float()[:, None, None])

        def spread(x: Tensor) -> Tensor:
            wide = index[..., None].expand(-1, -1, x.shape[-1])
            return torch.gather(x, 1, wide).transpose(1, 2) * mask

        pitch, energy = self._curves(spread(prosody), frames, style[:, PROSODY], span)
        w, timbre = self._w, style[:, _TIMBRE]
        low_pitch = w.conv("decoder.F0_conv", pitch, stride=2, padding=1) * mask
        low_energy = w.conv("decoder.N_conv", energy, stride=2, padding=1) * mask
        text = spread(sound)
        x, span = self._block(
            "decoder.encode", torch.cat([text, low_pitch, low_energy], 1), timbre, span
        )
        kept = w.conv("decoder.asr_res.0", text).float() * mask
        for layer in range(4):
            joined = torch.cat([x, kept, low_pitch, low_energy], 1)
            x, span = self._block(f"decoder.decode.{layer}", joined, timbre, span, up=layer == 3)
        samples = self._generate(x, self._source(pitch), timbre, span)
        length = SAMPLES_PER_FRAME * longest
        audible = mask[:, 0].repeat_interleave(SAMPLES_PER_FRAME, -1)
        samples = samples[:, :length]
        return samples * audible[:, : samples.shape[1]], frames, index

    def _curves(
        self, spread: Tensor, frames: Tensor, style: Tensor, span: _Span
    ) -> tuple[Tensor, Tensor]:
        """Pitch in Hz and energy, [B, 1, 2 F]."""
        shared = self._w.lstm("predictor.shared", spread.transpose(1, 2), frames).transpose(1, 2)
        curves: list[Tensor] = []
        for part in ("F0", "N"):
            x, wide = self._block(f"predictor.{part}.0", shared, style, span)
            x, wide = self._block(f"predictor.{part}.1", x, style, wide, up=True)
            x, wide = self._block(f"predictor.{part}.2", x, style, wide)
            curves.append(self._w.conv(f"predictor.{part}_proj", x).float() * wide.mask)
        return curves[0], curves[1]

    def _affine(self, at: str, style: Tensor) -> tuple[Tensor, ...]:
        return self._w.linear(f"{at}.fc", style)[:, :, None].chunk(2, 1)

    def _block(
        self, at: str, x: Tensor, style: Tensor, span: _Span, up: bool = False
    ) -> tuple[Tensor, _Span]:
        w = self._w
        y = self._norm_leaky(
            x, *self._affine(f"{at}.norm1", style), span.mask, span.count, self._like
        )
        if up:
            pool = dict(stride=2, padding=1, output_padding=1, groups=y.shape[1])
            span = span.times(2)
            y = w.conv_transposed(f"{at}.pool", y, **pool) * span.mask
            x = x.repeat_interleave(2, -1)
        y = w.conv(f"{at}.conv1", y, padding=1)
        y = self._norm_leaky(
            y, *self._affine(f"{at}.norm2", style), span.mask, span.count, self._like
        )
        y = w.conv(f"{at}.conv2", y, padding=1)
        if f"{at}.conv1x1.weight" in w:
            x = w.conv(f"{at}.conv1x1", x)
        return self._add(x, y, span.mask, math.sqrt(0.5)), span

    def _source(self, pitch: Tensor) -> Tensor:
        """The harmonic excitation as a short-time spectrum [B, 22, steps]."""
        hertz = pitch[:, 0]
        order = torch.arange(1, HARMONICS + 1, device=pitch.device)[None, :, None]
        turns = ((hertz[:, None] * order / 24000.0) % 1).double().cumsum(-1) * _STEPS_PER_PITCH
        turns = F.interpolate(turns, scale_factor=float(_STEPS_PER_PITCH), mode="linear")
        waves = torch.sin((2 * math.pi) * (turns % 1).float()) * 0.1
        voiced = (hertz > 10).float().repeat_interleave(_STEPS_PER_PITCH, -1)[:, None]
        noise = voiced * 0.003 + (1 - voiced) * 0.1 / 3
        waves = waves * voiced + noise * torch.randn_like(waves)
        at = "decoder.generator.m_source.l_linear"
        source = torch.tanh(self._w.linear(at, waves.transpose(1, 2)))[..., 0]
        spectrum = torch.stft(source, _STFT, _HOP, _STFT, window=self._window, return_complex=True)
        return torch.cat([spectrum.abs(), spectrum.angle()], 1)

    def _generate(self, x: Tensor, source: Tensor, style: Tensor, span: _Span) -> Tensor:
        w, at = self._w, "decoder.generator"
        for stage, (factor, kernel, source_kernel) in enumerate(((10, 20, 7), (6, 12, 11))):
            span = span.times(factor)
            if stage == 0:
                added = w.conv(f"{at}.noise_convs.0", source, stride=6, padding=3)
            else:
                added = w.conv(f"{at}.noise_convs.1", source)
                span = _Span(F.pad(span.mask, (1, 0), value=1.0), span.count + 1)
            added = added * span.mask
            added = self._resonate(f"{at}.noise_res.{stage}", added, style, span, source_kernel)
            x = F.leaky_relu(x, 0.1)
            x = w.conv_transposed(
                f"{at}.ups.{stage}", x, stride=factor, padding=(kernel - factor) // 2
            )
            if stage == 1:
                x = F.pad(x, (1, 0), mode="reflect")
            x = self._add(x, added, span.mask, 1.0)
            heard = [
                self._resonate(f"{at}.resblocks.{3 * stage + i}", x, style, span, kernel)
                for i, kernel in enumerate(_KERNELS)
            ]
            x = (heard[0] + heard[1] + heard[2]) / 3
        weight, bias = w[f"{at}.conv_post.weight"], w[f"{at}.conv_post.bias"]
        x = F.conv1d(F.leaky_relu(x), weight, bias, padding=3)
        half = _STFT // 2 + 1
        spectrum = torch.polar(torch.exp(x[:, :half].clamp(max=10)), torch.sin(x[:, half:]))
        return torch.istft(spectrum, _STFT, _HOP, _STFT, window=self._window)

    def _resonate(self, at: str, x: Tensor, style: Tensor, span: _Span, kernel: int) -> Tensor:
        w = self._w
        for i, dilation in enumerate(_DILATIONS):
            y = self._snake(f"{at}.adain1.{i}", x, style, span, w[f"{at}.alpha1.{i}"])
            reach = (kernel - 1) * dilation // 2
            y = w.conv(f"{at}.convs1.{i}", y, dilation=dilation, padding=reach)
            y = self._snake(f"{at}.adain2.{i}", y, style, span, w[f"{at}.alpha2.{i}"])
            y = w.conv(f"{at}.convs2.{i}", y, padding=(kernel - 1) // 2)
            x = self._add(x, y, span.mask, 1.0)
        return x

    def _snake(self, at: str, x: Tensor, style: Tensor, span: _Span, alpha: Tensor) -> Tensor:
        return self._norm_snake(
            x, *self._affine(at, style), span.mask, span.count, alpha, self._like
        )

"""What judges the codec while it learns: spectra, discriminators, and a listener.

The listener reads the teacher's phonemes from sound, and who speaks. It learns from recordings
only; the codec is rewarded when the listener hears in its output what it hears in the recording,
which is the loss closest to being understood and recognised. None of this is needed once the codec
is trained.
"""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from .texts import PHONEMES

MEL_SCALES = ((2048, 160), (1024, 120), (512, 80), (256, 40), (128, 20), (64, 10))
PERIODS = (2, 3, 5, 7, 11)
SPECTRA = (1024, 512, 256)
SPEAKERS = 2048
"""Room for the largest pool, so that a state fits any."""


def mel_filters(rate: int, window: int, bands: int) -> Tensor:
    """[window / 2 + 1, bands], each band a triangle of unit sum."""
    top = 2595 * math.log10(1 + rate / 2 / 700)
    edges = 700 * (10 ** (np.linspace(0, top, bands + 2) / 2595) - 1)
    hertz = np.linspace(0, rate / 2, window // 2 + 1)[:, None]
    rising = (hertz - edges[:-2]) / np.maximum(edges[1:-1] - edges[:-2], 1e-6)
    falling = (edges[2:] - hertz) / np.maximum(edges[2:] - edges[1:-1], 1e-6)
    filters = torch.tensor(np.maximum(0, np.minimum(rising, falling)), dtype=torch.float32)
    return filters / filters.sum(0, keepdim=True).clamp(min=1e-6)


class Mel(nn.Module):
    """[B, N] -> magnitudes [B, steps, bands]."""

    def __init__(self, rate: int, window: int, bands: int, hop: int) -> None:
        super().__init__()
        self.register_buffer("filters", mel_filters(rate, window, bands), persistent=False)
        self.register_buffer("window", torch.hann_window(window), persistent=False)
        self._size, self._hop = window, hop

    def forward(self, x: Tensor) -> Tensor:
        # Small magnitudes matter here, so not in whatever precision the networks use.
        with torch.autocast(x.device.type, enabled=False):
            spectrum = torch.stft(
                x.float(), self._size, self._hop, window=self.window, return_complex=True
            ).abs()
            return (spectrum / math.sqrt(self._size)).transpose(1, 2) @ self.filters


class MelDistance(nn.Module):
    """Distance of two recordings [B, N] over several mel spectra, plain and logarithmic."""

    def __init__(self, rate: int) -> None:
        super().__init__()
        self.scales = nn.ModuleList(Mel(rate, n, bands, n // 4) for n, bands in MEL_SCALES)

    def forward(self, one: Tensor, other: Tensor) -> Tensor:
        total = one.new_zeros(())
        for scale in self.scales:
            a, b = scale(one), scale(other)
            loud = (a.clamp(min=1e-4).log10() - b.clamp(min=1e-4).log10()).abs().mean()
            total = total + loud + (a - b).abs().mean()
        return total / len(self.scales)


class _PeriodCritic(nn.Module):
    def __init__(self, period: int, width: int) -> None:
        super().__init__()
        sizes = (1, width, 2 * width, 4 * width, 6 * width)
        self.layers = nn.ModuleList(
            weight_norm(nn.Conv2d(a, b, (5, 1), (3, 1), (2, 0))) for a, b in pairwise(sizes)
        )
        self.layers.append(weight_norm(nn.Conv2d(sizes[-1], sizes[-1], (5, 1), 1, (2, 0))))
        self.out = weight_norm(nn.Conv2d(sizes[-1], 1, (3, 1), 1, (1, 0)))
        self._period = period

    def forward(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        x = F.pad(x, (0, -x.shape[-1] % self._period), mode="reflect")
        return _judged(self, x.view(len(x), 1, -1, self._period))


class _SpectrumCritic(nn.Module):
    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        self.register_buffer("window", torch.hann_window(size), persistent=False)
        self.layers = nn.ModuleList([weight_norm(nn.Conv2d(2, width, (3, 9), 1, (1, 4)))])
        for _ in range(3):
            self.layers.append(weight_norm(nn.Conv2d(width, width, (3, 9), (1, 2), (1, 4))))
        self.layers.append(weight_norm(nn.Conv2d(width, width, (3, 3), 1, (1, 1))))
        self.out = weight_norm(nn.Conv2d(width, 1, (3, 3), 1, (1, 1)))
        self._size = size

    def forward(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        spectrum = torch.stft(
            x[:, 0].float(), self._size, self._size // 4, window=self.window, return_complex=True
        )
        parts = torch.view_as_real(spectrum).permute(0, 3, 2, 1)
        return _judged(self, parts * (4 / math.sqrt(self._size)))


def _judged(critic: nn.Module, x: Tensor) -> tuple[Tensor, list[Tensor]]:
    features: list[Tensor] = []
    for layer in critic.layers:
        x = F.leaky_relu(layer(x), 0.1)
        features.append(x)
    return critic.out(x), features


class Critics(nn.Module):
    """[B, 1, N] -> for each discriminator its verdict and its features."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.all = nn.ModuleList(
            [
                *(_PeriodCritic(period, width) for period in PERIODS),
                *(_SpectrumCritic(size, width) for size in SPECTRA),
            ]
        )

    def forward(self, x: Tensor) -> list[tuple[Tensor, list[Tensor]]]:
        return [critic(x) for critic in self.all]


class Listener(nn.Module):
    """[B, N] -> phoneme scores [B, PHONEMES, N / 600] and features, both at 25 ms a step, and
    scores of who speaks [B, SPEAKERS]."""

    def __init__(self, rate: int, width: int = 256) -> None:
        super().__init__()
        self.mel = Mel(rate, 1024, 80, 300)
        self.first = nn.Conv1d(80, width, 4, stride=2, padding=1)
        self.layers = nn.ModuleList(
            nn.Conv1d(width, width, 5, padding=2 * d, dilation=d) for d in (1, 2, 1, 2)
        )
        self.norms = nn.ModuleList(nn.GroupNorm(1, width) for _ in self.layers)
        self.out = nn.Conv1d(width, PHONEMES, 1)
        self.who = nn.Linear(2 * width, SPEAKERS)

    def forward(self, audio: Tensor) -> tuple[Tensor, list[Tensor], Tensor]:
        count = audio.shape[-1] // 600
        mel = self.mel(audio).clamp(min=1e-4).log10().transpose(1, 2)
        x = F.gelu(self.first(mel[..., : 2 * count]))
        features: list[Tensor] = []
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = x + F.gelu(layer(norm(x)))
            features.append(x)
        middle, spread = x.float().mean(-1), (x.float().var(-1) + 1e-5).sqrt()
        pooled = torch.cat([middle, spread], -1)
        return self.out(x), features, self.who(pooled)

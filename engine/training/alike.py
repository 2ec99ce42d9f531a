"""How alike the voices of two recordings are, as something a codec can be trained by.

The speaker encoder is Resemblyzer's (PyPI ``Resemblyzer`` 0.1.4, a GE2E LSTM), run from its weights
alone and never trained. Speech of 24 kHz is not resampled to the 16 kHz the encoder knows: the
spectrum of 25 ms has the same bins of 40 Hz at both rates, and the encoder's bands end at 8 kHz.
Needs torch and numpy only; the command that compares files is ``likeness``.
"""

from __future__ import annotations

import importlib.util
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

RATE = 16_000
FFT, HOP, BANDS = 400, 160, 40
WINDOW = 160
"""Mel steps of 10 ms that are judged together."""
QUIETEST_DB = -30.0
EARLY = (80, 120)
"""Mel steps after which, besides the last, directions are compared: the voice has to be there
early as well."""


class NoEncoder(Exception):
    """Resemblyzer's weights are not installed; the message says how to get them."""


def find_weights(package: str = "resemblyzer") -> Path:
    """Where ``package`` keeps the encoder's weights. Raises NoEncoder where it is not installed."""
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        wanted = (sys.executable, "-m", "pip", "install", "--no-deps", "Resemblyzer==0.1.4")
        raise NoEncoder(f"Resemblyzer is not installed: {shlex.join(wanted)}")
    return Path(found.origin).with_name("pretrained.pt")


def slaney_filters(rate: int, fft: int, count: int) -> npt.NDArray[np.float64]:
    """Triangles of equal area [count, fft / 2 + 1]; linear below 1 kHz, then logarithmic."""
    step = np.log(6.4) / 27
    top = 15 + np.log(rate / 2 / 1000) / step
    mels = np.linspace(0, top, count + 2)
    edges = np.where(mels < 15, mels * 200 / 3, 1000 * np.exp(step * (mels - 15)))
    bins = np.linspace(0, rate / 2, fft // 2 + 1)
    low, centre, high = (edges[k : k + count, None] for k in range(3))
    rising, falling = (bins - low) / (centre - low), (high - bins) / (high - centre)
    return np.maximum(0, np.minimum(rising, falling)) * 2 / (high - low)


class Directions(nn.Module):
    """Mel bands [B, steps, :data:`BANDS`] -> directions of length 1 after each step
    [B, steps, 256]."""

    def __init__(self, weights: Path | None = None) -> None:
        """:raises NoEncoder: no weights were given and none are installed."""
        super().__init__()
        self.lstm = nn.LSTM(BANDS, 256, num_layers=3, batch_first=True)
        self.linear = nn.Linear(256, 256)
        stored = torch.load(weights or find_weights(), "cpu", weights_only=True)
        stored = stored.get("model_state", stored)
        own = self.state_dict()
        self.load_state_dict({key: stored[key].float() for key in own})
        # cuDNN goes backwards through an LSTM in training mode only; nothing here differs by it.
        self.train()
        self.requires_grad_(False)

    def forward(self, bands: Tensor) -> Tensor:
        return F.normalize(torch.relu(self.linear(self.lstm(bands)[0])), dim=-1)

    def stored(self) -> Mapping[str, Tensor]:
        """What a file of it holds, in half precision: 2.9 MB."""
        return {key: value.half().cpu() for key, value in self.state_dict().items()}


class Alike(nn.Module):
    """Recordings and their copies [B, N] at ``rate`` -> cosines of their voices [B]. Gradients
    reach the copies only."""

    def __init__(self, rate: int, weights: Path | None = None) -> None:
        """Raises ValueError for a rate whose frames have other bins than the encoder's."""
        super().__init__()
        if rate < RATE or rate % 200:
            raise ValueError(f"voices are compared at 16 kHz and more, not at {rate} Hz")
        self._size, self._hop = rate // 40, rate // 100
        self.directions = Directions(weights)
        filters = torch.from_numpy(slaney_filters(RATE, FFT, BANDS)).float()
        # A longer sum over the same 25 ms is larger by as much.
        self.register_buffer("filters", filters.T * (FFT / self._size) ** 2, persistent=False)
        self.register_buffer("window", torch.hann_window(self._size), persistent=False)

    def bands(self, audio: Tensor) -> Tensor:
        """[B, N] -> [B, 1 + N / hop, :data:`BANDS`]."""
        spectrum = torch.stft(
            audio.float(),
            self._size,
            self._hop,
            window=self.window,
            pad_mode="constant",
            return_complex=True,
        )
        kept = spectrum[:, : FFT // 2 + 1]
        return (kept.real.square() + kept.imag.square()).transpose(1, 2) @ self.filters

    def forward(self, recording: Tensor, copy: Tensor) -> Tensor:
        with torch.autocast(recording.device.type, enabled=False):
            with torch.no_grad():
                level = recording.float().square().mean(1, keepdim=True).sqrt()
                louder = (10 ** (QUIETEST_DB / 20) / level.clamp(min=1e-5)).clamp(min=1.0)
                wanted = self._judged(recording * louder)
            return (self._judged(copy * louder) * wanted).sum(-1).mean(1)

    def _judged(self, audio: Tensor) -> Tensor:
        bands = self.bands(audio)[:, :WINDOW]
        steps = [step - 1 for step in EARLY if step < bands.shape[1]]
        return self.directions(bands)[:, [*steps, bands.shape[1] - 1]]

"""The ``like`` command: how alike voices are, by Resemblyzer's speaker encoder.

The encoder is run from its weights alone (PyPI ``Resemblyzer`` 0.1.4, installed without what it
asks for). Halves of one voice come out at about 0.9, two voices at about 0.55.
"""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path

import numpy as np
import numpy.typing as npt
import soundfile
import soxr
import torch
import torch.nn.functional as F
from torch import Tensor, nn

RATE = 16_000
FFT, HOP, BANDS = 400, 160, 40
WINDOW = 160
"""Mel steps of 10 ms that are judged together; windows overlap by half."""
QUIETEST_DB = -30.0

Samples = npt.NDArray[np.float32]


class NoEncoder(Exception):
    """Resemblyzer's weights are not installed; the message says how to get them."""


class SpeakerEncoder:
    """Speech to a direction in 256 dimensions; one voice always about the same."""

    def __init__(self, weights: Path | None = None) -> None:
        """:raises NoEncoder: no weights were given and none are installed."""
        stored = torch.load(weights or find_weights(), "cpu", weights_only=True)["model_state"]
        self._lstm = nn.LSTM(BANDS, 256, num_layers=3, batch_first=True)
        self._linear = nn.Linear(256, 256)
        for name, part in (("lstm.", self._lstm), ("linear.", self._linear)):
            own = {k.removeprefix(name): v for k, v in stored.items() if k.startswith(name)}
            part.load_state_dict(own)
        self._filters = torch.from_numpy(slaney_filters(RATE, FFT, BANDS)).float()

    @torch.inference_mode()
    def __call__(self, samples: Samples) -> Samples:
        """Mono at :data:`RATE` -> float32 [256] of length 1.

        Raises ValueError for less than 1.6 s of sound.
        """
        samples = without_pauses(samples)
        if len(samples) < WINDOW * HOP:
            raise ValueError(f"{len(samples) / RATE:.1f} s of sound are too few to tell a voice")
        level = float(np.sqrt(np.mean(samples**2)))
        wave = torch.from_numpy(samples * max(1.0, 10 ** (QUIETEST_DB / 20) / level))
        spectrum = torch.stft(
            wave,
            FFT,
            HOP,
            window=torch.hann_window(FFT),
            pad_mode="constant",
            return_complex=True,
        )
        bands: Tensor = (self._filters @ spectrum.abs().square()).T
        windows = bands.unfold(0, WINDOW, WINDOW // 2).transpose(1, 2)
        _, (hidden, _) = self._lstm(windows)
        each = F.normalize(torch.relu(self._linear(hidden[-1])), dim=1)
        return F.normalize(each.mean(0), dim=0).numpy()


def find_weights() -> Path:
    found = importlib.util.find_spec("resemblyzer")
    if found is None or found.origin is None:
        raise NoEncoder("Resemblyzer is not installed: pip install --no-deps Resemblyzer==0.1.4")
    return Path(found.origin).with_name("pretrained.pt")


def without_pauses(samples: Samples) -> Samples:
    """What lies within 75 ms of sound."""
    blocks = samples[: len(samples) // HOP * HOP].reshape(-1, HOP)
    loud = np.sqrt(np.mean(blocks**2, axis=1)) > 0.01
    return blocks[np.convolve(loud, np.ones(15), "same") > 0].reshape(-1)


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


def read_voice(path: Path) -> Samples:
    """A recording, or all recordings of a folder in a row, mono at :data:`RATE`."""
    files = sorted(path.glob("*.wav")) if path.is_dir() else [path]
    if not files:
        raise FileNotFoundError(f"{path} holds no .wav")
    parts: list[Samples] = []
    for file in files:
        sound, rate = soundfile.read(file, dtype="float32", always_2d=True)
        parts.append(soxr.resample(sound.mean(1), rate, RATE).astype(np.float32))
    return np.concatenate(parts)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="like", description=__doc__)
    parser.add_argument("voices", type=Path, nargs="+", help="recordings, or folders of them")
    parser.add_argument(
        "--windows-s", type=float, default=0.0, help="also each voice against its own beginning"
    )
    flags = parser.parse_args(argv)
    try:
        encoder = SpeakerEncoder()
        sounds = [read_voice(path) for path in flags.voices]
        found = np.stack([encoder(sound) for sound in sounds])
    except (NoEncoder, FileNotFoundError, ValueError) as failure:
        print(f"like: {failure}")
        return 1
    for path, row in zip(flags.voices, found @ found.T, strict=True):
        print(" ".join(f"{cosine:.2f}" for cosine in row), f" {path}")
    span = int(flags.windows_s * RATE)
    if span:
        for path, sound in zip(flags.voices, sounds, strict=True):
            cuts = range(0, len(sound) - span + 1, span)
            parts = np.stack([encoder(sound[cut : cut + span]) for cut in cuts])
            print("drift", " ".join(f"{cosine:.2f}" for cosine in parts @ parts[0]), f" {path}")
    return 0

"""The ``like`` command: how alike voices are, by Resemblyzer's speaker encoder.

The encoder is run from its weights alone (PyPI ``Resemblyzer`` 0.1.4, installed without what it
asks for). Halves of one voice come out at about 0.9, two voices at about 0.55.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import numpy.typing as npt
import soundfile
import soxr
import torch
import torch.nn.functional as F
from torch import Tensor

from .alike import (
    BANDS,
    FFT,
    HOP,
    QUIETEST_DB,
    RATE,
    WINDOW,
    Directions,
    NoEncoder,
    slaney_filters,
)

Samples = npt.NDArray[np.float32]


class SpeakerEncoder:
    """Speech to a direction in 256 dimensions; one voice always about the same."""

    def __init__(self, weights: Path | None = None) -> None:
        """:raises NoEncoder: no weights were given and none are installed."""
        self._directions = Directions(weights)
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
        each = self._directions(windows)[:, -1]
        return F.normalize(each.mean(0), dim=0).numpy()


def without_pauses(samples: Samples) -> Samples:
    """What lies within 75 ms of sound."""
    blocks = samples[: len(samples) // HOP * HOP].reshape(-1, HOP)
    loud = np.sqrt(np.mean(blocks**2, axis=1)) > 0.01
    return blocks[np.convolve(loud, np.ones(15), "same") > 0].reshape(-1)


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
    parser.add_argument("voices", type=Path, nargs="*", help="recordings, or folders of them")
    parser.add_argument(
        "--windows-s", type=float, default=0.0, help="also each voice against its own beginning"
    )
    parser.add_argument("--save-encoder", type=Path, help="its weights, for codec --alike")
    flags = parser.parse_args(argv)
    try:
        if flags.save_encoder is not None:
            torch.save(Directions().stored(), flags.save_encoder)
        if not flags.voices:
            return 0
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

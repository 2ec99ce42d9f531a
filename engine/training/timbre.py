"""A second opinion on voices, by nothing that was trained: the spread of cepstra.

What an encoder was trained towards may please that encoder and no ear, so voices are also told
apart as was done before there were encoders (Bimbot, Magrin-Chagnolleau, Mathan 1995): each is one
Gaussian of its mel cepstra, and two are as far apart as the symmetric divergence of the two.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .alike import slaney_filters

FFT = 400
CEPSTRA = 16
"""Without the first, which is loudness."""

Samples = npt.NDArray[np.float32]
Matrix = npt.NDArray[np.float64]


def cepstra(samples: Samples, rate: int = 16_000) -> Matrix:
    """Mono speech, its pauses cut, -> [steps of 10 ms, :data:`CEPSTRA`]."""
    hop = rate // 100
    count = 1 + (len(samples) - FFT) // hop
    if count < 1:
        return np.zeros((0, CEPSTRA))
    frames = np.lib.stride_tricks.as_strided(
        np.ascontiguousarray(samples),
        (count, FFT),
        (hop * samples.itemsize, samples.itemsize),
        writeable=False,
    )
    power = np.abs(np.fft.rfft(frames * np.hanning(FFT))) ** 2
    filters = slaney_filters(rate, FFT, 40)
    bands = power @ filters.T
    # What is 50 dB below speech is not a voice.
    bands = np.log(bands + 1e-5 * bands.mean(0).max())
    angles = np.outer(np.arange(1, CEPSTRA + 1), np.arange(40) + 0.5) * np.pi / 40
    return bands @ np.cos(angles).T


def divergence(one: Matrix, other: Matrix) -> float:
    """Symmetric divergence of the Gaussians of two voices, in nats a dimension; 0 for the same.

    Raises ValueError for less than half a second.
    """
    if min(len(one), len(other)) < 50:
        raise ValueError("half a second of sound is needed to tell a voice")
    means = [x.mean(0) for x in (one, other)]
    spreads = [np.cov(x, rowvar=False) + 1e-3 * np.eye(x.shape[1]) for x in (one, other)]
    inverse = [np.linalg.inv(spread) for spread in spreads]
    size = one.shape[1]
    apart = means[0] - means[1]
    turned = np.trace(spreads[0] @ inverse[1]) + np.trace(spreads[1] @ inverse[0]) - 2 * size
    moved = apart @ (inverse[0] + inverse[1]) @ apart
    return float(turned + moved) / (2 * size)


def nearness(voices: dict[str, Matrix], copies: dict[str, Matrix]) -> dict[str, float]:
    """For each copy how far it is from its own voice, as a share of how far it is from the nearest
    other one: below 1 it is closest to its own. Needs two voices."""
    found: dict[str, float] = {}
    for name, copy in copies.items():
        others = [divergence(copy, voice) for other, voice in voices.items() if other != name]
        found[name] = divergence(copy, voices[name]) / min(others)
    return found

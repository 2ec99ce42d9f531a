"""The counter-based generator behind every draw: Philox4x32-10 as tensor arithmetic.

Owns how a draw is addressed, so that any device can reproduce it. The key is the request's 64-bit
seed. The counter's four words are (candidate // 4, codebook, draw, stream); the candidate's number
comes from output word candidate % 4. ``codebook`` 0 is the slow token, whose candidates are the
semantic codes in order and then the end token; ``draw`` counts a stream's frames; ``stream`` is 0,
or 1 for the second draw that repetition-aware sampling makes of a slow token. Nothing depends on
the batch, the slot or the order of execution.

Written in the subset of Python that TorchScript compiles.
"""

from __future__ import annotations

import torch
from torch import Tensor

MASK32 = 0xFFFFFFFF


def philox4x32(c0: Tensor, c1: Tensor, c2: Tensor, c3: Tensor, k0: Tensor, k1: Tensor) -> Tensor:
    """Ten rounds. All int64 tensors holding 32-bit words, broadcast together to a shape S (by
    the third round every word has met every other).

    Returns int64 [*S, 4], the four output words. Products wrap modulo 2**64, and whatever a word
    carries above its 32 bits is masked before it is multiplied or returned.
    """
    for _ in range(10):
        product0 = c0 * 0xD2511F53
        product1 = c2 * 0xCD9E8D57
        c0 = ((product1 >> 32) ^ c1 ^ k0) & 0xFFFFFFFF
        c2 = ((product0 >> 32) ^ c3 ^ k1) & 0xFFFFFFFF
        c1 = product1
        c3 = product0
        k0 = k0 + 0x9E3779B9
        k1 = k1 + 0xBB67AE85
    return torch.stack([c0, c1, c2, c3], -1) & 0xFFFFFFFF


def log_exponential(
    seeds: Tensor, draws: Tensor, codebooks: Tensor, streams: Tensor, candidates: int
) -> Tensor:
    """Log of a unit exponential variate per candidate: what the race of a draw subtracts.

    ``seeds`` int64 [B, 2] (low and high word), ``draws`` int64 [B], ``codebooks`` and ``streams``
    int64 [S]. Returns float32 [B, S, candidates]. The uniform under it is (word // 512 + 0.5) /
    2**23, exact in float32 and never 0 or 1.
    """
    quads = (candidates + 3) // 4
    words = philox4x32(
        torch.arange(quads, dtype=torch.int64, device=seeds.device).view(1, 1, quads),
        codebooks.view(1, -1, 1),
        draws.view(-1, 1, 1),
        streams.view(1, -1, 1),
        seeds[:, 0].view(-1, 1, 1),
        seeds[:, 1].view(-1, 1, 1),
    )
    words = words.view(draws.size(0), codebooks.size(0), quads * 4)[:, :, :candidates]
    uniform = ((words >> 9).to(torch.float32) + 0.5) * 1.1920928955078125e-07
    return torch.log(-torch.log(uniform))


def seed_words(seed: int) -> tuple[int, int]:
    """The two key words of a seed; any Python int, taken modulo 2**64."""
    return seed & MASK32, (seed >> 32) & MASK32

"""The codec's attention over a ring, against plain torch that has every frame of a stream."""

from __future__ import annotations

import os

import pytest
import torch
from torch import Tensor

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before the first kernel is imported

from shoal.kernels.ring_attention import ring_attention

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SLOTS = 4


def turn_of(now: Tensor, frames: int, pairs: int) -> tuple[Tensor, Tensor]:
    frequency = 100.0 ** (-torch.arange(pairs, device=DEVICE) / pairs)
    angle = (now[:, None] + torch.arange(frames, device=DEVICE))[:, :, None] * frequency
    return angle.cos().contiguous(), angle.sin().contiguous()


def attended(
    qkv: Tensor, slots: Tensor, first: Tensor, ring: Tensor, cuts: tuple[int, ...]
) -> Tensor:
    """fp16 [rows, frames, dim] of ``qkv`` [rows, frames, 3 dim], in calls of ``cuts`` frames, for
    streams that have ``first`` frames behind them."""
    rows, _, width = qkv.shape
    parts: list[Tensor] = []
    at = 0
    for frames in cuts:
        part = qkv[:, at : at + frames].reshape(-1, width).contiguous()
        out = torch.full((rows * frames, width // 3), torch.nan, device=DEVICE).half()
        turn = turn_of(first + at, frames, ring.shape[4] // 2)
        ring_attention(part, turn, slots, first + at, ring, out)
        parts.append(out.view(rows, frames, -1))
        at += frames
    return torch.cat(parts, 1)


def reference(qkv: Tensor, first: Tensor, heads: int, window: int) -> Tensor:
    """float64, of streams whose first frame is their ``first``th and that have none before it."""
    rows, frames, width = qkv.shape
    split = qkv.double().view(rows, frames, 3, heads, width // heads // 3)
    pairs = split.shape[4] // 2
    cos, sin = (t.double()[:, :, None, None] for t in turn_of(first, frames, pairs))
    even, odd = split[:, :, :2, :, 0::2], split[:, :, :2, :, 1::2]
    turned = torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2)
    q, k, v = (t.transpose(1, 2) for t in (*turned.unbind(2), split[:, :, 2]))
    far = torch.arange(frames, device=DEVICE)
    ago = far[:, None] - far
    mask = (ago >= 0) & (ago < window)
    mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v, mask)
    return mixed.transpose(1, 2).reshape(rows, frames, -1)


def error_of(got: Tensor, wanted: Tensor) -> float:
    off = (got.double() - wanted).pow(2).mean() / wanted.pow(2).mean()
    return float(off.sqrt())


def drawn(rows: int, frames: int, dim: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, frames, 3 * dim, generator=generator).to(DEVICE)


def ring_of(heads: int, window: int, head_dim: int) -> Tensor:
    # A slot's ring still holds what a stream before left there: none of it may be read.
    return torch.full((2, SLOTS, heads, window, head_dim), torch.nan, device=DEVICE).half()


@pytest.mark.parametrize(("heads", "window", "head_dim"), [(2, 8, 16), (3, 6, 12), (1, 4, 64)])
def test_it_is_attention_over_the_last_frames(heads: int, window: int, head_dim: int) -> None:
    """Also past several turns of the ring, and for sizes that are no powers of two."""
    qkv = drawn(2, 21, heads * head_dim)
    slots, start = torch.tensor([2, 0], device=DEVICE), torch.zeros(2, dtype=torch.int64)
    start = start.to(DEVICE)
    ring = ring_of(heads, window, head_dim)
    got = attended(qkv, slots, start, ring, (1, 2, 4, 1, 3, 4, 4, 2))
    wanted = reference(qkv, start, heads, window)
    assert error_of(got, wanted) < 1e-3
    # Other slots are as they were, and a ring holds the last frames' values at their places.
    assert bool(ring[:, [1, 3]].isnan().all())
    values = qkv[:, -window:, 2 * heads * head_dim :].view(2, window, heads, head_dim).half()
    places = (torch.arange(21 - window, 21) % window).to(DEVICE)
    assert torch.equal(ring[1][slots][:, :, places], values.transpose(1, 2))


def test_bits_depend_neither_on_the_cut_nor_on_neighbours() -> None:
    qkv = drawn(3, 16, 32, seed=1)
    slots = torch.tensor([3, 1, 2], device=DEVICE)
    start = torch.zeros(3, dtype=torch.int64, device=DEVICE)
    rings = [ring_of(2, 8, 16) for _ in range(3)]
    one_by_one = attended(qkv, slots, start, rings[0], (1,) * 16)
    together = attended(qkv, slots, start, rings[1], (8, 4, 4))
    assert torch.equal(one_by_one, together)
    assert torch.equal(rings[0][:, slots], rings[1][:, slots])
    for row in range(3):
        alone = slice(row, row + 1)
        single = attended(qkv[alone], slots[alone], start[alone], rings[2], (4, 8, 4))
        assert torch.equal(single[0], together[row])


def test_streams_may_be_at_different_places() -> None:
    qkv = drawn(2, 9, 16, seed=2)
    slots, ring = torch.tensor([0, 1], device=DEVICE), ring_of(1, 8, 16)
    start = torch.zeros(2, dtype=torch.int64, device=DEVICE)
    begun = attended(qkv[:1, :5], slots[:1], start[:1], ring, (5,))
    first = torch.tensor([5, 0], device=DEVICE)
    both = torch.cat((qkv[:1, 5:], qkv[1:, :4]))
    got = attended(both, slots, first, ring, (4,))
    wanted = reference(qkv, start, 1, 8)
    for had, expected in ((torch.cat((begun[0], got[0])), wanted[0]), (got[1], wanted[1, :4])):
        assert error_of(had, expected) < 1e-3

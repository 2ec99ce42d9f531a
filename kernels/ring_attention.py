"""Attention of a few new frames over a ring of the last ``window`` keys and values, for a codec.

One program owns a row and a head: it holds the ring in registers, puts each new frame into its
place, attends, and writes back only what is new. So it is exact for any cut of a stream, and a
frame's bits do not depend on the cut. Keys lie with their even channels first, then the odd ones.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .rounding import let_next_start, wait_for_previous
from .snake import codec_options, half


@triton.jit
def ring_kernel(
    QKV, COS, SIN, SLOTS, NOW, KEYS, VALUES, OUT, scale,
    HEADS: tl.constexpr, HD: tl.constexpr, HB: tl.constexpr,
    WINDOW: tl.constexpr, WB: tl.constexpr, FRAMES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(0)
    head = tl.program_id(1)
    dim: tl.constexpr = HEADS * HD
    halves: tl.constexpr = HD // 2
    now = tl.load(NOW + b)
    j = tl.arange(0, WB)
    i = tl.arange(0, HB)
    d = tl.arange(0, 2 * HB)
    pair = i < halves
    ring = (tl.load(SLOTS + b) * WINDOW + j[:, None]) * dim + head * HD
    known = (j < WINDOW) & (j < now)
    even_at, odd_at, value_at = ring + i[None, :], ring + halves + i[None, :], ring + d[None, :]
    seen_half = known[:, None] & pair[None, :]
    k_even = tl.load(KEYS + even_at, mask=seen_half, other=0.0)
    k_odd = tl.load(KEYS + odd_at, mask=seen_half, other=0.0)
    v = tl.load(VALUES + value_at, mask=known[:, None] & (d < HD)[None, :], other=0.0)
    # What was in the ring before is from calls long done: it is on its way during this wait.
    let_next_start(PDL)
    wait_for_previous(PDL)
    for t in range(FRAMES):
        at = b * FRAMES + t
        q = QKV + at.to(tl.int64) * 3 * dim + head * HD
        cos = tl.load(COS + at * halves + i, mask=pair, other=0.0)
        sin = tl.load(SIN + at * halves + i, mask=pair, other=0.0)
        qe = tl.load(q + 2 * i, mask=pair, other=0.0).to(tl.float32)
        qo = tl.load(q + 2 * i + 1, mask=pair, other=0.0).to(tl.float32)
        ke = tl.load(q + dim + 2 * i, mask=pair, other=0.0).to(tl.float32)
        ko = tl.load(q + dim + 2 * i + 1, mask=pair, other=0.0).to(tl.float32)
        new_v = tl.load(q + 2 * dim + d, mask=d < HD, other=0.0).to(tl.float32)
        position = now + t
        here = (j == position % WINDOW)[:, None]
        k_even = tl.where(here, half(ke * cos - ko * sin)[None, :], k_even)
        k_odd = tl.where(here, half(ke * sin + ko * cos)[None, :], k_odd)
        v = tl.where(here, half(new_v)[None, :], v)
        even = ((qe * cos - qo * sin) * scale)[None, :]
        odd = ((qe * sin + qo * cos) * scale)[None, :]
        products = tl.fma(k_even.to(tl.float32), even, k_odd.to(tl.float32) * odd)
        score = tl.sum(products, 1)
        score = tl.where((j < WINDOW) & (j <= position), score, float("-inf"))
        p = tl.exp(score - tl.max(score, 0))
        mixed = tl.sum(v.to(tl.float32) * p[:, None], 0) / tl.sum(p, 0)
        tl.store(OUT + at.to(tl.int64) * dim + head * HD + d, half(mixed), mask=d < HD)
    fresh = (j < WINDOW) & ((j - now % WINDOW + WINDOW) % WINDOW < FRAMES)
    new_half = fresh[:, None] & pair[None, :]
    tl.store(KEYS + even_at, k_even, mask=new_half)
    tl.store(KEYS + odd_at, k_odd, mask=new_half)
    tl.store(VALUES + value_at, v, mask=fresh[:, None] & (d < HD)[None, :])


def ring_attention(
    qkv: torch.Tensor,
    turn: tuple[torch.Tensor, torch.Tensor],
    slots: torch.Tensor,
    now: torch.Tensor,
    ring: torch.Tensor,
    heads: int,
    out: torch.Tensor,
    *,
    pdl: bool = False,
) -> None:
    """out fp16 [rows * frames, dim] <- attention; the new keys and values enter ``ring``.

    ``qkv`` [rows * frames, 3 dim] (queries, keys, values, before rotation), ``turn`` and ``now`` of
    ``tails.begin``, ``ring`` fp16 [2, slots, window, dim].
    """
    frames = turn[0].shape[1]
    _, _, window, dim = ring.shape
    head_dim = dim // heads
    ring_kernel[(len(slots), heads)](
        qkv, *turn, slots, now, ring[0], ring[1], out, head_dim**-0.5,
        HEADS=heads, HD=head_dim, HB=triton.next_power_of_2(head_dim // 2),
        WINDOW=window, WB=triton.next_power_of_2(window), FRAMES=frames,
        PDL=pdl, **codec_options(warps=8, pdl=pdl),
    )  # fmt: skip

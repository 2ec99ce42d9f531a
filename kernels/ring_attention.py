"""Attention of a few new frames over a ring of the last ``window`` keys and values, for a codec.

One program owns a row and a head, whose keys lie side by side as its values do: it asks for the
whole ring at once, puts each new frame into its place, attends, and writes back only what is new.
So it is exact for any cut of a stream, and a frame's bits do not depend on the cut: keys have their
places, and sums over them their order, whatever is beside them.

Channels are handled in pairs, the two that turn together: a pair of fp16 is one int32 of a ring, so
that a program keeps 32 KB in registers with three more beside it on a multiprocessor.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .rounding import let_next_start, wait_for_previous
from .snake import codec_options, half


@triton.jit
def two_floats(pair):
    """The lower and the upper float32 of int64."""
    upper = (pair >> 32).to(tl.int32).to(tl.float32, bitcast=True)
    return pair.to(tl.int32).to(tl.float32, bitcast=True), upper


@triton.jit
def two_halves(pair):
    """The lower and the upper fp16 of int32, as fp32."""
    upper = (pair >> 16).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
    return pair.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32), upper


@triton.jit
def packed(lower, upper):
    """int32 of two fp32 rounded to fp16."""
    low = half(lower).to(tl.int16, bitcast=True).to(tl.int32) & 0xFFFF
    return (half(upper).to(tl.int16, bitcast=True).to(tl.int32) << 16) | low


@triton.jit
def ring_kernel(
    QKV, COS, SIN, SLOTS, NOW, KEYS, VALUES, OUT, scale,
    HEADS: tl.constexpr, PAIRS: tl.constexpr, PB: tl.constexpr,
    WINDOW: tl.constexpr, WB: tl.constexpr, FRAMES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """grid (heads, rows): the heads of a row, whose rings are neighbours, run side by side."""
    head = tl.program_id(0)
    b = tl.program_id(1)
    dim: tl.constexpr = HEADS * PAIRS
    now = tl.load(NOW + b)
    ring = (tl.load(SLOTS + b) * HEADS + head) * (WINDOW * PAIRS)
    j = tl.arange(0, WB)
    i = tl.arange(0, PB)
    inside = i < PAIRS
    at = j[:, None] * PAIRS + i[None, :]
    known = (j < tl.minimum(now, WINDOW).to(tl.int32))[:, None] & inside[None, :]
    k = tl.load(KEYS + ring + at, mask=known, other=0)
    v = tl.load(VALUES + ring + at, mask=known, other=0)
    # What was in the ring before is from calls long done: it is on its way during this wait.
    let_next_start(PDL)
    wait_for_previous(PDL)
    first = (now % WINDOW).to(tl.int32)
    for t in range(FRAMES):
        frame = b * FRAMES + t
        fresh = QKV + frame.to(tl.int64) * (3 * dim) + head * PAIRS + i
        cos = tl.load(COS + frame * PAIRS + i, mask=inside, other=0.0)
        sin = tl.load(SIN + frame * PAIRS + i, mask=inside, other=0.0)
        q0, q1 = two_floats(tl.load(fresh, mask=inside, other=0))
        k0, k1 = two_floats(tl.load(fresh + dim, mask=inside, other=0))
        v0, v1 = two_floats(tl.load(fresh + 2 * dim, mask=inside, other=0))
        key = packed(k0 * cos - k1 * sin, k0 * sin + k1 * cos)
        value = packed(v0, v1)
        place = (first + t) % WINDOW
        here = (j == place)[:, None]
        k = tl.where(here, key[None, :], k)
        v = tl.where(here, value[None, :], v)
        q0, q1 = (q0 * cos - q1 * sin) * scale, (q0 * sin + q1 * cos) * scale
        k0, k1 = two_halves(k)
        score = tl.sum(tl.fma(k0, q0[None, :], k1 * q1[None, :]), 1)
        score = tl.where((j < WINDOW) & (j <= now + t), score, float("-inf"))
        p = tl.exp(score - tl.max(score, 0))
        v0, v1 = two_halves(v)
        share = 1.0 / tl.sum(p, 0)
        mixed = packed(tl.sum(v0 * p[:, None], 0) * share, tl.sum(v1 * p[:, None], 0) * share)
        tl.store(OUT + frame.to(tl.int64) * dim + head * PAIRS + i, mixed, mask=inside)
        # Every thread has had this place's old key and value: sums over all of them came before.
        tl.store(KEYS + ring + place * PAIRS + i, key, mask=inside)
        tl.store(VALUES + ring + place * PAIRS + i, value, mask=inside)


def ring_attention(
    qkv: torch.Tensor,
    turn: tuple[torch.Tensor, torch.Tensor],
    slots: torch.Tensor,
    now: torch.Tensor,
    ring: torch.Tensor,
    out: torch.Tensor,
    *,
    warps: int = 4,
    registers: int = 128,
    pdl: bool = False,
) -> None:
    """out fp16 [rows * frames, dim] <- attention; the new keys and values enter ``ring``.

    ``qkv`` fp32 [rows * frames, 3 dim] (queries, keys, values, before rotation), ``turn`` and
    ``now`` of ``tails.begin``, ``slots`` int64 [rows], different, ``ring`` fp16 [2, all slots,
    heads, window, head_dim]. With 128 ``registers`` a thread four programs fit on a multiprocessor,
    which ask for 128 KB at a time.
    """
    frames = turn[0].shape[1]
    _, _, heads, window, head_dim = ring.shape
    options = codec_options(warps=warps, pdl=pdl)
    if options:
        options["maxnreg"] = registers
    ring_kernel[(heads, len(slots))](
        qkv.view(torch.int64), *turn, slots, now, *ring.view(torch.int32), out.view(torch.int32),
        head_dim**-0.5, HEADS=heads, PAIRS=head_dim // 2, PB=triton.next_power_of_2(head_dim // 2),
        WINDOW=window, WB=triton.next_power_of_2(window), FRAMES=frames, PDL=pdl, **options,
    )  # fmt: skip

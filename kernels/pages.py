"""What every attention over pages shares: the shape of a layer's heads, the inner loop, the output.

How keys and values lie in pages is told in ``kv``. FP8 ones (NARROW) go to the matrix unit as f16,
as which e4m3 is exact and the device has an instruction for it; so do the queries, with the
softmax's scale in them, and the probabilities. A key's own scale multiplies its scores, a value's
its probabilities, so that no tile is scaled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from .kv import Fp8Pages, Pages, check_pages
from .rounding import EMULATE, bf16, dot, prefetch_lines, quantise_rows, widen

LOG2_E = 1.4426950408889634
LIFT = 8.0
"""Powers of two by which probabilities of FP8 values are raised before they are rounded to f16.
They are multiplied by a scale, which is a 448th of the largest of a head's values, and would be
lost where f16 becomes coarse; their sum is raised alike, so that nothing has to be undone. Values
up to 2^16 448 / 2^8 = 114,000 do not overflow."""
RAISED = tl.constexpr(LIFT)
SPLITS = 8
"""Most stretches of a context."""
TOGETHER = 4
"""Stretches that are folded in order before the sums of the others are."""
TILE_TOKENS = 32
"""Tokens of one context that a program of prefill attention serves."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """How decode attention is cut up, the same for all batch sizes: bits follow from the first two.

    ``block_tokens`` is 32 or 64 (32 where it does not divide the page). A context is cut into
    stretches of ``split_tokens``, or of twice that where ``SPLITS`` of them do not cover it, or of
    three times that, and so on (``cut_of``).
    """

    block_tokens: int
    split_tokens: int
    stages: int
    warps: int = 4
    columns: int = 16
    """Query heads, with repeats, of a product of one row: 8 or 16."""

    def __post_init__(self) -> None:
        if self.split_tokens % self.block_tokens:
            raise ValueError(
                f"stretches of {self.split_tokens} tokens are not whole blocks of "
                f"{self.block_tokens}"
            )


SCHEDULE = Schedule(32, 256, 3)
FP8_SCHEDULE = Schedule(64, 256, 3, 4, 8)
"""Of FP8 pages. Contexts are cut as with bf16 ones: the host shares prefixes by that alone."""


@dataclass(frozen=True, slots=True, eq=False)
class Heads:
    """Constants of an attention layer. Weights bf16 [D] or None; tables bf16 [positions, D / 2]."""

    queries: int
    keys: int
    dim: int
    eps: float
    rope: tuple[torch.Tensor, torch.Tensor]
    query_weight: torch.Tensor | None = None
    key_weight: torch.Tensor | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Workspace:
    """Scratch of decode attention for up to ``rows`` rows, shared by all layers.

    ``queries`` bf16 [rows, heads, D]; ``outputs`` fp32 [rows, heads, SPLITS, D], ``sums`` fp32
    [rows, heads, SPLITS, 2] (maximum, denominator); ``arrived`` int32 [rows, kv heads], zero
    between launches.
    """

    queries: torch.Tensor
    outputs: torch.Tensor
    sums: torch.Tensor
    arrived: torch.Tensor

    @staticmethod
    def empty(rows: int, heads: Heads, device: torch.device | str) -> Workspace:
        wide = (rows, heads.queries, SPLITS)
        return Workspace(
            torch.zeros(rows, heads.queries, heads.dim, dtype=torch.bfloat16, device=device),
            torch.zeros(*wide, heads.dim, device=device),
            torch.zeros(*wide, 2, device=device),
            torch.zeros(rows, heads.keys, dtype=torch.int32, device=device),
        )


@triton.jit
def stretches(blocks, BT: tl.constexpr, SPLIT_TOKENS: tl.constexpr, SPLITS: tl.constexpr):
    """How many stretches ``blocks`` blocks of BT tokens are cut into."""
    return tl.minimum(tl.cdiv(blocks * BT, SPLIT_TOKENS), SPLITS)


@triton.jit
def cut_of(length, SPLIT_TOKENS: tl.constexpr, SPLITS: tl.constexpr):
    """How many times SPLIT_TOKENS a stretch of a context of ``length`` tokens is.

    Contexts of one cut are cut at the same tokens, so that what one program folds of a prefix is
    to the bit what each row would have folded itself.
    """
    return tl.cdiv(length, SPLITS * SPLIT_TOKENS)


@triton.jit
def prefetch_block(
    KEYS, KEY_SCALES, VALUES, VALUE_SCALES, TABLE, h, block, HKV: tl.constexpr, D: tl.constexpr,
    PAGE: tl.constexpr, BT: tl.constexpr, NARROW: tl.constexpr,
):  # fmt: skip
    """Ask L2 for a block's keys and values, which lie together for each head."""
    if not EMULATE:
        page = tl.load(TABLE + block * BT // PAGE).to(tl.int64)
        token = (page * HKV + h) * PAGE + block * BT % PAGE
        each: tl.constexpr = 128 if NARROW else 64
        line = token * D + tl.arange(0, BT * D // each) * each
        prefetch_lines(KEYS + line)
        prefetch_lines(VALUES + line)
        if NARROW:
            # A head's scales of a block of 32 are a line.
            line = token + tl.arange(0, BT // 16) * 16
            prefetch_lines(KEY_SCALES + line)
            prefetch_lines(VALUE_SCALES + line)


@triton.jit
def narrow_queries(q, scale):
    """bf16 queries as f16, ``scale`` in them."""
    return (q.to(tl.float32) * scale).to(tl.float16)


@triton.jit
def fold(top, total, acc, more_top, more_total, more):
    """Add a stretch's running sums to those before it; empty ones ([-inf], 0, 0) change no bit.

    top, total fp32 [R], acc fp32 [D, R]. The multiply-adds are spelled out, so that every kernel
    that folds rounds alike.
    """
    higher = tl.maximum(top, more_top)
    # Of two empty ones the difference would be no number.
    higher = tl.where(higher == float("-inf"), 0.0, higher)
    fade = tl.exp2(top - higher)
    weight = tl.exp2(more_top - higher)
    total = tl.fma(total, fade, more_total * weight)
    acc = tl.fma(acc, tl.broadcast_to(fade[None, :], acc.shape), more * weight[None, :])
    return tl.maximum(top, more_top), total, acc


@triton.jit
def attend(
    q,
    KEYS,
    KEY_SCALES,
    VALUES,
    VALUE_SCALES,
    TABLE,
    h,
    first,
    last,
    each,
    end,
    scale,
    top,
    total,
    acc,
    past_top,
    past_total,
    past,
    HKV: tl.constexpr,
    D: tl.constexpr,
    PAGE: tl.constexpr,
    BT: tl.constexpr,
    FOLD: tl.constexpr,
    NARROW: tl.constexpr,
):
    """Fold blocks [first, last) of a context of ``end`` tokens into a softmax's running sums.

    top, total fp32 [R], acc fp32 [D, R]; q bf16 [R, D]. Tokens, and then head dims, are the long
    side of the products, so that keys and values go to the matrix unit as they lie. ``scale``
    includes log2(e): sums are of powers of two. FOLD: where a stretch of ``each`` blocks begins,
    the sums go to ``past`` and start anew; both are returned, and ``past`` lacks the last stretch.
    """
    t = tl.arange(0, BT)
    inside = t[:, None] * D + tl.arange(0, D)[None, :]
    queries = tl.trans(narrow_queries(q, scale) if NARROW else q)
    # Page numbers are fetched one block ahead: the compiler does not pipeline what is no tile.
    next_page = tl.load(TABLE + first * BT // PAGE)
    for block in tl.range(first, last):
        token = block * BT
        row = (next_page.to(tl.int64) * HKV + h) * PAGE + token % PAGE
        base = row * D
        next_page = tl.load(TABLE + tl.minimum(block + 1, last - 1) * BT // PAGE)
        if FOLD:
            if block % each == 0:
                past_top, past_total, past = fold(past_top, past_total, past, top, total, acc)
                top = tl.full(top.shape, float("-inf"), tl.float32)
                total = tl.zeros_like(total)
                acc = tl.zeros_like(acc)
        seen = (token + t < end)[:, None]
        k = tl.load(KEYS + base + inside)
        # What lies behind the end may be anything, and zero times it must be zero.
        v = tl.load(VALUES + base + inside, mask=seen, other=0.0)
        if NARROW:
            by_key = tl.load(KEY_SCALES + row + t)
            by_value = tl.load(VALUE_SCALES + row + t, mask=token + t < end, other=0.0)
            score = dot(widen(k), queries) * by_key[:, None]
        else:
            score = dot(k, queries) * scale
        score = tl.where(seen, score, float("-inf"))
        higher = tl.maximum(top, tl.max(score, axis=0))
        fade = tl.exp2(top - higher)
        if NARROW:
            p = tl.exp2(score - (higher - RAISED)[None, :])
            more = dot(tl.trans(widen(v)), (p * by_value[:, None]).to(tl.float16))
        else:
            p = tl.exp2(score - higher[None, :])
            more = dot(tl.trans(v), bf16(p))
        total = total * fade + tl.sum(p, axis=0)
        acc = acc * fade[None, :] + more
        top = higher
    return top, total, acc, past_top, past_total, past


@triton.jit
def store_outputs(
    y, heads, live, m, OUT, OSC, osc_stride, HQ: tl.constexpr, D: tl.constexpr, QUANT
):
    """y fp32 [R, D] of ``heads`` [R] to row m: e4m3 with a scale a head (D is 128), or bf16."""
    at = tl.cast(m, tl.int64) * (HQ * D) + heads[:, None] * D + tl.arange(0, D)[None, :]
    y = bf16(y).to(tl.float32)
    if QUANT:
        value, scale = quantise_rows(y)
        tl.store(OUT + at, value, mask=live[:, None])
        tl.store(OSC + heads * osc_stride + m, scale, mask=live)
    else:
        tl.store(OUT + at, bf16(y), mask=live[:, None])


def tiles_of(spans: Sequence[tuple[int, int]]) -> list[tuple[int, int, int]]:
    """How (start, count) of several contexts lie in the rows of a prefill, tile by tile.

    A tile is TILE_TOKENS rows: the context's number, the position of the first row, and how many
    rows are its. Each context begins with a tile.
    """
    return [
        (context, start + begin, min(TILE_TOKENS, count - begin))
        for context, (start, count) in enumerate(spans)
        for begin in range(0, count, TILE_TOKENS)
    ]


def cut_on_host(length: int, schedule: Schedule = SCHEDULE) -> int:
    """``cut_of`` for the host."""
    return -(-length // (SPLITS * schedule.split_tokens))


def block_tokens(page: int, most: int = 64) -> int:
    """Tokens of one step of the inner loop: a page or an even part of one, ``most`` at most."""
    return most if page % most == 0 else 32


def schedule_of(keys: Pages) -> Schedule:
    """The one in use for pages of this kind."""
    return FP8_SCHEDULE if isinstance(keys, Fp8Pages) else SCHEDULE


def check_heads(keys: Pages, values: Pages, quant: bool, heads: Heads) -> bool:
    """Whether pages are FP8. ValueError for pages or heads that the kernels cannot serve."""
    narrow = check_pages(keys, values, heads.keys, heads.dim)
    if quant and heads.dim != 128:
        raise ValueError(f"a head of {heads.dim} is no quantisation group")
    return narrow


def attention_reference(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, first: int
) -> torch.Tensor:
    """fp32 [L, HQ, D]: causal attention over [T, HKV, D] of tokens ``first`` .. T - 1."""
    length, hq, d = q.shape
    k, v = (t.float().repeat_interleave(hq // t.shape[1], 1) for t in (keys, values))
    score = torch.einsum("lhd,thd->hlt", q.float(), k) * d**-0.5
    t = torch.arange(len(k), device=q.device)
    hidden = t[None, :] > first + torch.arange(length, device=q.device)[:, None]
    return torch.einsum("hlt,thd->lhd", score.masked_fill(hidden, float("-inf")).softmax(-1), v)


def fp8_attention_reference(
    q: torch.Tensor, keys: Fp8Pages, values: Fp8Pages, first: int
) -> torch.Tensor:
    """fp32 [L, HQ, D]: causal attention over FP8 keys and values [T, HKV, D] of queries bf16
    [L, HQ, D] of tokens ``first`` onwards, with the kernels' roundings to f16.

    Products are exact. The kernels round probabilities against the largest score so far and this
    one against the largest of all: the results agree to about what those roundings are worth.
    """
    length, hq, d = q.shape
    group = hq // keys.values.shape[1]
    k, v = (t.values.double().repeat_interleave(group, 1) for t in (keys, values))
    ks, vs = (t.scales.double().repeat_interleave(group, 1) for t in (keys, values))
    narrow = (q.float() * (LOG2_E * d**-0.5)).half().double()
    score = torch.einsum("lhd,thd->hlt", narrow, k) * ks.t()[:, None]
    t = torch.arange(len(k), device=q.device)
    hidden = t[None, :] > first + torch.arange(length, device=q.device)[:, None]
    score = score.masked_fill(hidden, float("-inf"))
    p = torch.exp2(score - score.amax(-1, keepdim=True) + LIFT)
    weighted = (p * vs.t()[:, None]).half().double()
    y = torch.einsum("hlt,thd->lhd", weighted, v)
    return (y / p.sum(-1).t()[..., None]).float()

"""What happens to a head between the QKV projection and attention: QK-norm and rotary positions.

Rotary pairs are interleaved (2 i, 2 i + 1), the tables are rounded to bf16, and every rounding
point of an eager bf16 model is kept, because the cached keys are compared with its keys.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .kv import Fp8Pages, Pages, page_scales, page_values
from .norm import NormedRows, load_squares, rms_factor
from .pages import TILE_TOKENS
from .rounding import (
    bf16,
    launch_options,
    let_next_start,
    load_split_sum,
    on_bf16_grid,
    quantise_rows,
    wait_for_previous,
)


@triton.jit
def row_factor(SQ, sq_stride, row, K, eps, NORMED: tl.constexpr, G: tl.constexpr):
    """fp32 [1]: the rms factor of ``row`` of a product whose rows were normed, else 1."""
    rows = row + tl.arange(0, 1)
    factor = tl.full([1], 1.0, tl.float32)
    if NORMED:
        factor = rms_factor(load_squares(SQ, sq_stride, rows, rows >= 0, K, G), K, eps)
    return factor


@triton.jit
def load_heads(QKV, at, live, split_stride, D: tl.constexpr, SPLITS: tl.constexpr):
    """fp32 [R, D]: the heads that start at ``at`` [R] in the projection, before the rms factor."""
    where = at[:, None] + tl.arange(0, D)[None, :]
    return load_split_sum(QKV + where, split_stride, live[:, None], SPLITS)


@triton.jit
def norm_heads(x, WEIGHT, eps, D: tl.constexpr):
    """RMSNorm of each row of [R, D] with ``WEIGHT`` bf16 [D]."""
    r = 1.0 / tl.sqrt_rn(tl.sum(x * x, axis=1) / D + eps)
    w = tl.load(WEIGHT + tl.arange(0, D)).to(tl.float32)
    return on_bf16_grid(on_bf16_grid(x * r[:, None]) * w[None, :])


@triton.jit
def load_turn(COS, SIN, positions, D: tl.constexpr):
    """(cos, sin) fp32 [P, D / 2] of ``positions`` [P]; tables bf16 [positions, D / 2]."""
    at = positions[:, None] * (D // 2) + tl.arange(0, D // 2)[None, :]
    return tl.load(COS + at).to(tl.float32), tl.load(SIN + at).to(tl.float32)


@triton.jit
def rotate_heads(x, cos, sin, R: tl.constexpr, D: tl.constexpr):
    """Rotate [R, D] by a turn [R, D / 2], or [1, D / 2] for all rows."""
    even, odd = tl.split(tl.reshape(x, [R, D // 2, 2]))
    turned = tl.join(even * cos - odd * sin, odd * cos + even * sin)
    return on_bf16_grid(tl.reshape(turned, [R, D]))


@triton.jit
def repeat_rows(x, TIMES: tl.constexpr, R: tl.constexpr, D: tl.constexpr):
    """[R, D] to [R TIMES, D], each row TIMES times in succession."""
    return tl.reshape(tl.broadcast_to(x[:, None, :], [R, TIMES, D]), [R * TIMES, D])


@triton.jit(do_not_specialize=["M", "sq_stride", "table_stride"])
def store_heads_kernel(
    QKV,
    SQ,
    sq_stride,
    QN,
    KN,
    COS,
    SIN,
    TABLES,
    table_stride,
    SLOTS,
    POSITIONS,
    TILES,
    KEYS,
    KEY_SCALES,
    VALUES,
    VALUE_SCALES,
    OUT,
    M,
    K,
    eps,
    SPLITS: tl.constexpr,
    NORMED: tl.constexpr,
    G: tl.constexpr,
    QK_NORM: tl.constexpr,
    HQ: tl.constexpr,
    HKV: tl.constexpr,
    GQ2: tl.constexpr,
    D: tl.constexpr,
    PAGE: tl.constexpr,
    TILE: tl.constexpr,
    DECODE: tl.constexpr,
    NARROW: tl.constexpr,
    PDL: tl.constexpr,
):
    """grid (M, HKV): one token's queries of a kv head to OUT, its key and value to their page.

    DECODE: each row has its own position and table; else each TILE rows are successive tokens of
    one context, as many as TILES says, and the tile's other rows write nothing.
    """
    m = tl.program_id(0)
    h = tl.program_id(1)
    GQ: tl.constexpr = HQ // HKV
    g = tl.arange(0, GQ2)
    heads = h * GQ + g
    live = g < GQ
    one = tl.arange(0, 1)
    d = tl.arange(0, D)
    table = TABLES
    if DECODE:
        live_row = m + one >= 0
        position = tl.load(POSITIONS + m)
        table += tl.load(SLOTS + m).to(tl.int64) * table_stride
    else:
        tile = TILES + m // TILE * 3
        count = tl.load(tile + 2)
        live_row = m % TILE + one < count
        position = tl.load(tile + 1) + tl.minimum(m % TILE, tl.maximum(count, 1) - 1)
        table += tl.load(tile).to(tl.int64) * table_stride
    page = tl.load(table + position // PAGE).to(tl.int64)
    cos, sin = load_turn(COS, SIN, position + one, D)
    wait_for_previous(PDL)
    let_next_start(PDL)
    stride = tl.cast(M, tl.int64) * ((HQ + 2 * HKV) * D)
    row = tl.cast(m, tl.int64) * ((HQ + 2 * HKV) * D)
    q = load_heads(QKV, row + heads * D, live, stride, D, SPLITS)
    k = load_heads(QKV, row + (HQ + h + one) * D, one >= 0, stride, D, SPLITS)
    v = load_heads(QKV, row + (HQ + HKV + h + one) * D, one >= 0, stride, D, SPLITS)
    factor = row_factor(SQ, sq_stride, m, K, eps, NORMED, G)[:, None]
    q = on_bf16_grid(q * factor)
    k = on_bf16_grid(k * factor)
    if QK_NORM:
        q = norm_heads(q, QN, eps, D)
        k = norm_heads(k, KN, eps, D)
    q = rotate_heads(q, cos, sin, GQ2, D)
    k = rotate_heads(k, cos, sin, 1, D)
    out = tl.cast(m, tl.int64) * (HQ * D) + heads[:, None] * D + d[None, :]
    tl.store(OUT + out, bf16(q), mask=live[:, None] & live_row[:, None])
    token = (page * HKV + h) * PAGE + position % PAGE
    at = token * D + one[:, None] * D + d[None, :]
    if NARROW:
        k, by_key = quantise_rows(k)
        v, by_value = quantise_rows(on_bf16_grid(v * factor))
        tl.store(KEYS + at, k, mask=live_row[:, None])
        tl.store(VALUES + at, v, mask=live_row[:, None])
        tl.store(KEY_SCALES + token + one, by_key, mask=live_row)
        tl.store(VALUE_SCALES + token + one, by_value, mask=live_row)
    else:
        tl.store(KEYS + at, bf16(k), mask=live_row[:, None])
        tl.store(VALUES + at, bf16(v * factor), mask=live_row[:, None])


def store_heads(
    qkv: torch.Tensor,
    normed: NormedRows | None,
    qk_weights: tuple[torch.Tensor, torch.Tensor] | None,
    rope: tuple[torch.Tensor, torch.Tensor],
    table: torch.Tensor,
    keys: Pages,
    values: Pages,
    queries: torch.Tensor,
    eps: float,
    *,
    tiles: torch.Tensor | None = None,
    rows: tuple[torch.Tensor, torch.Tensor] | None = None,
    pdl: bool = False,
) -> None:
    """The step between projection and attention, for M tokens.

    ``qkv`` [S, M, (HQ + 2 HKV) D] fp32 partials or bf16 (S 1); ``normed``: the rows it came from,
    when their rms factor is still to be applied. ``qk_weights``: bf16 [D] each, or None.
    ``keys``/``values`` [pages, HKV, page, D] are written, FP8 ones rounded to bf16 and then
    quantised; ``queries`` bf16 [M, HQ, D] is the output. Prefill: ``tiles`` int32
    [ceil(M / TILE_TOKENS), 3] (``pages.tiles_of``, then zeros) says which rows are which tokens of
    which context in ``table``; of the others nothing is written. Decode: ``rows`` is (slots,
    positions), int32 [M] each. ``table`` int32 [contexts or slots, pages]. ValueError unless
    exactly one of ``tiles`` and ``rows`` is given.
    """
    if (tiles is None) == (rows is None):
        raise ValueError("prefill has tiles, decode has rows")
    m, hq, d = queries.shape
    _, hkv, page, _ = page_values(keys).shape
    qn, kn = qk_weights if qk_weights is not None else (rope[0], rope[0])
    squares = qkv if normed is None else normed.squares
    depth = 128 if normed is None else normed.rows.values.shape[1]
    slots, positions = rows if rows is not None else (table, table)
    store_heads_kernel[(m, hkv)](
        qkv,
        squares,
        squares.stride(0),
        qn,
        kn,
        rope[0],
        rope[1],
        table,
        table.stride(0),
        slots,
        positions,
        table if tiles is None else tiles,
        page_values(keys),
        page_scales(keys),
        page_values(values),
        page_scales(values),
        queries,
        m,
        depth,
        eps,
        SPLITS=qkv.shape[0],
        NORMED=normed is not None,
        G=triton.next_power_of_2(depth // 128),
        QK_NORM=qk_weights is not None,
        HQ=hq,
        HKV=hkv,
        GQ2=triton.next_power_of_2(hq // hkv),
        D=d,
        PAGE=page,
        TILE=TILE_TOKENS,
        DECODE=rows is not None,
        NARROW=isinstance(keys, Fp8Pages),
        PDL=pdl,
        **launch_options(warps=2, pdl=pdl),
    )


def rope_tables(
    positions: int, head_dim: int, theta: float, device: torch.device | str
) -> tuple[torch.Tensor, torch.Tensor]:
    """(cos, sin), bf16 [positions, head_dim / 2]: computed in fp32, then rounded."""
    inverse = 1.0 / theta ** (torch.arange(0, head_dim, 2).float() / head_dim)
    angles = torch.outer(torch.arange(positions).float(), inverse)
    return angles.cos().bfloat16().to(device), angles.sin().bfloat16().to(device)


def heads_reference(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    rope: tuple[torch.Tensor, torch.Tensor] | None,
    positions: torch.Tensor,
    eps: float,
) -> torch.Tensor:
    """bf16 [M, heads, D] from bf16 [M, heads, D]: QK-norm, then rotation, as an eager model."""
    if weight is not None:
        r = torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + eps)
        x = (x.float() * r).bfloat16() * weight
    if rope is not None:
        c, s = (t[positions].float()[:, None] for t in rope)
        even, odd = x.float()[..., 0::2], x.float()[..., 1::2]
        x = torch.stack([even * c - odd * s, odd * c + even * s], -1).flatten(-2).bfloat16()
    return x

"""Decode attention whose FP8 keys and values meet the matrix unit unwidened. An experiment:
``loadtest.bench_kv`` times it beside the attention in use, and nothing else calls it.

The matrix unit multiplies e4m3 by e4m3 in tiles of 64 tokens (or head dims) by 16 columns, of which
the four query heads of a kv head fill four. So each head has a second column for what e4m3 cannot
hold of it: a query, or a probability, goes as the e4m3 nearest to it and the e4m3 nearest to the
rest, and the two products are added. Queries, which are bf16, are exact that way down to a 2^17th
of a head's largest; probabilities have eight bits. The other eight columns are zero and cost
nothing.

Of e4m3 the matrix unit takes operands only as rows along which it sums, so values are kept
``transposed``: e4m3 [pages, kv heads, page / 64, D, 64]; keys and all scales lie as ``kv`` says.
What lies in the fifteen tokens behind a context's end has to be finite. Values as ``kv`` has them
are taken too, and widened. A value's scale is an exponent added to its token's scores, so that the
largest weight of a head is 1, where e4m3's range is; the sum of the weights is rid of it again.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from .attention import merge
from .heads import load_heads, load_turn, norm_heads, rotate_heads, row_factor
from .kv import Fp8Pages
from .norm import NormedRows
from .pages import (
    FP8_SCHEDULE,
    LOG2_E,
    RAISED,
    SPLITS,
    TOGETHER,
    Heads,
    Workspace,
    cut_of,
    fold,
    store_outputs,
)
from .quantise import Fp8Rows
from .rounding import (
    EMULATE,
    FP8,
    dot,
    fp8,
    launch_options,
    let_next_start,
    on_bf16_grid,
    prefetch_lines,
    quantise_rows,
    wait_for_previous,
    widen,
)

BLOCK = 64
"""Tokens of one step of the inner loop, and of a transposed stretch of values."""
COLUMNS = 16
"""Of a product: each head's two parts, side by side, and zeros."""


@dataclass(frozen=True, slots=True, eq=False)
class NarrowQueries:
    """``parts`` e4m3 [rows, kv heads, COLUMNS, D], ``scales`` fp32 [rows, heads]: a head is the sum
    of its two columns times its scale."""

    parts: torch.Tensor
    scales: torch.Tensor

    @staticmethod
    def empty(rows: int, heads: Heads, device: torch.device | str) -> NarrowQueries:
        shape = (rows, heads.keys, COLUMNS, heads.dim)
        zeros = torch.zeros(shape, dtype=torch.uint8, device=device)
        return NarrowQueries(zeros.view(FP8), torch.zeros(rows, heads.queries, device=device))


def transposed(values: Fp8Pages) -> Fp8Pages:
    """Value pages [pages, kv heads, page, D] as this module keeps them. The scales are shared."""
    pages, heads, page, dim = values.values.shape
    raw = values.values.view(torch.uint8).view(pages, heads, page // BLOCK, BLOCK, dim)
    return Fp8Pages(raw.transpose(3, 4).contiguous().view(FP8), values.scales)


@triton.jit
def log2_of(x):
    """Of positive fp32: the device's own instruction, where the language's has many."""
    if EMULATE:
        r = tl.log2(x)
    else:
        r = tl.inline_asm_elementwise(
            "lg2.approx.f32 $0, $1;", "=r,r", [x], dtype=tl.float32, is_pure=True, pack=1
        )
    return r


@triton.jit
def power_below(amax):
    """fp32 (2^e, 2^-e) with amax / 2^e in [128, 256): a scale that rounds nothing."""
    exponent = (amax.to(tl.int32, bitcast=True) >> 23) & 0xFF
    exponent = tl.minimum(tl.maximum(exponent, 16), 240)
    scale = ((exponent - 7) << 23).to(tl.float32, bitcast=True)
    return scale, ((261 - exponent) << 23).to(tl.float32, bitcast=True)


@triton.jit
def two_parts(x):
    """fp32 within +-448 as the e4m3 nearest to it and the e4m3 nearest to the rest."""
    high = fp8(x)
    return high, fp8(x - high.to(tl.float32))


@triton.jit
def as_columns(high, low, R: tl.constexpr, GQ: tl.constexpr):
    """[R, GQ] twice to [R, 4 GQ]: column 2 head + part; the second half is zero."""
    pairs = tl.reshape(tl.join(high, low), [R, 2 * GQ])
    zeros = tl.zeros([R, 2 * GQ], tl.float32).to(high.dtype)
    both = tl.permute(tl.join(pairs, zeros), (0, 2, 1))
    return tl.reshape(both, [R, 4 * GQ])


@triton.jit
def sum_of_parts(x, R: tl.constexpr, GQ: tl.constexpr):
    """fp32 [R, 4 GQ], whose columns are as ``as_columns`` has them, to [R, GQ]."""
    first, _ = tl.split(tl.permute(tl.reshape(x, [R, 2, 2 * GQ]), (0, 2, 1)))
    high, low = tl.split(tl.reshape(first, [R, GQ, 2]))
    return high + low


@triton.jit(do_not_specialize=["M", "sq_stride", "table_stride"])
def store_narrow_kernel(
    QKV, SQ, sq_stride, QN, KN, COS, SIN, KEYS, KEY_SCALES, VALUES, VALUE_SCALES,
    TABLES, table_stride, SLOTS, POSITIONS, PARTS, QUERY_SCALES, M, K, eps,
    SPLITS: tl.constexpr, NORMED: tl.constexpr, G: tl.constexpr, QK_NORM: tl.constexpr,
    HQ: tl.constexpr, HKV: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr, BT: tl.constexpr,
    COLUMNS: tl.constexpr, ACROSS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """grid (M, HKV): ``heads.store_heads_kernel`` of a decode step, for narrow queries and
    transposed values."""
    m = tl.program_id(0)
    h = tl.program_id(1)
    GQ: tl.constexpr = HQ // HKV
    heads = h * GQ + tl.arange(0, GQ)
    one = tl.arange(0, 1)
    d = tl.arange(0, D)
    position = tl.load(POSITIONS + m)
    page = tl.load(TABLES + tl.load(SLOTS + m).to(tl.int64) * table_stride + position // PAGE)
    cos, sin = load_turn(COS, SIN, position + one, D)
    wait_for_previous(PDL)
    let_next_start(PDL)
    stride = tl.cast(M, tl.int64) * ((HQ + 2 * HKV) * D)
    row = tl.cast(m, tl.int64) * ((HQ + 2 * HKV) * D)
    q = load_heads(QKV, row + heads * D, heads >= 0, stride, D, SPLITS)
    k = load_heads(QKV, row + (HQ + h + one) * D, one >= 0, stride, D, SPLITS)
    v = load_heads(QKV, row + (HQ + HKV + h + one) * D, one >= 0, stride, D, SPLITS)
    factor = row_factor(SQ, sq_stride, m, K, eps, NORMED, G)[:, None]
    q = on_bf16_grid(q * factor)
    k = on_bf16_grid(k * factor)
    if QK_NORM:
        q = norm_heads(q, QN, eps, D)
        k = norm_heads(k, KN, eps, D)
    q = rotate_heads(q, cos, sin, GQ, D)
    k = rotate_heads(k, cos, sin, 1, D)
    scale, inverse = power_below(tl.max(tl.abs(q), axis=1))
    high, low = two_parts(q * inverse[:, None])
    column = (tl.cast(m, tl.int64) * HKV + h) * COLUMNS + 2 * tl.arange(0, GQ)
    at = column[:, None] * D + d[None, :]
    tl.store(PARTS + at, high)
    tl.store(PARTS + at + D, low)
    tl.store(QUERY_SCALES + tl.cast(m, tl.int64) * HQ + heads, scale)
    k, by_key = quantise_rows(k)
    v, by_value = quantise_rows(on_bf16_grid(v * factor))
    token = (page.to(tl.int64) * HKV + h) * PAGE + position % PAGE
    tl.store(KEYS + token * D + one[:, None] * D + d[None, :], k)
    if ACROSS:
        block = (token - position % BT) * D + position % BT
        tl.store(VALUES + block + one[:, None] + d[None, :] * BT, v)
    else:
        tl.store(VALUES + token * D + one[:, None] + d[None, :], v)
    tl.store(KEY_SCALES + token + one, by_key)
    tl.store(VALUE_SCALES + token + one, by_value)


@triton.jit
def fold_halves(top, total, low, high, more_top, more_totals, more_low, more_high):
    """``pages.fold`` of an accumulator in two halves of the head dims; more_totals is by token."""
    more_total = tl.sum(more_totals, axis=0)
    _, _, low = fold(top, total, low, more_top, more_total, more_low)
    top, total, high = fold(top, total, high, more_top, more_total, more_high)
    return top, total, low, high


@triton.jit(do_not_specialize=["table_stride", "osc_stride"])
def narrow_kernel(
    PARTS, QUERY_SCALES, KEYS, KEY_SCALES, VALUES, VALUE_SCALES, TABLES, table_stride, SLOTS,
    POSITIONS, OUTPUTS, SUMS, ARRIVED, OUT, OSC, osc_stride, scale,
    HQ: tl.constexpr, HKV: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr, BT: tl.constexpr,
    COLUMNS: tl.constexpr, SPLIT_TOKENS: tl.constexpr, SPLITS: tl.constexpr, EACH: tl.constexpr,
    ACROSS: tl.constexpr, QUANT: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """grid (M, HKV, SPLITS / EACH): EACH (1 or TOGETHER) stretches of a row's context."""
    m = tl.program_id(0)
    h = tl.program_id(1)
    split = tl.program_id(2) * EACH
    GQ: tl.constexpr = HQ // HKV
    length = tl.load(POSITIONS + m) + 1
    table = TABLES + tl.load(SLOTS + m).to(tl.int64) * table_stride
    blocks = tl.cdiv(length, BT)
    each = cut_of(length, SPLIT_TOKENS, SPLITS) * (SPLIT_TOKENS // BT)
    active = tl.cdiv(blocks, each)
    if split < active:
        first = split * each
        last = tl.minimum((split + EACH) * each, blocks)
        next_page = tl.load(table + first * BT // PAGE)
        if PDL and not EMULATE:
            row = (next_page.to(tl.int64) * HKV + h) * PAGE + first * BT % PAGE
            line = tl.arange(0, BT * D // 128) * 128
            prefetch_lines(KEYS + row * D + line)
            prefetch_lines(VALUES + row * D + line)
            prefetch_lines(KEY_SCALES + row + tl.arange(0, BT // 32) * 32)
            prefetch_lines(VALUE_SCALES + row + tl.arange(0, BT // 32) * 32)
        wait_for_previous(PDL)
        let_next_start(PDL)
        heads = h * GQ + tl.arange(0, GQ)
        t = tl.arange(0, BT)
        d = tl.arange(0, D)
        columns = ((tl.cast(m, tl.int64) * HKV + h) * COLUMNS + tl.arange(0, COLUMNS)) * D
        queries = tl.trans(tl.load(PARTS + columns[:, None] + d[None, :]))
        by_query = tl.load(QUERY_SCALES + tl.cast(m, tl.int64) * HQ + heads) * scale
        key_at = t[:, None] * D + d[None, :]
        # As they lie: dims by tokens where transposed, else tokens by dims, of which half are BT.
        value_at = t[:, None] * (BT if ACROSS else D) + t[None, :]
        high_at = value_at + D // 2 * (BT if ACROSS else 1)
        top = tl.full([GQ], float("-inf"), tl.float32)
        # Summed over tokens where a stretch ends: a sum across warps in each step is a barrier.
        totals = tl.zeros([BT, GQ], tl.float32)
        # In halves of as many head dims as a step has tokens: one layout for all, and the largest
        # scores need not change theirs, which the compiler would do by computing them twice.
        acc_low = tl.zeros([D // 2, GQ], tl.float32)
        acc_high = acc_low
        past_top, past_total = top, tl.zeros([GQ], tl.float32)
        past_low, past_high = acc_low, acc_low
        left = each
        for block in tl.range(first, last):
            token = block * BT
            row = (next_page.to(tl.int64) * HKV + h) * PAGE + token % PAGE
            next_page = tl.load(table + tl.minimum(block + 1, last - 1) * BT // PAGE)
            if EACH > 1:
                if left == 0:
                    past_top, past_total, past_low, past_high = fold_halves(
                        past_top, past_total, past_low, past_high, top, totals, acc_low, acc_high
                    )
                    top = tl.full([GQ], float("-inf"), tl.float32)
                    totals = tl.zeros([BT, GQ], tl.float32)
                    acc_low, acc_high = tl.zeros_like(acc_low), tl.zeros_like(acc_high)
                    left = each
                left -= 1
            # A copy is sixteen bytes: of transposed values as many tokens.
            seen = (token + t < length)[:, None]
            begun = (token + t // 16 * 16 < length)[None, :] if ACROSS else seen
            k = tl.load(KEYS + row * D + key_at, mask=seen, other=0.0)
            v_low = tl.load(VALUES + row * D + value_at, mask=begun, other=0.0)
            v_high = tl.load(VALUES + row * D + high_at, mask=begun, other=0.0)
            by_key = tl.load(KEY_SCALES + row + t)
            by_value = tl.load(VALUE_SCALES + row + t, mask=token + t < length, other=1.0)
            lift = log2_of(by_value)
            score = sum_of_parts(dot(k, queries), BT, GQ)
            weight = by_key[:, None] * by_query[None, :]
            score = tl.fma(score, weight, tl.broadcast_to(lift[:, None], [BT, GQ]))
            score = tl.where(seen, score, float("-inf"))
            higher = tl.maximum(top, tl.max(score, axis=0))
            fade = tl.exp2(top - higher)
            p = tl.exp2(score - (higher - RAISED)[None, :])
            if ACROSS:
                high, low = two_parts(p)
            else:
                v_low, v_high = tl.trans(widen(v_low)), tl.trans(widen(v_high))
                high, low = p.to(tl.float16), tl.zeros_like(p).to(tl.float16)
            p_columns = as_columns(high, low, BT, GQ)
            fade = tl.broadcast_to(fade[None, :], [BT, GQ])
            totals = tl.fma(totals, fade, p * tl.exp2(-lift)[:, None])
            acc_low = tl.fma(acc_low, fade, sum_of_parts(dot(v_low, p_columns), BT, GQ))
            acc_high = tl.fma(acc_high, fade, sum_of_parts(dot(v_high, p_columns), BT, GQ))
            top = higher
        top, total, acc_low, acc_high = fold_halves(
            past_top, past_total, past_low, past_high, top, totals, acc_low, acc_high
        )
        acc = tl.reshape(tl.permute(tl.join(acc_low, acc_high), (2, 0, 1)), [D, GQ])
        if active <= EACH:
            y = tl.trans(acc / total[None, :])
            store_outputs(y, heads, heads >= 0, m, OUT, OSC, osc_stride, HQ, D, QUANT)
        else:
            slot = (tl.cast(m, tl.int64) * HQ + heads) * SPLITS + split
            tl.store(OUTPUTS + slot[None, :] * D + d[:, None], acc)
            tl.store(SUMS + slot * 2, top)
            tl.store(SUMS + slot * 2 + 1, total)
            tl.debug_barrier()
            arrived = tl.atomic_add(ARRIVED + m * HKV + h, 1, sem="acq_rel", scope="gpu")
            if arrived == tl.cdiv(active, EACH) - 1:
                tl.debug_barrier()
                merge(
                    OUTPUTS, SUMS, m, h, active, OUT, OSC, osc_stride, HQ, GQ, D, SPLITS, QUANT,
                    0, EACH,
                )  # fmt: skip
                tl.store(ARRIVED + m * HKV + h, 0)


def places(keys: Fp8Pages, values: Fp8Pages, *where: torch.Tensor) -> list[torch.Tensor | int]:
    """Arguments of both kernels; ``where``: tables, slots, positions."""
    pages = (keys.values, keys.scales, values.values, values.scales)
    return [*pages, where[0], where[0].stride(0), *where[1:]]


def shape_of(heads: Heads, keys: Fp8Pages, values: Fp8Pages) -> dict[str, int | bool]:
    """Constants of both kernels; ACROSS: values are ``transposed``. ValueError if not served."""
    page, dim = keys.values.shape[2:]
    if (heads.queries, heads.dim, dim, page % BLOCK) != (4 * heads.keys, 128, 128, 0):
        raise ValueError(f"not four heads of 128 a kv head in pages of {BLOCK}s of tokens")
    shape = {"HQ": heads.queries, "HKV": heads.keys, "D": dim, "PAGE": page, "BT": BLOCK}
    return shape | {"COLUMNS": COLUMNS, "ACROSS": values.values.dim() == 5}


def store_narrow(
    qkv: torch.Tensor,
    normed: NormedRows | None,
    heads: Heads,
    keys: Fp8Pages,
    values: Fp8Pages,
    tables: torch.Tensor,
    slots: torch.Tensor,
    positions: torch.Tensor,
    queries: NarrowQueries,
    *,
    pdl: bool = False,
) -> None:
    """``heads.store_heads`` of a decode step: ``queries`` is the output, keys and values, which may
    be ``transposed``, are written. ValueError for other heads than four of 128 a kv head."""
    width = 128 if normed is None else normed.rows.values.shape[1]
    squares = qkv if normed is None else normed.squares
    qk_norm = heads.query_weight is not None
    store_narrow_kernel[(len(slots), heads.keys)](
        qkv,
        squares,
        squares.stride(0),
        heads.query_weight if qk_norm else heads.rope[0],
        heads.key_weight if qk_norm else heads.rope[0],
        *heads.rope,
        *places(keys, values, tables, slots, positions),
        queries.parts,
        queries.scales,
        len(slots),
        width,
        heads.eps,
        SPLITS=qkv.shape[0],
        NORMED=normed is not None,
        G=triton.next_power_of_2(width // 128),
        QK_NORM=qk_norm,
        PDL=pdl,
        **shape_of(heads, keys, values),
        **launch_options(warps=2, pdl=pdl),
    )


def narrow_attention(
    heads: Heads,
    keys: Fp8Pages,
    values: Fp8Pages,
    tables: torch.Tensor,
    slots: torch.Tensor,
    positions: torch.Tensor,
    queries: NarrowQueries,
    work: Workspace,
    out: torch.Tensor | Fp8Rows,
    *,
    together: bool,
    stages: int = FP8_SCHEDULE.stages,
    pdl: bool = False,
) -> None:
    """After ``store_narrow``, the rest of what ``attention.decode_attention`` does for rows that
    share nothing; ``together``: a program folds TOGETHER stretches, to the same bits."""
    each = TOGETHER if together else 1
    narrow_kernel[(len(slots), heads.keys, SPLITS // each)](
        queries.parts,
        queries.scales,
        *places(keys, values, tables, slots, positions),
        work.outputs,
        work.sums,
        work.arrived,
        out.values if isinstance(out, Fp8Rows) else out,
        out.scales if isinstance(out, Fp8Rows) else work.sums,
        out.scales.stride(0) if isinstance(out, Fp8Rows) else 0,
        LOG2_E * heads.dim**-0.5,
        SPLIT_TOKENS=FP8_SCHEDULE.split_tokens,
        SPLITS=SPLITS,
        EACH=each,
        QUANT=isinstance(out, Fp8Rows),
        PDL=pdl,
        **shape_of(heads, keys, values),
        **launch_options(warps=4, stages=stages, pdl=pdl),
    )

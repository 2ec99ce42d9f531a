"""The draw of a token on the device: filter, race, repetition-aware slow token.

One program a row. The filter comes before the temperature, the candidate that crosses ``top_p`` is
dropped, and the survivor with the largest ``log p / T - log e`` wins, ``e`` a unit exponential
addressed as ``race.py`` says, so equal logits give equal tokens on any device and in any batch.

The end token is the candidate behind the last code. It never joins the vector of codes, which so
stays a power of two: it takes its rank beside the list of the best.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from .heads import row_factor
from .norm import NormedRows, store_normed_row
from .race import MIN_TEMPERATURE, RANKS, RETRY_TOP_P, best_keys, choose, ordered_key
from .rounding import (
    launch_options,
    let_next_start,
    load_split_sum,
    on_bf16_grid,
    wait_for_previous,
)

WARPS = 8


@dataclass(frozen=True, slots=True, eq=False)
class Sampling:
    """What a draw reads per slot: 1-D views of equal stride (columns of a state tensor).

    ``temperature`` and ``top_p`` fp32; ``top_k``, ``seed_low``, ``seed_high``, ``draw`` int32. A
    temperature of 0 takes the best.
    """

    temperature: torch.Tensor
    top_p: torch.Tensor
    top_k: torch.Tensor
    seed_low: torch.Tensor
    seed_high: torch.Tensor
    draw: torch.Tensor


@dataclass(frozen=True, slots=True, eq=False)
class SlowToken:
    """What makes a draw a slow token's.

    ``hidden`` bf16 [M, D] and ``end_row`` bf16 [D]: their product is the end token's logit.
    ``window`` int32 [slots, W], any row stride: tokens to be repetition-aware of.
    """

    hidden: torch.Tensor
    end_row: torch.Tensor
    window: torch.Tensor
    semantic_begin: int
    end_token: int


@dataclass(frozen=True, slots=True, eq=False)
class FastInput:
    """Where the drawn code's embedding goes: the fast stack's next input.

    ``table`` bf16 [codes, D]; ``residual`` bf16 [M, D]; ``normed`` as ``norm.add_norm`` leaves it,
    with ``norm_weight`` bf16 [D].
    """

    table: torch.Tensor
    residual: torch.Tensor
    norm_weight: torch.Tensor
    normed: NormedRows


@triton.jit(
    do_not_specialize=[
        "M",
        "codebook",
        "semantic_begin",
        "end_token",
        "sq_stride",
        "state_stride",
        "window_stride",
        "out_stride",
        "sc_stride",
        "nsq_stride",
    ]
)
def sample_kernel(
    LOGITS,
    SQ,
    sq_stride,
    SLOTS,
    TEMPERATURE,
    TOP_P,
    TOP_K,
    SEED_LOW,
    SEED_HIGH,
    DRAW,
    state_stride,
    HIDDEN,
    END_ROW,
    WINDOW,
    window_stride,
    OUT,
    out_stride,
    TABLE,
    RES,
    WEIGHT,
    Q,
    SC,
    sc_stride,
    NSQ,
    nsq_stride,
    M,
    codebook,
    semantic_begin,
    end_token,
    K,
    D,
    eps,
    retry_top_p,
    min_temperature,
    V: tl.constexpr,
    PARTS: tl.constexpr,
    NORMED: tl.constexpr,
    G: tl.constexpr,
    SLOW: tl.constexpr,
    W: tl.constexpr,
    W2: tl.constexpr,
    R: tl.constexpr,
    D2: tl.constexpr,
    DG: tl.constexpr,
    EMBED: tl.constexpr,
    PDL: tl.constexpr,
):
    """grid (M,)."""
    m = tl.program_id(0)
    wait_for_previous(PDL)
    let_next_start(PDL)
    state = tl.load(SLOTS + m).to(tl.int64) * state_stride
    temperature = tl.load(TEMPERATURE + state)
    top_p = tl.load(TOP_P + state)
    top_k = tl.load(TOP_K + state)
    low = tl.load(SEED_LOW + state).to(tl.uint32, bitcast=True).to(tl.uint64)
    high = tl.load(SEED_HIGH + state).to(tl.uint32, bitcast=True).to(tl.uint64)
    seed = (high << 32) | low
    draw = tl.load(DRAW + state)
    i = tl.arange(0, V)
    stride = tl.cast(M, tl.int64) * V
    x = load_split_sum(LOGITS + tl.cast(m, tl.int64) * V + i, stride, i >= 0, PARTS)
    x = on_bf16_grid(x * row_factor(SQ, sq_stride, m, K, eps, NORMED, G))
    top = tl.max(x, axis=0)
    end_logit = top
    window = WINDOW
    if SLOW:
        d = tl.arange(0, D2)
        hidden = tl.load(HIDDEN + tl.cast(m, tl.int64) * D + d, mask=d < D, other=0.0)
        end_row = tl.load(END_ROW + d, mask=d < D, other=0.0)
        end_logit = on_bf16_grid(tl.sum(hidden.to(tl.float32) * end_row.to(tl.float32), axis=0))
        top = tl.maximum(top, end_logit)
        window = WINDOW + tl.load(SLOTS + m).to(tl.int64) * window_stride
    total = tl.sum(tl.exp(x - top), axis=0)
    if SLOW:
        total += tl.exp(end_logit - top)
    log_total = tl.log(total)
    # One rank left to choose from is the arg max, whatever the noise says.
    top_k = tl.where(temperature <= 0.0, 1, top_k)
    inverse_temperature = 1.0 / tl.maximum(temperature, min_temperature)
    keys = ordered_key(x, i)
    # The sum in ``choose`` is added in another order and may have the end token in it as well.
    enough = top_p + 1e-3
    if SLOW:
        enough = tl.maximum(enough, retry_top_p + 1e-3)
    if top_k <= R:
        token = choose(
            best_keys(keys, top, log_total, top_k, enough, R),
            top,
            log_total,
            end_logit,
            inverse_temperature,
            top_p,
            top_k,
            seed,
            codebook,
            draw,
            window,
            semantic_begin,
            retry_top_p,
            V,
            W,
            W2,
            SLOW,
            R,
        )
    else:
        token = choose(
            tl.sort(keys, descending=True),
            top,
            log_total,
            end_logit,
            inverse_temperature,
            top_p,
            top_k,
            seed,
            codebook,
            draw,
            window,
            semantic_begin,
            retry_top_p,
            V,
            W,
            W2,
            SLOW,
            V,
        )
    out = OUT + tl.cast(m, tl.int64) * out_stride
    code = token
    if SLOW:
        ended = token == V
        code = tl.where(ended, 0, token)
        tl.store(out, tl.where(ended, end_token, token + semantic_begin))
    tl.store(out + 1 + codebook, code)
    if EMBED:
        g = tl.arange(0, DG)
        c = g[:, None] * 128 + tl.arange(0, 128)[None, :]
        live = (c < D) & (g[:, None] < D // 128)
        e = tl.load(TABLE + tl.cast(code, tl.int64) * D + c, mask=live, other=0.0)
        tl.store(RES + tl.cast(m, tl.int64) * D + c, e, mask=live)
        h = e.to(tl.float32)
        store_normed_row(h, WEIGHT, Q, SC, sc_stride, NSQ, nsq_stride, m, D, DG)


def sample(
    logits: torch.Tensor,
    normed: NormedRows | None,
    eps: float,
    codebook: int,
    slots: torch.Tensor,
    sampling: Sampling,
    columns: torch.Tensor,
    *,
    slow: SlowToken | None = None,
    fast_input: FastInput | None = None,
    pdl: bool = False,
) -> None:
    """Draw a token for each of M rows into ``columns`` int32 [M, 1 + codebooks] (any row stride).

    ``logits`` [S, M, V] fp32 partials or bf16 with S 1, V a power of two below 2**15; ``normed``:
    the rows they came from, when their rms factor is still to be applied. They are rounded to bf16.
    ``slots`` int32 [M]: whose sampling values a row uses. With ``slow``, ``codebook`` is 0 and
    both the token and its code (0 for the end token) are written; else the code of ``codebook``.
    """
    parts, m, v = logits.shape
    if v & (v - 1) or v > 1 << 15 or v < RANKS:
        raise ValueError(f"{v} codes: expected a power of two from {RANKS} to {1 << 15}")
    if (codebook == 0) != (slow is not None):
        raise ValueError("codebook 0, and only it, is the slow token's")
    squares = logits if normed is None else normed.squares
    depth = 128 if normed is None else normed.rows.values.shape[1]
    width = slow.hidden.shape[1] if slow is not None else 1
    target = fast_input
    d = target.residual.shape[1] if target is not None else width
    sample_kernel[(m,)](
        logits,
        squares,
        squares.stride(0),
        slots,
        sampling.temperature,
        sampling.top_p,
        sampling.top_k,
        sampling.seed_low,
        sampling.seed_high,
        sampling.draw,
        sampling.temperature.stride(0),
        logits if slow is None else slow.hidden,
        logits if slow is None else slow.end_row,
        columns if slow is None else slow.window,
        0 if slow is None else slow.window.stride(0),
        columns,
        columns.stride(0),
        logits if target is None else target.table,
        logits if target is None else target.residual,
        logits if target is None else target.norm_weight,
        logits if target is None else target.normed.rows.values,
        logits if target is None else target.normed.rows.scales,
        0 if target is None else target.normed.rows.scales.stride(0),
        logits if target is None else target.normed.squares,
        0 if target is None else target.normed.squares.stride(0),
        m,
        codebook,
        0 if slow is None else slow.semantic_begin,
        0 if slow is None else slow.end_token,
        depth,
        d,
        eps,
        RETRY_TOP_P,
        MIN_TEMPERATURE,
        V=v,
        PARTS=parts,
        NORMED=normed is not None,
        G=triton.next_power_of_2(depth // 128),
        SLOW=slow is not None,
        W=1 if slow is None else slow.window.shape[1],
        W2=1 if slow is None else triton.next_power_of_2(slow.window.shape[1]),
        R=RANKS,
        D2=triton.next_power_of_2(d),
        DG=triton.next_power_of_2(triton.cdiv(d, 128)),
        EMBED=target is not None,
        PDL=pdl,
        **launch_options(warps=WARPS, pdl=pdl),
    )

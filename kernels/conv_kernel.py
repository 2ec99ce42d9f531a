"""The kernel behind :func:`shoal.kernels.conv.conv`: one tile of a causal convolution's outputs.

Owns the order of the sums. K is cut into ``CHUNKS`` chunks, a property of the weight; each is
summed from zero and they are added in order, by the program that computed them all or, where each
has a program, by the last of those to arrive. So who computes what never shows in the bits.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .rounding import EMULATE, let_next_start, prefetch_lines, wait_for_previous
from .snake import gelu, half, silu, snake

PLAIN, SNAKE, GELU, GLU = range(4)
_SNAKE, _GELU, _GLU = (tl.constexpr(i) for i in (SNAKE, GELU, GLU))

NO_SECOND, SNAKED, HALF, TAPPED = range(4)
"""What a convolution writes beside its sum: nothing, its snake, the sum in fp16, or its snake's
products with the taps of a convolution to one channel."""
_NO_SECOND, _SNAKED, _TAPPED = (tl.constexpr(i) for i in (NO_SECOND, SNAKED, TAPPED))


@triton.jit
def load_inputs(A, first, offset, live, c, CI: tl.constexpr, BK: tl.constexpr, TMA: tl.constexpr,
                MASKED: tl.constexpr):  # fmt: skip
    """fp16 [steps, BK]: channels ``c`` onwards of the steps ``first + offset``."""
    if TMA:
        a = A.load([first + offset, c])
    else:
        channel = c + tl.arange(0, BK)
        at = (first + offset)[:, None] * CI + channel[None, :]
        if MASKED:
            a = tl.load(A + at, mask=(channel < CI)[None, :] & live[:, None], other=0.0)
        else:
            a = tl.load(A + at, mask=live[:, None], other=0.0)
    return a


@triton.jit
def load_weight(W, n0, k, N, KW, BN: tl.constexpr, BK: tl.constexpr, TMA: tl.constexpr):
    """fp16 [BK, BN]: columns k onwards of rows ``n0`` onwards, transposed."""
    if TMA:
        w = W.load([n0, k])
    else:
        n = n0 + tl.arange(0, BN)
        at = n[:, None] * KW + (k + tl.arange(0, BK))[None, :]
        w = tl.load(W + at, mask=(n < N)[:, None], other=0.0)
    return tl.trans(w)


@triton.jit
def prefetch_weight(W, n0, N, first, last, CP, TAPS: tl.constexpr, BN: tl.constexpr,
                    BK: tl.constexpr, LINES: tl.constexpr):  # fmt: skip
    """Ask L2 for the start of what products ``first`` to ``last`` read, in their order."""
    n = tl.minimum(n0 + tl.arange(0, BN), N - 1)
    element = tl.minimum(first * BK + tl.arange(0, LINES) * 64, last * BK - 64)
    i = element // BK
    k = i % TAPS * CP + i // TAPS * BK + element % BK
    prefetch_lines(W + n[:, None] * (TAPS * CP) + k[None, :])


@triton.jit
def products(
    A, W0, W1, first, live, n0, n1, weight_rows, begin, end,
    CI: tl.constexpr, CP: tl.constexpr, TAPS: tl.constexpr, DIL: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BN1: tl.constexpr, BK: tl.constexpr,
    TMA: tl.constexpr, WTMA: tl.constexpr,
):  # fmt: skip
    """fp32 sums of products ``begin`` to ``end``: of BK channels all taps, then the next BK's."""
    masked: tl.constexpr = CP != CI
    acc = tl.zeros([BM, BN], tl.float32)
    if BN1 > 0:
        acc1 = tl.zeros([BM, BN1], tl.float32)
    else:
        acc1 = acc
    for i in tl.range(begin, end):
        tap = i % TAPS
        c = i // TAPS * BK
        a = load_inputs(A, first, tap * DIL, live, c, CI, BK, TMA, masked)
        w = load_weight(W0, n0, tap * CP + c, weight_rows, TAPS * CP, BN, BK, WTMA)
        acc = tl.dot(a, w, acc)
        if BN1 > 0:
            w1 = load_weight(W1, n1, tap * CP + c, weight_rows, TAPS * CP, BN1, BK, WTMA)
            acc1 = tl.dot(a, w1, acc1)
    return acc, acc1


@triton.jit
def with_bias(acc, BIAS, n0, N, BN: tl.constexpr):
    n = n0 + tl.arange(0, BN)
    return acc + tl.load(BIAS + n, mask=n < N, other=0.0)[None, :]


@triton.jit
def load_square(W, n0, k0, N, KW, BN: tl.constexpr, BK: tl.constexpr):
    """fp16 [BK, BN] of a small weight [N, KW], transposed; zeros outside."""
    n = n0 + tl.arange(0, BN)
    k = k0 + tl.arange(0, BK)
    mask = (n < N)[None, :] & (k < KW)[:, None]
    return tl.load(W + n[None, :] * KW + k[:, None], mask=mask, other=0.0)


@triton.jit
def rms_factors(SQUARES, m, live, total, channels, eps, GROUPS: tl.constexpr):
    """fp32 [steps]: one over the root of the mean square, from [GROUPS, total] sums of squares."""
    total_squares = tl.zeros_like(m).to(tl.float32)
    for group in tl.static_range(GROUPS):
        total_squares += tl.load(SQUARES + group * total + m, mask=live, other=0.0)
    return tl.rsqrt(total_squares / channels + eps)


@triton.jit
def write_sum(
    v, n0, m, row, step, live, total, R, r_row, X, x_row, SQUARES,
    N: tl.constexpr, BN: tl.constexpr,
    HAS_R: tl.constexpr, HAS_X: tl.constexpr, HAS_SQUARES: tl.constexpr,
):  # fmt: skip
    """Add the residual; store the sum and its squares' sum where wanted. Returns the sum."""
    n = n0 + tl.arange(0, BN)
    mask = live[:, None] & (n < N)[None, :]
    inside = step[:, None] * N + n[None, :]
    if HAS_R:
        v += tl.load(R + row[:, None] * r_row + inside, mask=mask, other=0.0).to(tl.float32)
    if HAS_X:
        at = X + row[:, None] * x_row + inside
        if X.dtype.element_ty == tl.float16:
            tl.store(at, half(v), mask=mask)
        else:
            tl.store(at, v, mask=mask)
    if HAS_SQUARES:
        tl.store(SQUARES + n0 // BN * total + m, tl.sum(v * v, 1), mask=live)
    return v


@triton.jit
def second(v, n0, ALPHA, N: tl.constexpr, BN: tl.constexpr, KIND: tl.constexpr):
    """fp16 of a sum: itself or, times alpha, its snake."""
    if KIND == _SNAKED or KIND == _TAPPED:
        n = n0 + tl.arange(0, BN)
        v = snake(v * tl.load(ALPHA + n, mask=n < N, other=0.0)[None, :])
    return half(v)


@triton.jit
def write_second(s, n0, row, step, live, S, s_row, N: tl.constexpr, BN: tl.constexpr):
    n = n0 + tl.arange(0, BN)
    mask = live[:, None] & (n < N)[None, :]
    tl.store(S + row[:, None] * s_row + step[:, None] * N + n[None, :], s, mask=mask)


@triton.jit
def finish(
    acc, acc1, n0, n1, weight_rows, m, row, step, live, total,
    BIAS, W2, BIAS2, SQUARES_IN, eps, R, r_row, X, x_row, SQUARES, ALPHA, S, s_row, W3,
    N: tl.constexpr, CI: tl.constexpr, CP2: tl.constexpr, CP3: tl.constexpr,
    BN: tl.constexpr, BN1: tl.constexpr, GROUPS: tl.constexpr,
    ACT: tl.constexpr, UNIT: tl.constexpr,
    HAS_R: tl.constexpr, HAS_X: tl.constexpr, HAS_SQUARES: tl.constexpr, KIND: tl.constexpr,
):  # fmt: skip
    """All that happens to the sums."""
    if GROUPS > 0:
        factor = rms_factors(SQUARES_IN, m, live, total, CI, eps, GROUPS)[:, None]
        acc = acc * factor
        acc1 = acc1 * factor
    acc = with_bias(acc, BIAS, n0, weight_rows, BN)
    if BN1 > 0:
        acc1 = with_bias(acc1, BIAS, n1, weight_rows, BN1)
    if ACT == _GLU:
        acc = silu(acc) * acc1
    elif ACT == _SNAKE:
        acc = snake(acc)
        if BN1 > 0:
            acc1 = snake(acc1)
    elif ACT == _GELU:
        acc = gelu(acc)
        if BN1 > 0:
            acc1 = gelu(acc1)
    if UNIT:
        h = half(acc)
        acc = tl.dot(h, load_square(W2, 0, 0, N, CP2, BN, BN))
        if BN1 > 0:
            h1 = half(acc1)
            acc = tl.dot(h1, load_square(W2, 0, BN, N, CP2, BN, BN1), acc)
            acc1 = tl.dot(h, load_square(W2, BN, 0, N, CP2, BN1, BN))
            acc1 = tl.dot(h1, load_square(W2, BN, BN, N, CP2, BN1, BN1), acc1)
            acc1 = with_bias(acc1, BIAS2, BN, N, BN1)
        acc = with_bias(acc, BIAS2, 0, N, BN)
    two: tl.constexpr = BN1 > 0 and ACT != _GLU
    acc = write_sum(acc, n0, m, row, step, live, total, R, r_row, X, x_row, SQUARES,
                    N, BN, HAS_R, HAS_X, HAS_SQUARES)  # fmt: skip
    if two:
        acc1 = write_sum(acc1, n1, m, row, step, live, total, R, r_row, X, x_row, SQUARES,
                         N, BN1, HAS_R, HAS_X, False)  # fmt: skip
    if KIND != _NO_SECOND:
        s = second(acc, n0, ALPHA, N, BN, KIND)
        if two:
            s1 = second(acc1, n1, ALPHA, N, BN1, KIND)
        if KIND == _TAPPED:
            taps = tl.dot(s, load_square(W3, 0, 0, 16, CP3, 16, BN))
            if two:
                taps = tl.dot(s1, load_square(W3, 0, BN, 16, CP3, 16, BN1), taps)
            write_taps(taps, row, step, live, S, s_row)
        else:
            write_second(s, n0, row, step, live, S, s_row, N, BN)
            if two:
                write_second(s1, n1, row, step, live, S, s_row, N, BN1)


@triton.jit
def write_taps(taps, row, step, live, S, s_row):
    """fp32 [steps, 8] of the 16 columns."""
    tap = tl.arange(0, 16)
    at = S + row[:, None] * s_row + step[:, None] * 8 + tap[None, :]
    tl.store(at, taps, mask=live[:, None] & (tap < 8)[None, :])


@triton.jit(do_not_specialize=["rows", "length", "a_steps"])
def conv_kernel(
    A, A_TAIL, a_steps, W, W0, W1, W0_TAIL, W1_TAIL, BIAS, W2, BIAS2, SQUARES_IN, eps,
    R, r_row, X, x_row, SQUARES, ALPHA, S, s_row, W3, PARTS, ARRIVED, rows, length,
    N: tl.constexpr, CI: tl.constexpr, CP: tl.constexpr, CP2: tl.constexpr, CP3: tl.constexpr,
    TAPS: tl.constexpr, DIL: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BN1: tl.constexpr, BK: tl.constexpr, BT: tl.constexpr,
    CHUNKS: tl.constexpr, SPLITS: tl.constexpr, AHEAD: tl.constexpr, GROUPS: tl.constexpr,
    ACT: tl.constexpr, UNIT: tl.constexpr,
    HAS_R: tl.constexpr, HAS_X: tl.constexpr, HAS_SQUARES: tl.constexpr, KIND: tl.constexpr,
    TMA: tl.constexpr, WTMA: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """grid (ceil(N / columns) * ceil(rows * length / BM), SPLITS); programs on the same steps are
    neighbours. GLU: ``W`` holds gates, then as many values. UNIT: a 1 x 1 convolution follows."""
    columns: tl.constexpr = BN if ACT == _GLU else BN + BN1
    across: tl.constexpr = (N + columns - 1) // columns
    tile = tl.program_id(0)
    split = tl.program_id(1)
    n0 = (tile % across) * columns
    n1 = N + n0 if ACT == _GLU else n0 + BN
    weight_rows: tl.constexpr = 2 * N if ACT == _GLU else N
    m0 = tile // across * BM
    m = m0 + tl.arange(0, BM)
    row = m // length
    step = m - row * length
    live = row < rows
    if TMA:
        row0 = m0 // length
        first = row0 * a_steps + (m0 - row0 * length)
    else:
        first = row * a_steps + step
    MAIN: tl.constexpr = CP // BK
    per: tl.constexpr = TAPS * MAIN // CHUNKS
    begin = split * per
    if AHEAD > 0 and not EMULATE:
        prefetch_weight(W, n0, weight_rows, begin, begin + per, CP, TAPS, BN, BK, AHEAD)
        if ACT == _GLU:
            prefetch_weight(W, n1, weight_rows, begin, begin + per, CP, TAPS, BN1, BK, AHEAD)
    wait_for_previous(PDL)
    if CHUNKS == SPLITS:
        acc, acc1 = products(A, W0, W1, first, live, n0, n1, weight_rows, begin, begin + per,
                             CI, CP, TAPS, DIL, BM, BN, BN1, BK, TMA, WTMA)  # fmt: skip
    else:
        acc = tl.zeros([BM, BN], tl.float32)
        for chunk in tl.range(0, CHUNKS, num_stages=1):
            more, _ = products(A, W0, W1, first, live, n0, n1, weight_rows,
                               chunk * per, chunk * per + per,
                               CI, CP, TAPS, DIL, BM, BN, BN1, BK, TMA, WTMA)  # fmt: skip
            acc += more
        acc1 = acc
    if BT > 0:
        masked: tl.constexpr = CP != CI
        for tap in tl.range(0, TAPS):
            a = load_inputs(A_TAIL, first, tap * DIL, live, MAIN * BK, CI, BT, TMA, masked)
            k = tap * CP + MAIN * BK
            w = load_weight(W0_TAIL, n0, k, weight_rows, TAPS * CP, BN, BT, WTMA)
            acc = tl.dot(a, w, acc)
            if BN1 > 0:
                w1 = load_weight(W1_TAIL, n1, k, weight_rows, TAPS * CP, BN1, BT, WTMA)
                acc1 = tl.dot(a, w1, acc1)
    let_next_start(PDL)
    total = rows * length
    if SPLITS == 1:
        finish(acc, acc1, n0, n1, weight_rows, m, row, step, live, total,
               BIAS, W2, BIAS2, SQUARES_IN, eps, R, r_row, X, x_row, SQUARES, ALPHA, S, s_row, W3,
               N, CI, CP2, CP3, BN, BN1, GROUPS, ACT, UNIT,
               HAS_R, HAS_X, HAS_SQUARES, KIND)  # fmt: skip
    else:
        inside = tl.arange(0, BM)[:, None] * BN + tl.arange(0, BN)[None, :]
        part = PARTS + tile * (SPLITS * BM * BN) + inside
        tl.store(part + split * (BM * BN), acc)
        # Stores of all threads come before the count, the count before the last one's loads.
        tl.debug_barrier()
        arrived = tl.atomic_add(ARRIVED + tile, 1, sem="acq_rel", scope="gpu")
        if arrived == SPLITS - 1:
            tl.debug_barrier()
            acc = tl.load(part)
            for i in tl.static_range(1, SPLITS):
                acc += tl.load(part + i * (BM * BN))
            tl.store(ARRIVED + tile, 0)
            finish(acc, acc, n0, n1, weight_rows, m, row, step, live, total, BIAS, W2, BIAS2,
                   SQUARES_IN, eps, R, r_row, X, x_row, SQUARES, ALPHA, S, s_row, W3,
                   N, CI, CP2, CP3, BN, 0, GROUPS, ACT, UNIT,
                   HAS_R, HAS_X, HAS_SQUARES, KIND)  # fmt: skip

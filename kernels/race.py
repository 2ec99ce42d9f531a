"""The race that decides a draw: device functions of the sampler, and the same law in plain torch.

A candidate's random word is addressed, not drawn in order: Philox4x32-10, keyed by the request's
seed, with the counter (candidate // 4, codebook, draw, stream); word ``candidate % 4`` is the
candidate's. Stream 1 is the second draw that repetition-aware sampling makes.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

RANKS = 32
"""Best candidates a row looks at; a row with a larger ``top_k`` sorts them all."""
RETRY_TOP_P = 0.9
MIN_TEMPERATURE = 1e-5


@triton.jit
def ordered_key(x, index):
    """fp32 on the bf16 grid and an index below 2**15 to an int32 that orders by both."""
    b = (x.to(tl.uint32, bitcast=True) >> 16).to(tl.int32)
    return ((b ^ tl.where(b >= 0x8000, 0xFFFF, 0x8000)) << 15) | (0x7FFF - index)


@triton.jit
def key_value(key):
    u = (key >> 15) & 0xFFFF
    b = u ^ tl.where(u >= 0x8000, 0x8000, 0xFFFF)
    return (b.to(tl.uint32) << 16).to(tl.float32, bitcast=True)


@triton.jit
def best_keys(keys, top, log_total, top_k, enough, R: tl.constexpr):
    """int32 [R]: the largest of ``keys`` in order, as many as a draw can look at.

    That is ``top_k`` (at most R), or fewer: behind a summed probability of ``enough`` nothing is
    kept. The rest are keys of minus infinity. One maximum after another takes less than a sort.
    """
    rank = tl.arange(0, R)
    nothing = 0x7F << 15  # minus infinity, behind every index
    best = rank * 0 + nothing
    last = top_k * 0 + 0x7FFFFFFF
    found = top_k * 0
    summed = log_total * 0.0
    while (found < top_k) & (summed <= enough):
        last = tl.max(tl.where(keys < last, keys, nothing), axis=0)
        best = tl.where(rank == found, last, best)
        summed += tl.exp(key_value(last) - (top + log_total))
        found += 1
    return best


@triton.jit
def log_exponential(seed, candidate, codebook, draw, stream):
    """log of a unit exponential: what the race of a draw subtracts."""
    zero = candidate * 0
    w0, w1, w2, w3 = tl.philox(seed, candidate >> 2, zero + codebook, zero + draw, zero + stream)
    pick = candidate & 3
    word = tl.where(pick == 0, w0, tl.where(pick == 1, w1, tl.where(pick == 2, w2, w3)))
    word = word.to(tl.uint32, bitcast=True) >> 9
    uniform = (word.to(tl.float32) + 0.5) * 1.1920928955078125e-07
    return tl.log(-tl.log(uniform))


@triton.jit
def draw_one(
    log_p,
    index,
    cumulative,
    rank,
    end_log_p,
    end_cumulative,
    end_rank,
    inverse_temperature,
    top_p,
    top_k,
    seed,
    codebook,
    draw,
    stream,
    V: tl.constexpr,
    END: tl.constexpr,
):
    """The winner of one race: a code, or V for the end token."""
    keep = ((cumulative <= top_p) & (rank < top_k)) | (rank == 0)
    noise = log_exponential(seed, index, codebook, draw, stream)
    score = tl.where(keep, log_p * inverse_temperature - noise, float("-inf"))
    best = tl.max(score, axis=0)
    # Of equal scores the better rank wins, as arg max over the sorted list does.
    first = tl.min(tl.where(score == best, rank, 0x7FFFFFFF), axis=0)
    token = tl.sum(tl.where(rank == first, index, 0), axis=0)
    if END:
        kept = ((end_cumulative <= top_p) & (end_rank < top_k)) | (end_rank == 0)
        end = tl.zeros_like(token) + V
        noise = log_exponential(seed, end, codebook, draw, stream)
        end_score = end_log_p * inverse_temperature - noise
        token = tl.where(kept & ((end_score > best) | (best == float("-inf"))), V, token)
    return token


@triton.jit
def choose(
    keys,
    top,
    log_total,
    end_logit,
    inverse_temperature,
    top_p,
    top_k,
    seed,
    codebook,
    draw,
    WINDOW,
    semantic_begin,
    retry_top_p,
    V: tl.constexpr,
    W: tl.constexpr,
    W2: tl.constexpr,
    SLOW: tl.constexpr,
    R: tl.constexpr,
):
    """A row's token from its R best codes, ``keys`` in descending order."""
    index = 0x7FFF - (keys & 0x7FFF)
    log_p = key_value(keys) - (top + log_total)
    p = tl.exp(log_p)
    rank = tl.arange(0, R)
    cumulative = tl.cumsum(p, axis=0)
    end_log_p = top
    end_cumulative = top
    end_rank = draw * 0
    if SLOW:
        end_log_p = end_logit - (top + log_total)
        end_p = tl.exp(end_log_p)
        # The end token has the highest number, so codes of the same logit are ahead of it.
        ahead = key_value(keys) >= end_logit
        end_rank = tl.sum(ahead.to(tl.int32), axis=0)
        end_cumulative = tl.sum(tl.where(ahead, p, 0.0), axis=0) + end_p
        cumulative = tl.where(ahead, cumulative, cumulative + end_p)
        rank = tl.where(ahead, rank, rank + 1)
    token = draw_one(
        log_p,
        index,
        cumulative,
        rank,
        end_log_p,
        end_cumulative,
        end_rank,
        inverse_temperature,
        top_p,
        top_k,
        seed,
        codebook,
        draw,
        0,
        V,
        SLOW,
    )
    if SLOW:
        again = draw_one(
            log_p,
            index,
            cumulative,
            rank,
            end_log_p,
            end_cumulative,
            end_rank,
            1.0,
            retry_top_p,
            top_k,
            seed,
            codebook,
            draw,
            1,
            V,
            True,
        )
        w = tl.arange(0, W2)
        past = tl.load(WINDOW + w, mask=w < W, other=-1)
        seen = tl.sum((past == token + semantic_begin).to(tl.int32), axis=0) > 0
        token = tl.where(seen & (token < V), again, token)
    return token


def philox_reference(counter: tuple[int, int, int, int], seed: int) -> tuple[int, int, int, int]:
    """Philox4x32-10 of one counter, in Python integers."""
    mask = 0xFFFFFFFF
    c0, c1, c2, c3 = counter
    k0, k1 = seed & mask, (seed >> 32) & mask
    for _ in range(10):
        a, b = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1, c2, c3 = (b >> 32) ^ c1 ^ k0, b & mask, (a >> 32) ^ c3 ^ k1, a & mask
        k0, k1 = (k0 + 0x9E3779B9) & mask, (k1 + 0xBB67AE85) & mask
    return c0, c1, c2, c3


def race_reference(
    logits: torch.Tensor,
    temperature: float,
    top_p: float,
    top_k: int,
    seed: int,
    codebook: int,
    draw: int,
    stream: int = 0,
) -> int:
    """The drawn candidate of fp32 logits [V]; ``draw_one`` in plain torch."""
    log_p, order = torch.log_softmax(logits.double(), -1).sort(descending=True, stable=True)
    ranks = torch.arange(len(order), device=logits.device)
    keep = (log_p.exp().cumsum(-1) <= top_p) & (ranks < (1 if temperature <= 0 else top_k))
    keep[0] = True
    order, log_p = order[keep], log_p[keep]
    words = [
        philox_reference((i // 4, codebook, draw, stream), seed)[i % 4] for i in order.tolist()
    ]
    uniform = (torch.tensor(words, device=logits.device).double() // 512 + 0.5) / 2**23
    score = log_p / max(temperature, MIN_TEMPERATURE) - (-uniform.log()).log()
    return int(order[score.argmax()])

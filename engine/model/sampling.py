"""How tokens are drawn: filter, race, repetition-aware slow token, its window.

Owns the law of every draw, in float32. Knows nothing of slots or of the model. The filter comes
before the temperature, and the candidate that crosses ``top_p`` is dropped. A draw is a race:
the survivor with the largest log p / T - log e wins, e a unit exponential per candidate
(:mod:`.philox`), which equals a multinomial draw.

All but ``prev_tokens_shift_inplace`` is written in the subset of Python that TorchScript compiles.
"""

from __future__ import annotations

import torch
from torch import Tensor

WINDOW_FRAMES = 10
"""Slow tokens that repetition-aware sampling looks back on."""
RETRY_TEMPERATURE = 1.0
RETRY_TOP_P = 0.9
NARROW_TOP_K = 32
"""Up to this ``top_k`` a row needs only its best few candidates; above it all are sorted."""
MIN_TEMPERATURE = 1e-5


def filtered_probs(logits: Tensor, temperature: float, top_p: float, top_k: int) -> Tensor:
    """The definition: float32 [..., V] logits to the probabilities a draw uses."""
    ordered, order = torch.sort(logits, descending=True, dim=-1)
    cumulative = torch.cumsum(torch.softmax(ordered, -1), -1)
    ranks = torch.arange(logits.size(-1), device=logits.device)
    dropped = (cumulative > top_p) | (ranks >= top_k)
    dropped[..., 0] = False
    dropped = torch.zeros_like(dropped).scatter(-1, order, dropped)
    scaled = logits.masked_fill(dropped, float("-inf")) / max(temperature, MIN_TEMPERATURE)
    return torch.softmax(scaled, -1)


def topk_race(
    logits: Tensor,
    inverse_temperature: Tensor,
    top_p: Tensor,
    top_k: Tensor,
    log_exponential: Tensor,
    ranks: int,
) -> Tensor:
    """Draw one candidate per row from the best ``ranks``.

    ``logits`` and ``log_exponential`` float32 [B, V]; the rest [B, 1], ``top_k`` at most
    ``ranks``. Returns int64 [B]. The cumulative sum that the filter looks at needs only ranks
    up to ``top_k``, so this is exact without sorting the vocabulary.
    """
    best, ids = torch.topk(logits, ranks)
    log_probs = best - torch.logsumexp(logits, -1, keepdim=True)
    kept = (torch.cumsum(torch.exp(log_probs), -1) <= top_p) & (
        torch.arange(ranks, device=logits.device) < top_k
    )
    kept[:, 0] = True
    score = log_probs * inverse_temperature - log_exponential.gather(1, ids)
    winner = score.masked_fill(~kept, -float("inf")).argmax(-1, keepdim=True)
    return ids.gather(1, winner).squeeze(1)


def race(
    logits: Tensor,
    inverse_temperature: Tensor,
    top_p: Tensor,
    top_k: Tensor,
    log_exponential: Tensor,
    wide: bool,
    narrow: int = NARROW_TOP_K,
) -> Tensor:
    """:func:`topk_race` where each row's own ``top_k`` decides how many ranks it looks at.

    ``wide`` says that some row's ``top_k`` is above ``NARROW_TOP_K``. A row's draw does not
    depend on it, nor on other rows.
    """
    narrow_ranks = min(narrow, logits.size(1))
    drawn = topk_race(logits, inverse_temperature, top_p, top_k, log_exponential, narrow_ranks)
    if wide:
        all_ranks = topk_race(
            logits, inverse_temperature, top_p, top_k, log_exponential, logits.size(1)
        )
        drawn = torch.where(top_k.squeeze(1) > narrow_ranks, all_ranks, drawn)
    return drawn


def slow_candidate(
    logits: Tensor,
    inverse_temperature: Tensor,
    top_p: Tensor,
    top_k: Tensor,
    log_exponential: Tensor,
    window: Tensor,
    semantic_begin: int,
    wide: bool,
    retry_temperature: float = RETRY_TEMPERATURE,
    retry_top_p: float = RETRY_TOP_P,
) -> Tensor:
    """Repetition-aware draw of the slow token's candidate, int64 [B].

    ``logits`` [B, codes + 1], the end token last; ``log_exponential`` [B, 2, codes + 1];
    ``window`` int32 [B, W, columns] of earlier columns, zeros where there are none. A semantic
    token that is in the window is replaced by a second draw, which is not looked at again.
    """
    first = race(logits, inverse_temperature, top_p, top_k, log_exponential[:, 0], wide)
    second = race(
        logits,
        torch.full_like(inverse_temperature, 1.0 / retry_temperature),
        torch.full_like(top_p, retry_top_p),
        top_k,
        log_exponential[:, 1],
        wide,
    )
    repeated = (window[:, :, 0] == (first + semantic_begin).unsqueeze(1)).any(1)
    repeated = repeated & (first < logits.size(1) - 1)
    return torch.where(repeated, second, first)


def prev_tokens_shift_inplace(prev: Tensor, next: Tensor) -> None:
    """Roll the window of earlier columns left by one and write ``next`` at its right end.

    ``prev`` int32 [bs, W, cw], ``next`` int32 [bs, cw], both contiguous on one device. Anything
    else is refused with ``TypeError`` (no tensor, other dtype) or ``ValueError`` (rank, shape,
    layout, device); nothing is ever cast.
    """
    for name, tensor, rank in (("prev", prev, 3), ("next", next, 2)):
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name} must be a tensor, is {type(tensor).__name__}")
        if tensor.dtype != torch.int32:
            raise TypeError(f"{name} must be int32, is {tensor.dtype}")
        if tensor.layout != torch.strided:
            raise ValueError(f"{name} must be strided, is {tensor.layout}")
        if tensor.dim() != rank:
            raise ValueError(f"{name} must have rank {rank}, has {tensor.dim()}")
        if not tensor.is_contiguous():
            raise ValueError(f"{name} must be contiguous, has strides {tensor.stride()}")
    if prev.size(1) < 1:
        raise ValueError("prev must hold at least one column per row")
    if (prev.size(0), prev.size(2)) != (next.size(0), next.size(1)):
        raise ValueError(f"prev {list(prev.shape)} and next {list(next.shape)} do not match")
    if prev.device != next.device:
        raise ValueError(f"prev is on {prev.device}, next on {next.device}")
    shift_window(prev, next)


def shift_window(prev: Tensor, next: Tensor) -> None:
    """:func:`prev_tokens_shift_inplace` without its checks, for compiled code."""
    prev.copy_(torch.cat([prev[:, 1:], next.unsqueeze(1)], 1))

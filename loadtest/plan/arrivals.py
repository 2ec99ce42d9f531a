"""When turns are due: Poisson, in bursts, and at the pace of a conversation. Pure."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence


def poisson(rng: random.Random, rate: float, start_s: float, burst: float = 1.0) -> Iterator[float]:
    """Endless times from ``start_s``, ``rate`` a second on average.

    With ``burst`` above 1 they come in groups of that mean size (geometric), each group at one
    instant: the same rate, but as a crowd that speaks at once.
    """
    at_s = start_s
    while True:
        at_s += rng.expovariate(rate / burst)
        for _ in range(_group(rng, burst)):
            yield at_s


def _group(rng: random.Random, mean: float) -> int:
    if mean <= 1.0:
        return 1
    stay = 1.0 - 1.0 / mean
    return 1 + int(math.log(1.0 - rng.random()) / math.log(stay))


def think_s(rng: random.Random, mean_s: float) -> float:
    """A pause before speaking: log-normal, so a few people think for long. Mean ``mean_s``."""
    sigma = 0.6
    return rng.lognormvariate(math.log(mean_s) - sigma * sigma / 2, sigma) if mean_s > 0 else 0.0


def burst_times(rng: random.Random, every_s: float, start_s: float, end_s: float) -> list[float]:
    """Instants at which many users are prompted at once; the same for all who share the seed."""
    if every_s <= 0:
        return []
    times: list[float] = []
    at_s = start_s + rng.uniform(0.3, 1.0) * every_s
    while at_s < end_s:
        times.append(at_s)
        at_s += rng.uniform(0.7, 1.3) * every_s
    return times


def next_start_s(
    rng: random.Random, free_s: float, pause_s: float, bursts: Sequence[float], share: float
) -> float:
    """When a user who is free from ``free_s`` speaks next.

    After the pause; or, with probability ``share``, at the first burst that falls into it.
    """
    for burst_s in bursts:
        if free_s <= burst_s < free_s + pause_s:
            return burst_s if rng.random() < share else free_s + pause_s
    return free_s + pause_s

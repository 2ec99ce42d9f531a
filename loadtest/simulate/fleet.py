"""The fleet, second by second: GPUs that start, serve and drain; turns that come, wait and end.

Turns are counts, not objects: all ready GPUs are one pool, as they nearly are for a router that
sends what finds its first choice full to the least loaded. Pure; the same seed gives the same run.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from .policy import Policy, Signals
from .voices import Voices, fleet_hit_share

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
_QUANTILES = 20
_BIN_S = 0.001
_MOST_S = 10.0


@dataclass(frozen=True, slots=True)
class Gpu:
    """What one GPU does: constants to be measured; these are an H200's. Times in seconds."""

    capacity: int = 128
    """Live turns at once with the TTFA and the leads that were promised."""
    start_s: tuple[float, float] = (20.0, 135.0)
    """From the order to the first turn: a node, an image, weights, graphs. With a cache of kernels
    and without; node and image are not in it."""
    drain_s: float = 30.0
    """A GPU that is let go is paid for so long, at most."""
    ttfa_idle_s: float = 0.017
    ttfa_full_s: float = 0.056
    ttfa_spread: float = 0.2
    """The logarithm's standard deviation among turns at one load."""
    miss_s: float = 0.013
    """What a turn waits longer when its voice is not prefilled."""
    wait_s: float = 1.0
    """A turn that finds no room waits at most so long, and is refused."""
    busy_idle: float = 0.25
    """CPU share of a server without turns; it grows from there to 1 at capacity."""


@dataclass(frozen=True, slots=True)
class Backfill:
    """Batch priority: how much of the slots it may have, and what yielding costs."""

    reserve: float = 1 / 16
    item_s: float = 8.0
    """How long an utterance holds its slot."""
    redo_s: float = 2.0
    """Of that, what is spoken again after it was parked."""
    step_s: float = 0.008
    """A live turn waits for at most two steps that had begun; one on average."""


@dataclass(frozen=True, slots=True)
class Scenario:
    name: str
    policy: Policy
    interval_s: int = 5
    """How often the policy is asked."""
    smoothing_s: float = 0.0
    """The CPU share is an average over about so long."""
    begin: int = 0
    """Replicas at midnight; 0: what the policy says at once."""
    affinity: bool = True
    most: int = 1 << 30
    """GPUs that there are, those that start or drain included."""


@dataclass(slots=True)
class Run:
    """A day under one policy; arrays by second. ``paid`` counts starting and draining GPUs."""

    name: str
    paid: FloatArray
    ready: FloatArray
    live: FloatArray
    refused: FloatArray
    admitted: FloatArray
    waited: FloatArray
    """Of those admitted, those who had to wait."""
    moved: FloatArray
    """Of the voices, those whose GPU is another one than a little while ago."""
    affinity: bool
    starts: int = 0
    backfill: FloatArray = field(default_factory=lambda: np.zeros(0))
    wasted: FloatArray = field(default_factory=lambda: np.zeros(0))


def simulate(scenario: Scenario, arrivals: IntArray, turn_s: float, gpu: Gpu, seed: int) -> Run:
    """Live turns alone: batch priority changes nothing for them but a step (see :func:`fill`)."""
    seconds = len(arrivals)
    rng = np.random.default_rng([seed, 3])
    coming = np.zeros(seconds + math.ceil(gpu.start_s[1]) + 2, np.int64)
    leaving = np.zeros(seconds + math.ceil(gpu.drain_s) + 2, np.int64)
    paid, ready_at, live_at = np.zeros(seconds), np.zeros(seconds), np.zeros(seconds)
    refused, admitted, waited = np.zeros(seconds), np.zeros(seconds), np.zeros(seconds)
    moved = np.zeros(seconds)
    run = Run(
        scenario.name, paid, ready_at, live_at, refused, admitted, waited, moved, scenario.affinity
    )
    ends = -math.expm1(-1.0 / turn_s)
    forget = math.exp(-1.0 / 60.0)
    live = int(arrivals[0] * turn_s)
    memory: Any = None
    signals = Signals(0.0, 0, 0, live, gpu.capacity, 0.0, gpu.busy_idle)
    ready = min(scenario.most, scenario.begin or scenario.policy(signals, None)[0])
    live = min(live, ready * gpu.capacity)
    starting = draining = on_draining = waiting = 0
    busy, refusals, lost = gpu.busy_idle, 0, 0.0
    for second in range(seconds):
        begun = int(coming[second])
        starting, ready = starting - begun, ready + begun
        gone = int(leaving[second])
        draining -= gone
        lost = lost * forget + begun / max(1, ready)
        if live:
            ended = int(rng.binomial(live, ends))
            live -= ended
            on_draining -= round(ended * on_draining / (live + ended))
        room = max(0, ready * gpu.capacity - (live - on_draining))
        late = min(waiting, room)
        fresh = min(int(arrivals[second]), room - late)
        refused[second] = waiting - late
        waiting = int(arrivals[second]) - fresh
        if gpu.wait_s < 1.0:
            refused[second] += waiting
            waiting = 0
        live += late + fresh
        refusals += int(refused[second])
        admitted[second], waited[second], moved[second] = late + fresh, late, min(1.0, lost)
        share = min(1.0, live / max(1, ready * gpu.capacity))
        now_busy = gpu.busy_idle + (1 - gpu.busy_idle) * share
        busy += (now_busy - busy) / max(1.0, scenario.smoothing_s)
        if second % scenario.interval_s == 0:
            rate = refusals / scenario.interval_s
            refusals = 0
            signals = Signals(
                float(second), ready + starting, ready, live, gpu.capacity, rate, busy
            )
            wanted, memory = scenario.policy(signals, memory)
            more = wanted - ready - starting
            if more > 0:
                more = max(0, min(more, scenario.most - ready - starting - draining))
                starting += more
                run.starts += more
                for start_s in rng.uniform(*gpu.start_s, more):
                    coming[second + math.ceil(start_s)] += 1
            elif more < 0:
                fewer = min(-more, ready - 1)
                on_draining += round((live - on_draining) * fewer / ready)
                ready, draining = ready - fewer, draining + fewer
                lost += fewer / ready
                leaving[second + math.ceil(gpu.drain_s)] += fewer
        paid[second], ready_at[second], live_at[second] = ready + starting + draining, ready, live
    return run


def fill(run: Run, gpu: Gpu, backfill: Backfill) -> None:
    """Put batch priority into the slots that live turns leave over."""
    room = np.maximum(0.0, run.ready * gpu.capacity * (1 - backfill.reserve) - run.live)
    run.backfill = np.floor(room)
    before = np.concatenate([run.backfill[:1], run.backfill[:-1]])
    # Some end anyhow; who has to go beyond that is parked.
    parked = np.maximum(0.0, before - run.backfill - before / backfill.item_s)
    run.wasted = np.minimum(run.backfill, parked * backfill.redo_s)


def ttfa(run: Run, gpu: Gpu, voices: Voices, backfill: Backfill | None) -> FloatArray:
    """How many turns had which TTFA, float64 by millisecond."""
    share = np.minimum(1.0, run.live / np.maximum(1.0, run.ready * gpu.capacity))
    base = gpu.ttfa_idle_s + (gpu.ttfa_full_s - gpu.ttfa_idle_s) * share**2
    if backfill is not None:
        base = base + backfill.step_s * (run.backfill > 0)
    miss = _miss_share(run, voices)
    late = np.divide(run.waited, run.admitted, out=np.zeros_like(base), where=run.admitted > 0)
    counts = np.zeros(int(_MOST_S / _BIN_S) + 1)
    levels = (np.arange(_QUANTILES) + 0.5) / _QUANTILES
    for factor in np.exp(gpu.ttfa_spread * _normal_quantiles(levels)):
        for missed, miss_part in ((gpu.miss_s, miss), (0.0, 1 - miss)):
            for wait, wait_part in ((gpu.wait_s / 2, late), (0.0, 1 - late)):
                seconds = base * factor + missed + wait
                bins = np.minimum(seconds / _BIN_S, len(counts) - 1).astype(np.int64)
                weights = run.admitted * miss_part * wait_part / _QUANTILES
                counts += np.bincount(bins, weights, len(counts))
    return counts


def _miss_share(run: Run, voices: Voices) -> FloatArray:
    """By second: voices that no cache has, and those that moved to another GPU just now."""
    sizes = np.unique(np.linspace(1, max(2.0, run.ready.max()), 12).round())
    known = np.array([fleet_hit_share(voices, int(size), run.affinity) for size in sizes])
    hit = np.interp(run.ready, sizes, known)
    return 1.0 - hit * (1.0 - (run.moved if run.affinity else 0.0))


def miss_share(run: Run, voices: Voices) -> float:
    """Of the day's turns."""
    return float((_miss_share(run, voices) * run.admitted).sum() / max(1.0, run.admitted.sum()))


def percentile(counts: FloatArray, percent: float) -> float:
    """Seconds, from what :func:`ttfa` gives."""
    below = np.cumsum(counts) < counts.sum() * percent / 100
    return int(below.sum()) * _BIN_S


def _normal_quantiles(levels: FloatArray) -> FloatArray:
    """Of the standard normal distribution, by its cumulative sum on a grid."""
    grid = np.linspace(-5, 5, 10_001)
    total = np.cumsum(np.exp(-(grid**2) / 2))
    return np.interp(levels, total / total[-1], grid)


def longest_refusal_s(run: Run) -> int:
    """The longest stretch of seconds in each of which somebody was refused."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], run.refused > 0, [0]])))
    return int((edges[1::2] - edges[::2]).max(initial=0))

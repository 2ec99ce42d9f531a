"""The study that ``shoal load fleet`` makes: one day, several policies, as plain JSON values."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.deploy.autoscale import Rules
from shoal.loadtest.plan.recorded import RecordedTurn, read_recording

from .fleet import (
    Backfill,
    Gpu,
    Run,
    Scenario,
    fill,
    longest_refusal_s,
    miss_share,
    percentile,
    simulate,
    ttfa,
)
from .policy import CpuPercent, Fixed, Traffic, limited
from .trace import Day, arrivals, rate, replayed
from .voices import Voices

PEAK_SHARE = 0.53
"""Of all room: bursts then come near it and never need more."""
PLOTTED_S = 300

FloatArray = npt.NDArray[np.float64]


def study(args: argparse.Namespace) -> dict[str, Any]:
    """``args`` as :mod:`shoal.loadtest.cli.arguments` declares them."""
    gpu = Gpu(
        capacity=args.capacity,
        start_s=(args.start[0], args.start[1]),
        ttfa_idle_s=args.ttfa_idle,
        ttfa_full_s=args.ttfa_full,
        miss_s=args.miss,
    )
    peak = args.peak or PEAK_SHARE * args.gpus * args.capacity
    backfill = Backfill(step_s=args.step)
    if args.replay is None:
        return compare(Day(peak_turns=peak), gpu, backfill, args.gpus, args.seed)
    day = Day(peak_turns=peak, seconds=max(PLOTTED_S, int(args.hours * 3600)))
    turns = read_recording(args.replay)
    return compare(day, gpu, backfill, args.gpus, args.seed, turns)


def scenarios(day: Day, gpu: Gpu, expected: FloatArray, gpus: int) -> list[Scenario]:
    """Ours as it ships, ours with less to spare, and what others do."""
    mean = math.ceil(expected.mean() * day.turn_s / gpu.capacity)
    start_s = sum(gpu.start_s) / 2 + 10.0
    shipped = Rules(most=gpus, start_s=start_s)
    tight = replace(shipped, target_load=0.9)
    begin = max(1, math.ceil(expected[0] * day.turn_s / gpu.capacity / 0.6))
    return [
        Scenario("live traffic", Traffic(shipped), most=gpus),
        Scenario("live traffic, load 0.9", Traffic(tight), most=gpus),
        Scenario("fixed, all", Fixed(gpus), affinity=False),
        Scenario("fixed, twice the mean", Fixed(min(gpus, 2 * mean)), affinity=False),
        *(
            Scenario(
                f"CPU percent {percent}",
                limited(CpuPercent(percent / 100), 1, gpus),
                interval_s=15,
                smoothing_s=60.0,
                begin=begin,
                affinity=False,
                most=gpus,
            )
            for percent in (60, 90)
        ),
    ]


def compare(
    day: Day,
    gpu: Gpu,
    backfill: Backfill,
    gpus: int,
    seed: int,
    recorded: Sequence[RecordedTurn] = (),
) -> dict[str, Any]:
    """Every scenario on the same day, made up or recorded. Times in seconds, shares of 1."""
    if recorded:
        day, expected = replayed(day, recorded)
    else:
        expected = rate(day, seed)
    turns = arrivals(expected, seed)
    voices = Voices()
    runs: list[dict[str, Any]] = []
    for scenario in scenarios(day, gpu, expected, gpus):
        run = simulate(scenario, turns, day.turn_s, gpu, seed)
        fill(run, gpu, backfill)
        runs.append({"name": scenario.name, **figures(run, gpu, voices, backfill)})
    return {
        "kind": "simulation",
        "note": "Simulated, not measured: constants are parameters.",
        "gpus": gpus,
        "seed": seed,
        "turns": int(turns.sum()),
        "recorded_turns": len(recorded),
        "hours": day.seconds / 3600,
        "demand_gpus": _plotted(expected * day.turn_s / gpu.capacity),
        "demand_gpus_mean": float(expected.mean() * day.turn_s / gpu.capacity),
        "demand_gpus_peak": float(expected.max() * day.turn_s / gpu.capacity),
        "plotted_s": PLOTTED_S,
        "parameters": {
            "day": asdict(day),
            "gpu": asdict(gpu),
            "backfill": asdict(backfill),
            "voices": asdict(voices),
        },
        "runs": runs,
    }


def figures(run: Run, gpu: Gpu, voices: Voices, backfill: Backfill) -> dict[str, Any]:
    """What is said of one run."""
    room = float(run.paid.sum()) * gpu.capacity
    useful = run.live + run.backfill - run.wasted
    alone, beside = ttfa(run, gpu, voices, None), ttfa(run, gpu, voices, backfill)
    offered = float(run.admitted.sum() + run.refused.sum())
    return {
        "gpu_hours": float(run.paid.sum()) / 3600,
        "gpus_most": int(run.paid.max()),
        "starts": run.starts,
        "utilisation": float(run.live.sum()) / room,
        "utilisation_with_backfill": float(useful.sum()) / room,
        "backfill_gpu_hours": float((run.backfill - run.wasted).sum()) / gpu.capacity / 3600,
        "backfill_wasted_share": float(run.wasted.sum() / max(1.0, run.backfill.sum())),
        "refused_share": float(run.refused.sum()) / max(1.0, offered),
        "refused_longest_s": longest_refusal_s(run),
        "miss_share": miss_share(run, voices),
        "ttfa_s": {f"p{p}": percentile(alone, p) for p in (50, 95, 99)},
        "ttfa_with_backfill_s": {f"p{p}": percentile(beside, p) for p in (50, 95, 99)},
        "series": {
            "paid": _plotted(run.paid),
            "live_share": _plotted(run.live / np.maximum(1.0, run.paid * gpu.capacity)),
            "all_share": _plotted(useful / np.maximum(1.0, run.paid * gpu.capacity)),
            "refused_share": _plotted(run.refused, run.admitted + run.refused),
        },
    }


def _plotted(values: FloatArray, of: FloatArray | None = None) -> list[float]:
    """Means of five minutes; with ``of``, of sums over sums."""
    whole = len(values) // PLOTTED_S * PLOTTED_S
    sums = values[:whole].reshape(-1, PLOTTED_S).sum(axis=1)
    below = PLOTTED_S if of is None else of[:whole].reshape(-1, PLOTTED_S).sum(axis=1)
    return [round(float(value), 5) for value in sums / np.maximum(1.0, below)]

"""Decode steps of S2 Pro's shape with the codec beside them: how long a step takes, and whether the
codec keeps up.

The codec decodes every row's frames as fast as steps make them, 1 or 4 frames a call, on a stream
of its own, on all multiprocessors. (On a share of them it fell behind at any share that left steps
faster, which is why it has none.)
"""

from __future__ import annotations

import statistics
import threading
import time
from typing import Any

import numpy as np
import torch

from shoal.engine.cuda.vocoder import Vocoder
from shoal.engine.cuda_runner import CudaRunner
from shoal.engine.random_model import S2_PRO, random_codec, random_cuda_weights
from shoal.engine.runner import Runner, VocodeBatch

from .bench_steps import Steps, pages_each

BATCHES = (64, 256)
FRAMES = (1, 4)
STEPS = 48
WARM_STEPS = 10
_MOST_STEPS = 6 + WARM_STEPS + (STEPS + 2) * (1 + len(FRAMES))


def beside(steps: Steps, vocoder: Vocoder, batch: VocodeBatch) -> dict[str, float]:
    slots, frames = batch.slots, batch.codes.shape[1]
    due = threading.Semaphore(0)
    done = threading.Event()
    spent: list[float] = []
    made = 0

    def codec() -> None:
        while not done.is_set():
            if due.acquire(timeout=0.05):
                begun = time.perf_counter()
                vocoder.run(batch)
                spent.append(1e3 * (time.perf_counter() - begun))

    def each(count: int) -> None:
        nonlocal made
        made = count
        if made % frames == 0:
            due.release()

    thread = threading.Thread(target=codec)
    thread.start()
    taken = [1e3 * took_s for took_s in steps.run(slots, STEPS + 2, each)]
    behind = made // frames - len(spent)
    done.set()
    thread.join()
    return {
        "step_ms": statistics.median(taken),
        "step_mean_ms": statistics.mean(taken),
        "step_max_ms": max(taken),
        "codec_ms": statistics.median(spent) if spent else 0.0,
        "calls_behind": behind,
    }


def pairs(figures: dict[str, Any]) -> bool:
    """A table into ``figures["pairs"]``. False when the codec keeps up in no way."""
    device = torch.device("cuda")
    most = max(BATCHES)
    pages = most * pages_each(_MOST_STEPS, 64) + 64
    placed, codec = random_cuda_weights(S2_PRO, device), random_codec(device)
    runner = CudaRunner(
        S2_PRO, placed, codec, slots=most, pages=pages, device=device, buckets=BATCHES
    )
    runner.warm_up()
    steps = Steps(runner, _MOST_STEPS)
    kept_up = True
    for rows in BATCHES:
        slots = tuple(range(rows))
        steps.begin(slots)
        steps.run(slots, WARM_STEPS)
        alone = 1e3 * statistics.median(steps.run(slots, STEPS + 2))
        print(f"{rows} rows: a step alone {alone:.2f} ms", flush=True)
        print("  frames  step ms    mean     max  codec ms  calls behind")
        vocoder = Vocoder(codec, rows, (rows,), FRAMES, device)
        vocoder.capture()
        kept_up &= _beside_each(runner, steps, vocoder, rows, alone, figures)
    runner.close()
    return kept_up


def _beside_each(
    runner: Runner,
    steps: Steps,
    vocoder: Vocoder,
    rows: int,
    alone: float,
    figures: dict[str, Any],
) -> bool:
    random = np.random.default_rng(0)
    kept_up = False
    for frames in FRAMES:
        shape = (rows, frames, runner.spec.codebooks)
        codes = random.integers(0, 1000, shape, dtype=np.int32)
        batch = VocodeBatch(tuple(range(rows)), codes, np.zeros(rows, np.bool_))
        vocoder.run(batch)
        found = beside(steps, vocoder, batch)
        kept_up |= found["calls_behind"] <= 2
        row = {"rows": rows, "alone_ms": alone, "frames": frames, **found}
        figures.setdefault("pairs", []).append(row)
        print(
            f"  {frames:6}  {found['step_ms']:7.2f} {found['step_mean_ms']:7.2f} "
            f"{found['step_max_ms']:7.2f}  {found['codec_ms']:8.2f}  {found['calls_behind']:5.0f}",
            flush=True,
        )
    return kept_up

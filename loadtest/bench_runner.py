"""What benchmarks of the CUDA runner share: their parts, random weights, a runner, its steps.

S2 Pro's shape throughout. Used by scripts on a machine with a GPU.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from shoal.engine.cuda.weights import CudaWeights
from shoal.engine.cuda_runner import PAGE_TOKENS, CudaRunner
from shoal.engine.random_model import S2_PRO, random_codec, random_cuda_weights
from shoal.engine.runner import Join, SlotSampling, StepPlan

ROWS = 64
REPEATS = 20
STEPS = 60
GPU = torch.device("cuda")

Part = Callable[[CudaWeights, dict[str, Any]], bool]
"""Measures something of FP8 weights into a dict; False where a value or a bit is wrong."""


def run_parts(parts: Mapping[str, Part], description: str | None) -> int:
    """A benchmark's command: its parts on random weights, in ``--parts``' order, their figures in
    ``--json``. Returns the exit status, 1 where one of them found something wrong."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--parts", default=",".join(parts))
    args = parser.parse_args()
    out: dict[str, Any] = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    weights = random_cuda_weights(S2_PRO, GPU)
    torch.cuda.empty_cache()
    good = True
    for name in args.parts.split(","):
        say(name)
        passed = parts[name](weights, out)
        good &= passed
        out["good"] = good
        if not passed:
            say(f"{name}: WRONG")
        if args.json:
            args.json.parent.mkdir(parents=True, exist_ok=True)
            args.json.write_text(json.dumps(out, indent=1))
        gc.collect()
        torch.cuda.empty_cache()
    return 0 if good else 1


def say(line: str) -> None:
    print(line, flush=True)


def ms(seconds: Sequence[float], share: float = 0.5) -> float:
    ordered = sorted(seconds)
    return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))] * 1e3, 3)


def timed(run: Callable[[], None], repeats: int = REPEATS) -> list[float]:
    times: list[float] = []
    for index in range(repeats + 3):
        begun = time.perf_counter()
        run()
        if index >= 3:
            times.append(time.perf_counter() - begun)
    return times


def columns(count: int, seed: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    """int32 [count, 1 + codebooks]: semantic tokens with codes."""
    draw = np.random.default_rng(seed)
    out = draw.integers(0, S2_PRO.codebook_size, (count, 1 + S2_PRO.codebooks), dtype=np.int32)
    out[:, 0] += S2_PRO.semantic_begin or 0
    return out


class Steps:
    """Drives a runner's steps, two in flight."""

    def __init__(self, runner: CudaRunner) -> None:
        self.runner = runner
        self._step = 0

    def run(
        self, slots: Sequence[int], count: int, joins: Sequence[Join] = ()
    ) -> tuple[list[float], np.ndarray[Any, np.dtype[np.int32]]]:
        """Seconds between results, and columns int32 [count, rows, 1 + codebooks]."""
        times: list[float] = []
        drawn: list[np.ndarray[Any, np.dtype[np.int32]]] = []
        pending: list[int] = []
        last = time.perf_counter()
        for index in range(count):
            plan = StepPlan(self._step, tuple(slots), tuple(joins) if not index else ())
            self.runner.launch(plan)
            pending.append(self._step)
            self._step += 1
            if len(pending) == 2:
                drawn.append(self.runner.collect(pending.pop(0)).columns)
                now = time.perf_counter()
                times.append(now - last)
                last = now
        drawn.extend(self.runner.collect(step).columns for step in pending)
        return times[2:], np.stack(drawn)


def make_runner(weights: CudaWeights, pages: int, **options: Any) -> CudaRunner:
    config = replace(S2_PRO, max_seq_len=4096)
    runner = CudaRunner(
        config,
        weights,
        random_codec(GPU),
        slots=ROWS,
        pages=pages,
        device=GPU,
        buckets=options.pop("buckets", (ROWS,)),
        **options,
    )
    begun = time.perf_counter()
    runner.warm_up()
    say(f"  (captured in {time.perf_counter() - begun:.1f} s)")
    return runner


def joins(
    context: int, shared: int, slots: Sequence[int], first_page: int
) -> tuple[tuple[Join, ...], int]:
    """A join for each slot at ``context``, its first ``shared`` pages those of slot 0."""
    sampling = SlotSampling(temperature=0.7, top_p=0.7, top_k=30, seed=1)
    each = -(-(context + 8 * STEPS) // PAGE_TOKENS) - shared
    own = first_page + shared
    common = tuple(range(first_page, own))
    made: list[Join] = []
    for slot in slots:
        table = common + tuple(range(own + slot * each, own + (slot + 1) * each))
        made.append(Join(slot, 1, context, 0, columns(1, slot)[0], table, sampling))
    return tuple(made), own + (max(slots) + 1) * each

"""Times decode steps of the CUDA runner, and holds FP8 against bf16.

    python -P loadtest/bench_step.py [--out DIR] [--batches 1,16,64] [--skip-voice]

Two parts. *Voice*: the built-in voice, greedy, on fixed sentences: bf16 and FP8 must agree token
for token over the first five frames. *Speed*: random weights of S2 Pro's shape at a context of
about 512; the frame step alone and with the codec decoding beside it, the synchronising calls and
allocations of steady steps, capture time and peak memory. Prints tables, writes ``step.json``.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from shoal.engine.config import BUILTIN_VOICE, EngineConfig
from shoal.engine.cuda.load import device_runner
from shoal.engine.loading import LoadedModel, load_model
from shoal.engine.prompt import PromptBuilder
from shoal.engine.random_model import S2_PRO, byte_tokenizer, random_codec, random_weights
from shoal.engine.runner import Join, PrefillChunk, Runner, SlotSampling, StepPlan, VocodeBatch

GATE_FRAMES = 5
SENTENCES = tuple(
    (Path(__file__).parents[1] / "tests" / "data" / "sents20.txt").read_text().splitlines()
)
CONTEXT = 512
WARM_STEPS = 8
TIMED_STEPS = 60


def say(line: str) -> None:
    print(line, flush=True)


# The voice ----------------------------------------------------------------------------------------


def greedy(model: LoadedModel, text: str, frames: int) -> list[list[int]]:
    """The first columns that greedy decoding draws for ``text``."""
    runner, spec = model.runner, model.runner.spec
    prompt = PromptBuilder(
        model.tokenizer, spec.codebooks, model.config.semantic_ids(model.tokenizer.semantic)
    )
    columns = np.concatenate([prompt.prefix(), prompt.user_turn(text)])
    table = tuple(range(-(-(len(columns) + frames + 2) // spec.page_tokens)))
    runner.prefill(PrefillChunk(columns[:-1], 0, table))
    sampling = SlotSampling(temperature=0.0, top_p=1.0, top_k=1, seed=0)
    join = Join(0, 1, len(columns) - 1, 0, columns[-1], table, sampling)
    drawn: list[list[int]] = []
    for index in range(frames):
        step = _next_step(runner)
        runner.launch(StepPlan(step, (0,), (join,) if not index else ()))
        drawn.append(runner.collect(step).columns[0].tolist())
    return drawn


_STEPS: dict[int, int] = {}


def _next_step(runner: Runner) -> int:
    step = _STEPS.get(id(runner), 0)
    _STEPS[id(runner)] = step + 1
    return step


def gate(out: dict[str, Any]) -> bool:
    """First frames of FP8, bf16 and the CPU's fp32 side by side; True when FP8 equals bf16."""
    drawn: dict[str, list[list[list[int]]]] = {}
    for name, device, dtype in (
        ("fp32", "cpu", "auto"),
        ("bf16", "cuda", "bf16"),
        ("fp8", "cuda", "fp8"),
    ):
        model = load_model(EngineConfig(BUILTIN_VOICE, device, dtype, slots=4), lambda _: None)
        model.runner.warm_up()
        drawn[name] = [greedy(model, text, 20) for text in SENTENCES]
        model.runner.close()
        del model
        gc.collect()
    rows: list[dict[str, Any]] = []
    for index, text in enumerate(SENTENCES):
        agree = {
            f"{a}={b}": _same(drawn[a][index], drawn[b][index])
            for a, b in (("fp8", "bf16"), ("bf16", "fp32"))
        }
        rows.append({"characters": len(text), **agree})
        say(f"  sentence {index}: frames equal before the first difference: {agree}")
    out["gate"] = rows
    passed = all(row["fp8=bf16"] >= GATE_FRAMES for row in rows)
    say(f"  first {GATE_FRAMES} frames token-exact in FP8: {'yes' if passed else 'NO'}")
    return passed


def _same(left: Sequence[Sequence[int]], right: Sequence[Sequence[int]]) -> int:
    return next((i for i, (a, b) in enumerate(zip(left, right, strict=True)) if a != b), len(left))


# Speed --------------------------------------------------------------------------------------------


def fill(runner: Runner, rows: int) -> tuple[Join, ...]:
    """A join for every slot at a context of ``CONTEXT``, on pages of its own."""
    spec = runner.spec
    each = -(-(CONTEXT + WARM_STEPS + 4 * TIMED_STEPS + 8) // spec.page_tokens)
    column = np.zeros(1 + spec.codebooks, np.int32)
    column[0] = 1000
    sampling = SlotSampling(temperature=0.7, top_p=0.7, top_k=30, seed=1)
    return tuple(
        Join(slot, 1, CONTEXT, 0, column, tuple(range(slot * each, (slot + 1) * each)), sampling)
        for slot in range(rows)
    )


def run_steps(
    runner: Runner,
    slots: tuple[int, ...],
    count: int,
    each: Callable[[int], None] = lambda _index: None,
) -> list[float]:
    """Seconds from one step's results to the next one's, two steps in flight. ``each`` is told of
    every step that was collected."""
    times: list[float] = []
    last = time.perf_counter()
    pending: list[int] = []
    for _ in range(count):
        step = _next_step(runner)
        runner.launch(StepPlan(step, slots))
        pending.append(step)
        if len(pending) == 2:
            runner.collect(pending.pop(0))
            now = time.perf_counter()
            times.append(now - last)
            last = now
            each(len(times))
    for step in pending:
        runner.collect(step)
    return times[1:]


def speed(dtype: str, pdl: bool, batches: Sequence[int], out: dict[str, Any]) -> None:
    config = EngineConfig(
        Path("random:s2-pro"), "cuda", dtype, slots=max(batches), pages=max(batches) * 14 + 64
    )
    begun = time.perf_counter()
    device = torch.device("cuda")
    weights, codec = random_weights(S2_PRO, device), random_codec(device)
    runner = device_runner(
        config, S2_PRO, weights, byte_tokenizer(S2_PRO), codec, device, lambda _: None, pdl=pdl
    )
    del weights
    loaded = time.perf_counter()
    runner.warm_up()
    torch.cuda.synchronize()
    captured = time.perf_counter()
    say(
        f"{dtype}{' with PDL' if pdl else ''}: weights {loaded - begun:.1f} s, "
        f"compile and capture {captured - loaded:.1f} s, "
        f"{torch.cuda.max_memory_allocated() / 2**30:.1f} GiB at most"
    )
    rows: list[dict[str, Any]] = []
    for batch in batches:
        slots = tuple(range(batch))
        step = _next_step(runner)
        runner.launch(StepPlan(step, slots, fill(runner, batch)))
        runner.collect(step)
        run_steps(runner, slots, WARM_STEPS)
        torch.cuda.set_sync_debug_mode("error")
        before = torch.cuda.memory_stats()["allocation.all.allocated"]
        alone = run_steps(runner, slots, TIMED_STEPS)
        allocations = torch.cuda.memory_stats()["allocation.all.allocated"] - before
        torch.cuda.set_sync_debug_mode("default")
        beside, codec = with_codec(runner, slots)
        row = {
            "batch": batch,
            "step_ms": round(statistics.median(alone) * 1e3, 3),
            "step_p99_ms": round(sorted(alone)[int(0.99 * len(alone))] * 1e3, 3),
            "with_codec_ms": round(statistics.median(beside) * 1e3, 3),
            "codec_ms_per_frame_step": round(codec * 1e3, 3),
            "frames_per_s": round(batch / statistics.median(beside)),
            "allocations": allocations,
        }
        rows.append(row)
        say(f"  {row}")
    out[f"{dtype}{'+pdl' if pdl else ''}"] = {
        "rows": rows,
        "capture_s": captured - loaded,
        "peak_gib": torch.cuda.max_memory_allocated() / 2**30,
    }
    runner.close()


def with_codec(runner: Runner, slots: tuple[int, ...]) -> tuple[list[float], float]:
    """Step times while another thread decodes every row's frames as fast as steps make them."""
    spec = runner.spec
    frames = 4
    codes = np.random.default_rng(0).integers(
        0, 1000, (len(slots), frames, spec.codebooks), dtype=np.int32
    )
    batch = VocodeBatch(slots, codes, np.zeros(len(slots), np.bool_))
    runner.vocode(batch)
    done = threading.Event()
    spent: list[float] = []
    budget = threading.Semaphore(0)

    def codec() -> None:
        while not done.is_set():
            if budget.acquire(timeout=0.05):
                begun = time.perf_counter()
                runner.vocode(batch)
                spent.append((time.perf_counter() - begun) / frames)

    thread = threading.Thread(target=codec)
    thread.start()

    def each(index: int) -> None:
        if index % frames == 0:
            budget.release()

    times = run_steps(runner, slots, TIMED_STEPS, each)
    done.set()
    thread.join()
    return times, statistics.median(spent) if spent else 0.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--batches", default="1,16,64")
    parser.add_argument("--dtypes", default="fp8,bf16")
    parser.add_argument("--skip-voice", action="store_true")
    parser.add_argument("--skip-speed", action="store_true")
    args = parser.parse_args()
    batches = [int(part) for part in args.batches.split(",")]
    out: dict[str, Any] = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    passed = args.skip_voice or gate(out)
    if not args.skip_speed:
        for dtype in args.dtypes.split(","):
            speed(dtype.removesuffix("+pdl"), dtype.endswith("+pdl"), batches, out)
            gc.collect()
            torch.cuda.empty_cache()
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        (args.out / "step.json").write_text(json.dumps(out, indent=1))
    return 0 if passed else 1


if __name__ == "__main__":
    raise SystemExit(main())

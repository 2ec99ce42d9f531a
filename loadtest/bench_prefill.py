"""Times prefill on the GPU, decode beside it, and attention to a prefix that many rows share.

    python -P -m shoal.loadtest.bench_prefill [--json FILE] [--parts PART,...]

Random weights of S2 Pro's shape. *prefill*: an utterance of each length behind a context, recorded
graphs against single launches, in bf16 and in FP8, and whether both write the same bits. *beside*:
steps of 64 rows while another thread prefills a voice of 2,000 columns over and over, by the length
of a prefill graph. *shared*: steps of 64 rows on one voice of 1,000 columns, its keys and values
read once for 16 rows or by each row. *neighbours*: a row's draws must not depend on who shares its
voice. Prints tables; exits non-zero when bits differ that must not, or a step stalls.
"""

from __future__ import annotations

import gc
import statistics
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from shoal.engine.cuda.buckets import PREFILL_SIZES, buckets_up_to
from shoal.engine.cuda.kv_pool import KvPool
from shoal.engine.cuda.prefill import Prefill, PrefillPass
from shoal.engine.cuda.weights import CudaWeights
from shoal.engine.cuda_runner import PAGE_TOKENS, CudaRunner
from shoal.engine.random_model import S2_PRO, random_cuda_weights
from shoal.engine.runner import PrefillChunk

from .bench_runner import (
    GPU,
    ROWS,
    STEPS,
    Steps,
    columns,
    joins,
    make_runner,
    ms,
    run_parts,
    say,
    timed,
)

LENGTHS = (12, 16, 32, 48, 64, 96, 128, 192, 256)
CONTEXTS = (0, 512, 1536)
"""Whole pages, so that a chunk has its pages to itself."""
CONTEXT = 512
VOICE = 2000
SHARED = (256, 512, 1000)


# Prefill alone ------------------------------------------------------------------------------------


def same_bits(before: tuple[torch.Tensor, ...], after: KvPool, pages: Sequence[int]) -> bool:
    at = torch.tensor(pages, device=GPU)
    kept = zip(before, after.parts, strict=True)
    return all(torch.equal(old[:, at], new[:, at]) for old, new in kept)


def clear(pool: KvPool, pages: Sequence[int]) -> None:
    at = torch.tensor(pages, device=GPU)
    for part in pool.parts:
        part[:, at] = 0
    torch.cuda.synchronize()


def prefill(narrow: CudaWeights, out: dict[str, Any]) -> bool:
    good = True
    rows: list[dict[str, Any]] = []
    slow = S2_PRO.slow
    pages = -(-(max(CONTEXTS) + VOICE) // PAGE_TOKENS)
    wide = random_cuda_weights(S2_PRO, GPU, "bf16")
    for name, weights in (("bf16", wide), ("fp8", narrow)):
        pool = KvPool.empty(slow.layers, pages, slow.kv_heads, PAGE_TOKENS, slow.head_dim, GPU)
        recorded, graph_s, held = make_prefill(weights, pool, pages, 256)
        single, _, _ = make_prefill(weights, pool, pages, 256, capture=False)
        say(f"{name}: {graph_s:.1f} s to compile and capture, buffers of {held:.2f} GiB")
        table = tuple(range(pages))
        for at in range(0, max(CONTEXTS), 256):
            recorded.run([PrefillChunk(columns(256, at), at, table)])
        for context in CONTEXTS:
            for length in LENGTHS:
                chunk = PrefillChunk(columns(length, length), context, table)
                touched = table[context // PAGE_TOKENS : -(-(context + length) // PAGE_TOKENS)]
                # What an earlier chunk left behind this one is nobody's: both begin from nothing.
                clear(pool, touched)
                recorded.run([chunk])
                kept = tuple(part.clone() for part in pool.parts)
                clear(pool, touched)
                single.run([chunk])
                torch.cuda.synchronize()
                equal = same_bits(kept, pool, touched)
                del kept
                good &= equal
                row = {
                    "dtype": name,
                    "columns": length,
                    "context": context,
                    "graph_ms": ms(timed(partial(recorded.run, [chunk]))),
                    "single_ms": ms(timed(partial(single.run, [chunk]), 5)),
                    "same_bits": equal,
                }
                rows.append(row)
                say(f"  {row}")
        voice = PrefillChunk(columns(VOICE, 1), 0, table)
        for size in (128, 256, 512, 1024):
            whole, _, _ = make_prefill(weights, pool, pages, size)
            row = {
                "dtype": name,
                "columns": VOICE,
                "context": 0,
                "graph_rows": size,
                "graph_ms": ms(timed(partial(whole.run, [voice]), 5)),
            }
            rows.append(row)
            say(f"  {row}")
            del whole
        del recorded, single, pool
        gc.collect()
        torch.cuda.empty_cache()
    out["prefill"] = rows
    return good


def make_prefill(
    weights: CudaWeights,
    pool: KvPool,
    pages: int,
    rows: int,
    *,
    capture: bool = True,
) -> tuple[Prefill, float, float]:
    """A prefill of graphs of up to ``rows`` rows, or of single launches; seconds, GiB."""
    begun, before = time.perf_counter(), torch.cuda.memory_allocated()
    sizes = buckets_up_to(rows, PREFILL_SIZES)
    made = Prefill(PrefillPass(weights, weights.prefill, pool, sizes, pages, GPU), pool, GPU)
    if capture:
        made.capture()
    taken = (torch.cuda.memory_allocated() - before) / 2**30
    return made, time.perf_counter() - begun, taken


# Steps --------------------------------------------------------------------------------------------


def beside(weights: CudaWeights, out: dict[str, Any]) -> bool:
    good = True
    rows: list[dict[str, Any]] = []
    slots = tuple(range(ROWS))
    voice_pages = -(-VOICE // PAGE_TOKENS)
    made, pages = joins(CONTEXT, 0, slots, voice_pages)
    table = tuple(range(voice_pages))
    wide = replace(weights, prefill=random_cuda_weights(S2_PRO, GPU, "bf16").prefill)
    for name, chosen, sizes in (("bf16", wide, (64, 128, 256, 512)), ("fp8", weights, (256,))):
        for size in sizes:
            runner = make_runner(chosen, pages, prefill_rows=size, sharing=False)
            steps = Steps(runner)
            steps.run(slots, 8, made)
            alone, _ = steps.run(slots, 2 * STEPS)
            done = threading.Event()
            spent: list[float] = []

            def prefills(
                runner: CudaRunner = runner,
                done: threading.Event = done,
                spent: list[float] = spent,
                size: int = size,
            ) -> None:
                while not done.is_set():
                    begun = time.perf_counter()
                    for at in range(0, VOICE, size):
                        part = columns(min(size, VOICE - at), at)
                        runner.prefill(PrefillChunk(part, at, table))
                    spent.append(time.perf_counter() - begun)

            thread = threading.Thread(target=prefills)
            thread.start()
            time.sleep(0.05)
            busy, _ = steps.run(slots, 2 * STEPS)
            done.set()
            thread.join()
            begun = time.perf_counter()
            for at in range(0, VOICE, size):
                runner.prefill(PrefillChunk(columns(min(size, VOICE - at), at), at, table))
            row = {
                "dtype": name,
                "graph_rows": size,
                "step_ms": ms(alone),
                "step_p99_ms": ms(alone, 0.99),
                "beside_ms": ms(busy),
                "beside_p99_ms": ms(busy, 0.99),
                "beside_worst_ms": ms(busy, 1.0),
                "p99_ratio": round(ms(busy, 0.99) / ms(alone, 0.99), 2),
                "voice_ms": round(statistics.median(spent) * 1e3, 1),
                "voice_alone_ms": round((time.perf_counter() - begun) * 1e3, 1),
            }
            rows.append(row)
            say(f"  {row}")
            good &= ms(busy, 1.0) < 46.4  # a frame's time: longer would be heard
            runner.close()
            del runner, steps
            gc.collect()
            torch.cuda.empty_cache()
    out["beside"] = rows
    return good


def shared(weights: CudaWeights, out: dict[str, Any]) -> bool:
    good = True
    rows: list[dict[str, Any]] = []
    slots = tuple(range(ROWS))
    pages = max(joins(n + 200, n // PAGE_TOKENS, slots, 0)[1] for n in SHARED)
    drawn: dict[int, dict[str, Any]] = {n: {} for n in SHARED}
    for name, on in (("each row", False), ("once", True)):
        runner = make_runner(weights, pages, sharing=on)
        steps = Steps(runner)
        for length in SHARED:
            made, _ = joins(length + 200, length // PAGE_TOKENS, slots, 0)
            for at in range(0, length, 256):
                part = columns(min(256, length - at), at)
                runner.prefill(PrefillChunk(part, at, made[0].table))
            tail = columns(length + 200 - length // PAGE_TOKENS * PAGE_TOKENS, 3)
            for join in made:
                start = length // PAGE_TOKENS * PAGE_TOKENS
                runner.prefill(PrefillChunk(tail[: join.position - start], start, join.table))
            first = steps.run(slots, 8, made)[1]
            times, more = steps.run(slots, STEPS)
            drawn[length][name] = (np.concatenate([first, more]), times)
        runner.close()
        del runner, steps
        gc.collect()
        torch.cuda.empty_cache()
    for length in SHARED:
        (plain, each), (cascade, once) = drawn[length]["each row"], drawn[length]["once"]
        equal = bool(np.array_equal(plain, cascade))
        good &= equal
        row = {
            "prefix": length,
            "context": length + 200,
            "each_row_ms": ms(each),
            "once_ms": ms(once),
            "same_draws": equal,
        }
        rows.append(row)
        say(f"  {row}")
    out["shared"] = rows
    return good


def neighbours(weights: CudaWeights, out: dict[str, Any]) -> bool:
    """A stream on a shared voice: alone, among strangers, and with others on its voice."""
    slots = tuple(range(ROWS))
    length = 1024
    made, end = joins(length + 40, length // PAGE_TOKENS, slots, 0)
    strangers, pages = joins(length + 40, 0, slots, end)
    runner = make_runner(weights, pages, buckets=(1, 32, ROWS))
    steps = Steps(runner)
    for at in range(0, length, 256):
        runner.prefill(PrefillChunk(columns(256, at), at, made[0].table))
    for join in made:
        runner.prefill(PrefillChunk(columns(40, 7), length, join.table))
    companies = {
        "alone": (made[:1], slots[:1]),
        "strangers": ((*made[:1], *strangers[1:]), slots),
        "one voice": (made, slots),
        "some of one voice": (made[:20], slots[:20]),
        "mixed": ((*made[:40], *strangers[40:]), slots),
    }
    drawn = {name: steps.run(at, 24, joined)[1][:, 0] for name, (joined, at) in companies.items()}
    result = {name: bool(np.array_equal(got, drawn["alone"])) for name, got in drawn.items()}
    say(f"  same draws as alone: {result}")
    out["neighbours"] = result
    runner.close()
    return all(result.values())


def main() -> int:
    return run_parts(
        {"prefill": prefill, "neighbours": neighbours, "shared": shared, "beside": beside}, __doc__
    )


if __name__ == "__main__":
    raise SystemExit(main())

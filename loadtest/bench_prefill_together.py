"""Times prefill of several sentences at once on the GPU, its products, and decode beside it.

    python -P -m shoal.loadtest.bench_prefill_together [--json FILE] [--parts PART,...]

S2 Pro's shape. *products*: each bf16 product of a layer by number of rows, cuBLAS against the one
whose rows have the same bits in every bucket, with the tile in use (*) and with others.
*together*: 1 to 16 sentences behind a voice of 512 columns, in as few passes as hold them and one
after another, with both products; and whether both leave the same bits. *beside*: steps of 64 rows
while bursts of sentences are prefilled, 1 to 16 at once. Prints tables; exits
non-zero when bits differ that must not, a product is wrong, or a step stalls.
"""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from shoal.engine.cuda.buckets import PREFILL_SIZES, buckets_up_to
from shoal.engine.cuda.kv_pool import KvPool
from shoal.engine.cuda.prefill import Prefill, PrefillPass
from shoal.engine.cuda.weights import CudaWeights
from shoal.engine.cuda_runner import PAGE_TOKENS, CudaRunner
from shoal.engine.random_model import S2_PRO, random_cuda_weights
from shoal.engine.runner import PrefillChunk
from shoal.kernels.bf16_gemm import bf16_gemm, chunks_of_wide, wide_tile_for
from shoal.kernels.gemm import Tile, add_partials

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

SHAPES = {"qkv": (6144, 2560), "out": (2560, 4096), "gate_up": (19456, 2560), "down": (2560, 9728)}
BUCKETS = buckets_up_to(512, PREFILL_SIZES)
PASSES = (256, 512)
"""Columns of a pass at most."""
VOICE = 512
COUNTS = (1, 2, 4, 8, 16)
LENGTHS = (24, 64, 96)
"""Columns of a sentence: some 70 characters are 24 tokens of S2 Pro's, and 96 single bytes."""
TILE_ROWS = (16, 64, 128, 256, 512)
"""Numbers of rows at which other tiles are timed too; each is compiled first."""
FRAME_MS = 46.4


# Products -----------------------------------------------------------------------------------------


def candidates(n: int, k: int, rows: int) -> Iterator[Tile]:
    """Tiles of equal bits worth timing, the one in use first."""
    used, chunks = wide_tile_for(n, k, rows), chunks_of_wide(n, k)
    yield used
    if rows not in TILE_ROWS:
        return
    match rows:
        case 16:
            shapes = [Tile(16, 64, stages=8), Tile(16, 128, stages=4), Tile(64, 64, stages=5)]
        case 64:
            shapes = [Tile(64, 64, stages=6), Tile(64, 128, stages=4), Tile(64, 128, stages=5)]
        case 128:
            shapes = [Tile(64, 128, stages=4), Tile(128, 64), Tile(128, 64, stages=6)]
            shapes += [Tile(128, 128, warps=8, stages=s) for s in (4, 5)]
        case _:
            shapes = [Tile(64, 128, stages=4), Tile(64, 256, warps=8, stages=4)]
            shapes += [Tile(128, 128, warps=8, stages=s) for s in (4, 5)]
            shapes += [Tile(128, 256, warps=8, stages=4), Tile(256, 128, warps=8, stages=4)]
    for tile in shapes:
        for splits, parts in sorted({(chunks, 1), (1, chunks)}):
            long = tile.rows >= 64
            yield replace(tile, splits=splits, chunks=parts, tokens_long=long)


def brief(tile: Tile) -> str:
    side = "L" if tile.tokens_long else ""
    return (
        f"{tile.rows}x{tile.columns}{side} w{tile.warps} s{tile.stages} {tile.splits}x{tile.chunks}"
    )


def replayed_us(launches: list[Callable[[], None]]) -> float:
    """Microseconds a launch, of a graph of them all; the weights are more than the L2 holds."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for launch in launches:
            launch()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for launch in launches:
            launch()

    def run() -> None:
        graph.replay()
        torch.cuda.synchronize()

    return round(1e3 * ms(timed(run, 10)) / len(launches), 2)


def products(_: CudaWeights, out: dict[str, Any]) -> bool:
    good = True
    rows_out: list[dict[str, Any]] = []
    for name, (n, k) in SHAPES.items():
        copies = 4 if n * k > 20_000_000 else 8
        weights = [(torch.randn(n, k, device=GPU) / k**0.5).bfloat16() for _ in range(copies)]
        x = torch.randn(BUCKETS[-1], k, device=GPU).bfloat16()
        exact = x.double() @ weights[0].double().t()
        blas_bits: dict[int, torch.Tensor] = {}
        own_bits: torch.Tensor | None = None
        for rows in BUCKETS:
            part = x[:rows]
            mine = torch.empty(rows, n, device=GPU, dtype=torch.bfloat16)

            def blas(w: torch.Tensor, x: torch.Tensor = part, o: torch.Tensor = mine) -> None:
                torch.mm(x, w.t(), out=o)

            row: dict[str, Any] = {"product": name, "rows": rows}
            row["cublas_us"] = replayed_us([partial(blas, w) for w in weights])
            blas(weights[0])
            blas_bits[rows] = mine.clone()
            times: dict[str, float] = {}
            used = brief(wide_tile_for(n, k, rows))
            for tile in candidates(n, k, rows):
                kind = torch.bfloat16 if name == "gate_up" else torch.float32
                partials = torch.empty(tile.splits, rows, n, device=GPU, dtype=kind)

                def own(w: torch.Tensor, o: torch.Tensor = partials, t: Tile = tile) -> None:
                    bf16_gemm(part, w, o, t)  # noqa: B023 - run within this round

                try:
                    times[brief(tile)] = replayed_us([partial(own, w) for w in weights])
                except Exception as error:  # a candidate that the device has no room for
                    say(f"  {name} {rows} {brief(tile)}: {type(error).__name__}")
                    good &= brief(tile) != used
                    continue
                bf16_gemm(part, weights[0], partials, tile)
                total = add_partials(partials)
                own_bits = total if own_bits is None else own_bits
                shared = min(rows, len(own_bits))
                same = torch.equal(total[:shared], own_bits[:shared])
                error = float((total - exact[:rows]).norm() / exact[:rows].norm())
                # The matrix unit cuts its sums off where it could round them.
                if not same or error > (3e-3 if name == "gate_up" else 3e-5):
                    say(f"  WRONG {name} {rows} {brief(tile)}: same bits {same}, error {error}")
                    good = False
            best = min(times, key=times.__getitem__)
            row |= {"own_us": times[used], "best_us": times[best], "best": best, "used": used}
            row["cublas_same_bits_as_16"] = torch.equal(mine[:16], blas_bits[BUCKETS[0]])
            rows_out.append(row)
            say(f"  {row}")
        del weights
        torch.cuda.empty_cache()
    for rows in BUCKETS:
        mine_us, blas_us, best_us = (
            sum(row[key] for row in rows_out if row["rows"] == rows)
            for key in ("own_us", "cublas_us", "best_us")
        )
        say(
            f"  a layer of {rows} rows: {mine_us:.1f} us, {best_us:.1f} at best, BLAS {blas_us:.1f}"
        )
    out["products"] = rows_out
    return good


# Prefill ------------------------------------------------------------------------------------------


def sentences(count: int, length: int) -> tuple[list[PrefillChunk], int]:
    """``count`` behind one voice in the first pages, and the pages of all."""
    first = VOICE // PAGE_TOKENS
    each = -(-length // PAGE_TOKENS)
    return [
        PrefillChunk(
            columns(length, 7 + at),
            VOICE,
            (*range(first), *range(first + at * each, first + (at + 1) * each)),
        )
        for at in range(count)
    ], first + count * each


def together(narrow: CudaWeights, out: dict[str, Any]) -> bool:
    good = True
    rows: list[dict[str, Any]] = []
    slow = S2_PRO.slow
    pages = max(sentences(max(COUNTS), length)[1] for length in LENGTHS)
    wide = random_cuda_weights(S2_PRO, GPU, "bf16")
    for name, weights, fixed, most in (
        *(("own", wide, True, most) for most in PASSES),
        ("cublas", wide, False, PASSES[0]),
        ("fp8", narrow, True, PASSES[0]),
    ):
        stack = weights.prefill
        sizes = buckets_up_to(most, PREFILL_SIZES)
        pool = KvPool.empty(slow.layers, pages, slow.kv_heads, PAGE_TOKENS, slow.head_dim, GPU)
        begun, held = time.perf_counter(), torch.cuda.memory_allocated()
        made = Prefill(PrefillPass(weights, stack, pool, sizes, pages, GPU, fixed=fixed), pool, GPU)
        made.capture()
        say(
            f"{name}: {len(sizes)} graphs in {time.perf_counter() - begun:.1f} s, buffers of "
            f"{(torch.cuda.memory_allocated() - held) / 2**30:.2f} GiB"
        )
        table = tuple(range(VOICE // PAGE_TOKENS))
        made.run([PrefillChunk(columns(VOICE, 1), 0, table)])
        for length in LENGTHS:
            for count in COUNTS:
                chunks, _ = sentences(count, length)

                def one_by_one(chunks: list[PrefillChunk] = chunks, made: Prefill = made) -> None:
                    for chunk in chunks:
                        made.run([chunk])

                # What lies behind a sentence in its last page is nobody's, and left alone.
                one_by_one()
                kept = tuple(part.clone() for part in pool.parts)
                torch.cuda.synchronize()  # prefill waits for no other stream
                made.run(chunks)
                equal = all(map(torch.equal, kept, pool.parts))
                good &= equal or not fixed
                del kept
                at_once, apart = ms(timed(partial(made.run, chunks))), ms(timed(one_by_one))
                row = {
                    "products": name,
                    "pass": most,
                    "columns": length,
                    "sentences": count,
                    "together_ms": at_once,
                    "one_by_one_ms": apart,
                    "columns_per_s": round(1e3 * count * length / at_once),
                    "each_ms": round(at_once / count, 3),
                    "same_bits": equal,
                }
                rows.append(row)
                say(f"  {row}")
        del made, pool
        gc.collect()
        torch.cuda.empty_cache()
    out["together"] = rows
    return good


def beside(weights: CudaWeights, out: dict[str, Any]) -> bool:
    good = True
    rows: list[dict[str, Any]] = []
    slots = tuple(range(ROWS))
    burst, own = sentences(max(COUNTS), 64)
    made, pages = joins(VOICE, 0, slots, own)
    for most in PASSES:
        runner = make_runner(weights, pages, sharing=False, prefill_rows=most)
        runner.prefill(PrefillChunk(columns(VOICE, 1), 0, tuple(range(VOICE // PAGE_TOKENS))))
        steps = Steps(runner)
        steps.run(slots, 8, made)
        alone, _ = steps.run(slots, 2 * STEPS)
        for count in (1, 2, 4, 8):
            done, spent = threading.Event(), list[float]()

            def prefills(
                runner: CudaRunner = runner,
                count: int = count,
                done: threading.Event = done,
                spent: list[float] = spent,
            ) -> None:
                at = 0
                while not done.is_set():
                    begun = time.perf_counter()
                    runner.prefill(*burst[at : at + count])
                    at = (at + count) % len(burst)
                    spent.append(time.perf_counter() - begun)

            # Joined anew each time, so that contexts are of one length.
            steps.run(slots, 8, made)
            thread = threading.Thread(target=prefills)
            thread.start()
            try:
                time.sleep(0.05)
                busy, _ = steps.run(slots, 2 * STEPS)
            finally:
                done.set()
                thread.join()
            row = {
                "pass": most,
                "at_once": count,
                "step_ms": ms(alone),
                "step_p99_ms": ms(alone, 0.99),
                "beside_ms": ms(busy),
                "beside_p99_ms": ms(busy, 0.99),
                "p99_ratio": round(ms(busy, 0.99) / ms(alone, 0.99), 2),
                "call_ms": ms(spent),
                "sentences_per_s": round(count / (sum(spent) / len(spent))),
            }
            rows.append(row)
            say(f"  {row}")
            good &= ms(busy, 1.0) < FRAME_MS
        runner.close()
        del runner, steps
        gc.collect()
        torch.cuda.empty_cache()
    out["beside"] = rows
    return good


def main() -> int:
    return run_parts({"products": products, "together": together, "beside": beside}, __doc__)


if __name__ == "__main__":
    raise SystemExit(main())

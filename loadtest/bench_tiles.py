"""Which cut is the fastest for the products and the attention of a decode step, and whether each
gives the same bits: what ``kernels/tiles.py`` and ``pages.SCHEDULE`` are filled from.

    python -P -m shoal.loadtest.bench_tiles [--out DIR] [--only products,attention,rows]

At S2 Pro's sizes. Times are replays of CUDA graphs with programmatic dependent launch, weights and
pages rotated through more than the L2 cache. Candidates are compiled by many processes first.
Prints the best of each, beside what the tables have (*), writes ``tiles.json``, and exits with 1 on
a wrong value or on bits that depend on the cut.
"""

# pyright: basic, reportArgumentType=false
# Torch's stubs are too loose for more.

# ruff: noqa: B023 - the thunks of a loop's round are timed within that round.

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

import torch
from torch.nn import functional as F

from shoal.kernels.fast_attention import fast_attention
from shoal.kernels.gemm import Tile, add_partials, gemm_partials, gemm_reference, gemm_rows
from shoal.kernels.norm import NormedRows
from shoal.kernels.quantise import Fp8Weight, dequantise_weight
from shoal.kernels.swiglu import swiglu
from shoal.kernels.tiles import chunks_of, rows_tile, tile_for

from .bench_layer import (
    BF16,
    DIM,
    EPS,
    INNER,
    SHAPES,
    Bench,
    Step,
    blas_fp8,
    normed,
    random,
    weight,
)
from .bench_schedules import attention, compile_schedule, relative, schedules

PRODUCT_ROWS = (1, 16, 64, 128, 256, 512)


def shapes_of(rows: int) -> Iterator[Tile]:
    """Tiles worth timing at ``rows`` rows, before their split along K."""
    if rows <= 16:
        yield from (Tile(16, n, stages=s, ahead=2) for n in (64, 128) for s in (4, 6))
        return
    for ahead in (0, 2):
        yield from (Tile(64, 64, stages=s, ahead=ahead) for s in (3, 4, 5))
        yield from (Tile(64, 128, stages=s, ahead=ahead, tokens_long=True) for s in (3, 4))
        yield Tile(64, 64, stages=4, ahead=ahead, tokens_long=True)
        if rows > 64:
            yield from (Tile(128, 64, stages=s, ahead=ahead, tokens_long=True) for s in (3, 4))
    if rows <= 64:
        yield Tile(64, 128, warps=8, stages=4)
        yield Tile(64, 128, stages=4)
        return
    yield from (Tile(128, 128, warps=8, stages=s, tokens_long=True) for s in (3, 4, 5, 6))
    yield Tile(128, 128, warps=8, stages=4, ahead=2, tokens_long=True)
    yield Tile(64, 256, warps=8, stages=4)
    if rows > 128:
        yield Tile(256, 128, warps=16, stages=3, tokens_long=True)
        yield from (Tile(256, 64, warps=8, stages=s, tokens_long=True) for s in (3, 4))


def splits_of(chunks: int) -> list[tuple[int, int]]:
    """(splits, chunks of a program) that give one weight's bits."""
    return [(chunks, 1)] if chunks == 1 else [(chunks, 1), (chunks // 4, 4)]


def product_candidates(name: str, rows: int) -> list[Tile]:
    n, k = SHAPES[name]
    if name == "gate_up":
        return [*dict.fromkeys([in_use(name, rows), *shapes_of(rows)])]
    cut = [
        replace(tile, splits=splits, chunks=chunks)
        for tile in shapes_of(rows)
        for splits, chunks in splits_of(chunks_of(n, k))
        # Partials of many rows cost the kernel behind them more than they gain.
        if splits * rows <= 1024 and tile.rows <= max(16, 2 * rows)
    ]
    return [*dict.fromkeys([in_use(name, rows), *cut])]


def multiply(
    x: NormedRows, w: Fp8Weight, out: torch.Tensor, tile: Tile, rows_out: bool
) -> torch.Tensor:
    if rows_out:
        gemm_rows(x, w, out, tile, eps=EPS, pdl=True)
    else:
        gemm_partials(x, w, out, tile, pdl=True)
    return out


def room(name: str, rows: int, tile: Tile) -> torch.Tensor:
    n = SHAPES[name][0]
    if name == "gate_up":
        return torch.full((rows, n), float("nan"), device="cuda", dtype=BF16)
    return torch.full((tile.splits, rows, n), float("nan"), device="cuda")


def brief(tile: Tile) -> str:
    return (
        f"{tile.rows}x{tile.columns}{'L' if tile.tokens_long else ''} w{tile.warps} "
        f"s{tile.stages} {tile.splits}x{tile.chunks} ahead {tile.ahead}"
    )


def products(bench: Bench, refused: set[str]) -> bool:
    good = True
    most = max(PRODUCT_ROWS)
    best: dict[tuple[str, int], Tile] = {}
    kept = {
        name: [weight(name) for _ in range(bench.copies(n * k))] for name, (n, k) in SHAPES.items()
    }
    for name, (_n, k) in SHAPES.items():
        weights, rows_out = kept[name], name == "gate_up"
        whole = normed(most, k)
        tile = in_use(name, most)
        bits = multiply(whole, weights[0], room(name, most, tile), tile, rows_out)
        bits = bits if rows_out else add_partials(bits)
        exact = gemm_reference(whole.rows, weights[0])
        if rows_out:
            exact *= torch.rsqrt(whole.squares.double().sum(0) / k + EPS)[:, None]
        error = relative(bits, exact)
        good &= error < (3e-3 if rows_out else 1e-3)
        print(f"      {name}: error {error:.2e}", flush=True)
        wide = [dequantise_weight(w).to(BF16) for w in weights[: max(3, len(weights) // 2)]]
        for m in PRODUCT_ROWS:
            x, plain = whole.narrow(0, m), random(m, k)
            timed: list[tuple[float, Tile]] = []
            for tile in product_candidates(name, m):
                if key(name, tile) in refused:
                    continue
                out = multiply(x, weights[0], room(name, m, tile), tile, rows_out)
                got = out if rows_out else add_partials(out)
                if not torch.equal(got, bits[:m]):
                    print(f"BITS differ: {name} {m} {brief(tile)}", flush=True)
                    good = False
                run = [lambda w=w: multiply(x, w, out, tile, rows_out) for w in weights]
                timed.append((bench.us(run), tile))
            ours = timed[0]
            timed.sort(key=lambda pair: pair[0])
            best[name, m] = timed[0][1]
            bench.row(
                "products",
                f"{name} {m}",
                now=ours[0],
                best=timed[0][0],
                blas_fp8=bench.us([blas_fp8(x.rows, w) for w in weights]),
                blas_bf16=bench.us([lambda w=w: F.linear(plain, w) for w in wide]),
            )
            for us, tile in [*timed[:6], ours]:
                print(f"      {us:7.2f} us {'*' if tile == ours[1] else ' '} {brief(tile)}")
            bench.figures.setdefault("tiles", []).extend(
                {"name": name, "rows": m, "us": us, "tile": brief(tile)} for us, tile in timed
            )
    names = ("qkv", "o", "gate_up", "down")
    for m in PRODUCT_ROWS:
        inputs = {name: normed(m, SHAPES[name][1]) for name in names}
        figures: dict[str, float] = {}
        for tag in ("now", "best"):
            tiles = {n: best[n, m] if tag == "best" else in_use(n, m) for n in names}
            outs = {name: room(name, m, tiles[name]) for name in names}

            def layer(i: int) -> None:
                for name in names:
                    w = kept[name][i % len(kept[name])]
                    multiply(inputs[name], w, outs[name], tiles[name], name == "gate_up")

            figures[tag] = bench.us([lambda i=i: layer(i) for i in range(8)])
        bench.row("chain", str(m), **figures)
    return good


def in_use(name: str, rows: int) -> Tile:
    """The table's."""
    return rows_tile(rows) if name == "gate_up" else tile_for(*SHAPES[name], rows)


def key(name: str, tile: Tile) -> str:
    """What is compiled: one kernel for all weights."""
    return f"{'rows' if name == 'gate_up' else 'partials'} {tile}"


def fast(step: Step, warps: int, position: int = 5) -> None:
    cache = (step.fast_keys[0], step.fast_values[0])
    fast_attention(
        step.qkv, step.normed, step.fast, *cache, position, step.attended, warps=warps, pdl=True
    )


def rows(bench: Bench, refused: set[str]) -> bool:
    good = True
    for m in (1, 16, 64, 128, 256):
        step = Step(bench, m, 64, 1)
        figures: dict[str, float] = {}
        kept: list[torch.Tensor] = []
        both = [random(m, 2 * INNER) for _ in range(4)]
        for each in (4, 8, 16, 32):
            swiglu(both[0], step.gated, each=each)
            kept.append(step.gated.values.float().clone())
            kept.append(step.gated.scales.clone())
            good &= torch.equal(kept[-2], kept[0]) and torch.equal(kept[-1], kept[1])
            figures[f"each_{each}"] = bench.us(
                [lambda b=b: swiglu(b, step.gated, each=each, pdl=True) for b in both]
            )
        bench.row("rows", f"swiglu {m}", **figures)
        figures = {}
        outs: list[torch.Tensor] = []
        for warps in (4, 2, 1):
            fast(step, warps)
            scales = step.attended.scales.t().repeat_interleave(DIM, 1)
            outs.append(step.attended.values.float() * scales)
            good &= relative(outs[-1], outs[0]) < 0.02
            figures[f"warps_{warps}"] = bench.us([lambda: fast(step, warps)] * 4)
        bench.row("rows", f"fast_attention {m}", **figures)
    if not good:
        print("WRONG: rows", flush=True)
    return good


PARTS: dict[str, Callable[[Bench, set[str]], bool]] = {
    "products": products,
    "attention": attention,
    "rows": rows,
}


def compile_product(work: tuple[str, Tile]) -> str | None:
    """In a process of its own: fills the cache on disk. Names what does not run."""
    name, tile = work
    k = SHAPES[name][1]
    try:
        out = room(name, 32, tile)
        multiply(normed(32, k), weight(name), out, tile, name == "gate_up")
        torch.cuda.synchronize()
    except Exception as error:  # a tile may well not fit
        print(f"does not run: {name} {brief(tile)}: {type(error).__name__}", flush=True)
        return key(name, tile)
    return None


def compile_all(parts: list[str]) -> set[str]:
    """What could not be compiled or launched."""
    tiles: dict[str, tuple[str, Tile]] = {}
    for name, m in ((name, m) for name in SHAPES for m in PRODUCT_ROWS):
        for tile in product_candidates(name, m):
            tiles.setdefault(key(name, tile), (name, tile))
    processes = max(1, min(14, (os.cpu_count() or 2) - 1))
    refused: list[str | None] = []
    with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        schedules_wait = pool.map(compile_schedule, schedules()) if "attention" in parts else ()
        tiles_wait = pool.map(compile_product, tiles.values()) if "products" in parts else ()
        refused += [*schedules_wait, *tiles_wait]
    return {name for name in refused if name}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path())
    parser.add_argument("--only", default=",".join(PARTS), help=", ".join(PARTS))
    args = parser.parse_args()
    parts = [name for name in args.only.split(",") if name]
    begun = time.monotonic()
    bench = Bench(timed=True, sweep=True, out=args.out)
    refused = compile_all(parts)
    print(f"[{time.monotonic() - begun:5.1f}] compiled; {len(refused)} do not run", flush=True)
    good = True
    for name in parts:
        good &= PARTS[name](bench, refused)
        (args.out / "tiles.json").write_text(json.dumps(bench.figures, indent=1))
    print("all values and bits are right" if good else "SOMETHING IS WRONG")
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()

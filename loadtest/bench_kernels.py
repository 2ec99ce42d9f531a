"""Times every kernel on a GPU beside its peers, at the sizes of S2 Pro, and checks their bits.

    python -P -m shoal.loadtest.bench_kernels [--out DIR] [--only env,checks,gemm,...]

Times are replays of a CUDA graph, the median of nine, per kernel or per layer, with weights and
pages rotated through more than three times the L2 cache, so that they come from memory. Peers run
in the same process: cuBLAS bf16, cuBLAS block-scaled FP8, SDPA on contiguous keys. Prints a line a
row and writes ``kernels.json``.
"""

# pyright: basic, reportArgumentType=false
# Torch's stubs are too loose for more.

# ruff: noqa: B023 - the thunks of a loop's round are timed within that round.

from __future__ import annotations

import argparse
import concurrent.futures
import json
import multiprocessing
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
import triton
import triton.language as tl
from torch.nn import functional as F

from shoal.kernels.extend import extend_attention
from shoal.kernels.gemm import add_partials, gemm_partials, gemm_reference, gemm_rows
from shoal.kernels.mxfp8 import Mx, dequantise_mx, gemm_mx, quantise_mx
from shoal.kernels.norm import add_norm, whole_norm
from shoal.kernels.pages import SCHEDULE, Schedule, cut_on_host, tiles_of
from shoal.kernels.quantise import Fp8Rows, Fp8Weight, dequantise_weight, quantise, quantise_weight
from shoal.kernels.sampler import FastInput, Sampling, SlowToken, sample
from shoal.kernels.swiglu import swiglu
from shoal.kernels.tiles import rows_tile, tile_for

from .bench_layer import (
    BF16,
    CODES,
    DIM,
    EPS,
    HKV,
    HQ,
    PAGE,
    ROWS,
    SHAPES,
    Bench,
    D,
    Step,
    blas_fp8,
    normed,
    partials,
    product,
    random,
    weight,
)


@triton.jit
def read_kernel(X, OUT, TILE: tl.constexpr, COUNT: tl.constexpr):
    total = tl.zeros([TILE], tl.int32)
    at = tl.program_id(0) * COUNT * TILE + tl.arange(0, TILE)
    for i in tl.range(0, COUNT, num_stages=4):  # pyright: ignore[reportGeneralTypeIssues]
        total += tl.load(X + at + i * TILE)
    tl.store(OUT + tl.program_id(0) * TILE + tl.arange(0, TILE), total)


def env(bench: Bench) -> None:
    source = torch.randint(0, 100, (1 << 29,), dtype=torch.int32, device="cuda")
    target = torch.empty_like(source)
    programs, tile = 132 * 8, 2048
    count = source.numel() // (programs * tile)
    read = bench.us([lambda: read_kernel[(programs,)](source, target, TILE=tile, COUNT=count)] * 2)
    copy = bench.us([lambda: target.copy_(source)] * 2)
    bench.row(
        "env",
        torch.cuda.get_device_name(),
        torch=torch.__version__,
        triton=triton.__version__,
        read_tb_s=programs * tile * count * 4e-6 / read,
        copy_tb_s=source.numel() * 8e-6 / copy,
    )


def gemm(bench: Bench) -> None:
    for name, (n, k) in SHAPES.items():
        weights = [weight(name) for _ in range(bench.copies(n * k))]
        wide = [dequantise_weight(w).to(BF16) for w in weights[: max(3, len(weights) // 2)]]
        for m in ROWS:
            x, plain = normed(m, k), random(m, k)
            out = (
                torch.empty(m, n, device="cuda", dtype=BF16)
                if name == "gate_up"
                else partials(n, k, m)
            )
            ours = {
                tag: bench.us([lambda w=w: product(x, w, out, pdl) for w in weights])
                for tag, pdl in (("us", False), ("us_pdl", True))
            }
            blocked = bench.us([blas_fp8(x.rows, w) for w in weights])
            bf16 = bench.us([lambda w=w: F.linear(plain, w) for w in wide])
            out.fill_(float("nan"))
            product(x.rows, weights[0], out)
            got = out if out.dtype == BF16 else add_partials(out)
            exact = gemm_reference(x.rows, weights[0])
            error = float((got.double() - exact).norm() / exact.norm())
            rate = n * k * 1e-6 / ours["us_pdl"]
            bench.row(
                "gemm",
                f"{name} {m}",
                **ours,
                blas_fp8=blocked,
                blas_bf16=bf16,
                tb_s=rate,
                error=error,
            )


def sampling(m: int) -> Sampling:
    def full(value: float, dtype: torch.dtype) -> torch.Tensor:
        return torch.full((m,), value, dtype=dtype, device="cuda")

    whole = [full(v, torch.int32) for v in (30, 3, 0, 5)]
    return Sampling(full(0.8, torch.float32), full(0.9, torch.float32), *whole)


def rows(bench: Bench) -> None:
    for m in ROWS:
        step = Step(bench, m, 64, 1)
        whole = random(m, D)
        table = random(CODES, D)
        logits = torch.randn(4, m, CODES, device="cuda")
        columns = torch.zeros(m, 11, dtype=torch.int32, device="cuda")
        window = torch.zeros(m, 10, dtype=torch.int32, device="cuda")
        slow = SlowToken(whole, table[0].contiguous(), window, 1000, 7)
        target = FastInput(table, step.residual, step.weight, step.normed)
        drawn = (step.slots, sampling(m), columns)
        normed_from = (step.residual, step.weight)
        kernels: dict[str, Callable[[bool], object]] = {
            "add_norm": lambda p: add_norm(*normed_from, step.normed, step.down, pdl=p),
            "whole_norm": lambda p: whole_norm(*normed_from, whole, EPS, step.down, pdl=p),
            "swiglu": lambda p: swiglu(step.both, step.gated, pdl=p),
            "quantise": lambda p: quantise(step.residual, step.normed.rows, pdl=p),
            "fast_attention": lambda p: step.attend("fast", 0, p),
            "sample_slow": lambda p: sample(logits, None, EPS, 0, *drawn, slow=slow, pdl=p),
            "sample_fast": lambda p: sample(
                logits, step.normed, EPS, 2, *drawn, fast_input=target, pdl=p
            ),
        }  # fmt: skip
        for name, run in kernels.items():
            plain, pdl = (bench.us([lambda p=p: run(p)]) for p in (False, True))
            bench.row("rows", f"{name} {m}", us=plain, us_pdl=pdl)


def attention(bench: Bench) -> None:
    schedules = [bench.schedule]
    if bench.sweep:
        sizes = [(b, s) for b in (32, 64) for s in (128, 256, 512)]
        schedules = [Schedule(*size, 3) for size in sizes]
        schedules += [Schedule(*size, 5) for size in sizes if size[1] > 128]
    for m, context in ((1, 512), (1, 2048), (16, 512), (64, 512), (64, 1024), (256, 512)):
        size = m * context * HKV * DIM * 4
        copies = min(6, bench.copies(size))
        step = Step(bench, m, context, copies)
        for chosen in schedules:
            step.schedule = chosen
            plain, pdl = (
                bench.us([lambda i=i, p=p: step.attend("slow", i, p) for i in range(copies)])
                for p in (False, True)
            )
            cut = f"{chosen.block_tokens}/{chosen.split_tokens}/{chosen.stages}"
            bench.row(
                "attention",
                f"decode {m}x{context}",
                us=plain,
                us_pdl=pdl,
                tb_s=size * 1e-6 / pdl,
                cut=cut,
            )
        q = random(m, HQ, 1, DIM)
        flat = [[random(m, HKV, context, DIM) for _ in "kv"] for _ in range(copies)]
        sdpa = bench.us(
            [
                lambda k=k, v=v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
                for k, v in flat
            ]
        )
        bench.row("attention", f"sdpa {m}x{context}", us=sdpa)
        if m % 16 == 0:
            cut = torch.full_like(step.positions, cut_on_host(context + 1, step.schedule))
            prefix = torch.stack([torch.full_like(cut, 384), cut], 1)
            step.tables[:, : 384 // PAGE] = step.tables[0, : 384 // PAGE]
            groups = step.slots.view(-1, 16)
            shared = bench.us(
                [
                    lambda i=i: step.attend("slow", i, True, prefix=prefix, groups=groups)
                    for i in range(copies)
                ]
            )
            bench.row("attention", f"shared384 {m}x{context}", us_pdl=shared)
    step = Step(bench, 1, 2048, 1)
    for length, start in ((64, 512), (512, 0), (512, 1500)):
        q, out = random(length, HQ, DIM), Fp8Rows.empty(length, HQ * DIM, "cuda")
        pages = (step.keys[0], step.values[0], step.tables)
        tiles = torch.tensor(tiles_of([(start, length)]), dtype=torch.int32, device="cuda")
        us = bench.us([lambda t=tiles: extend_attention(q, step.slow, *pages, t, out)])
        flops = 4 * length * (start + length / 2) * HQ * DIM
        bench.row("attention", f"extend {length}@{start}", us=us, tflops=flops * 1e-6 / us)


def chain(bench: Bench) -> None:
    layers = [{n: weight(n) for n in SHAPES if n != "head"} for _ in range(4 if bench.timed else 1)]
    wide = [[dequantise_weight(w).to(BF16) for w in layer.values()] for layer in layers[:2]]
    turns = [i % len(layers) for i in range(8 if bench.timed else 1)]
    for m in ROWS:
        step = Step(bench, m, 512, len(layers))
        inputs = [random(m, k) for _, k in list(SHAPES.values())[:4]]
        rows8 = [normed(m, k).rows for _, k in list(SHAPES.values())[:4]]
        bf16 = [
            lambda ws=ws: [F.linear(x, w) for x, w in zip(inputs, ws, strict=True)] for ws in wide
        ]
        block = [
            [blas_fp8(x, w) for x, w in zip(rows8, layer.values(), strict=True)] for layer in layers
        ]
        figures = {
            "blas_bf16": bench.us(bf16 * 4),
            "blas_fp8": bench.us([lambda fs=fs: [f() for f in fs] for fs in block] * 2),
        }
        for pdl in (False, True):
            tag = "_pdl" if pdl else ""
            figures[f"products{tag}"] = bench.us(
                [lambda i=i: step.products(layers[i], pdl) for i in turns]
            )
            for kind in ("fast", "slow"):
                run = [lambda i=i, kind=kind: step.layer(layers[i], kind, i, pdl) for i in turns]
                figures[f"{kind}{tag}"] = bench.us(run)
        bench.row("chain", str(m), **figures)


def schedules(bench: Bench) -> None:
    """A slow layer under other cuts of attention's contexts, beside the one in use."""
    layers = [{n: weight(n) for n in SHAPES if n != "head"} for _ in range(4 if bench.timed else 1)]
    turns = [i % len(layers) for i in range(8 if bench.timed else 1)]
    for m in (1, 64, 256):
        step = Step(bench, m, 512, len(layers))
        figures: dict[str, float] = {}
        for chosen in (SCHEDULE, Schedule(32, 256, 5), Schedule(32, 256, 3), SCHEDULE):
            step.schedule = chosen
            cut = f"{chosen.block_tokens}/{chosen.split_tokens}/{chosen.stages}"
            # The one in use is timed first and last: the difference is the noise.
            tag = f"{cut}_again" if cut in figures else cut
            run = [lambda i=i: step.layer(layers[i], "slow", i, True) for i in turns]
            figures[tag] = bench.us(run)
        bench.row("schedules", f"slow layer {m}", **figures)


def stages(bench: Bench) -> None:
    """Every product with its tile fetched further ahead or less far; bits do not change."""
    for name, (n, k) in SHAPES.items():
        weights = [weight(name) for _ in range(bench.copies(n * k))]
        rows_out = name == "gate_up"
        for m in (1, 64, 128, 256):
            x = normed(m, k)
            tile = rows_tile(m) if rows_out else tile_for(n, k, m)
            figures: dict[str, float] = {}
            for depth in (tile.stages, 3, 4, 5, 6):
                tried = replace(tile, stages=depth)
                if rows_out:
                    out = torch.empty(m, n, device="cuda", dtype=BF16)
                    run = [
                        lambda w=w: gemm_rows(x, w, out, tried, eps=EPS, pdl=True) for w in weights
                    ]
                else:
                    out = partials(n, k, m)
                    run = [lambda w=w: gemm_partials(x, w, out, tried, pdl=True) for w in weights]
                tag = "in_use" if not figures else f"stages_{depth}"
                figures[tag] = bench.us(run)
            bench.row("stages", f"{name} {m}", in_use_is=tile.stages, **figures)


def checks(bench: Bench) -> None:
    """Exact statements: equal bits of a row in any bucket and run, and bugs that must be seen."""
    for name, (n, k) in SHAPES.items():
        if not bench.timed:
            continue
        x, w = normed(256, k), weight(name)
        kind = BF16 if name == "gate_up" else torch.float32

        def run(m: int, pdl: bool = False) -> torch.Tensor:
            shape = (m, n) if kind == BF16 else (tile_for(n, k, m).splits, m, n)
            out = torch.full(shape, float("nan"), dtype=kind, device="cuda")
            product(x.narrow(0, m), w, out, pdl)
            return out if kind == BF16 else add_partials(out)

        full = run(256)
        same = all(
            torch.equal(run(m, p), full[:m]) for m in (1, 3, 16, 17, 64, 128) for p in (False, True)
        )
        again = all(torch.equal(run(64), full[:64]) for _ in range(20))
        lift = torch.exp2(torch.randint(-3, 4, (n // 128, 1, k // 128, 1), device="cuda").float())
        spread = (torch.randn(n // 128, 128, k // 128, 128, device="cuda") * lift).view(n, k)
        w = quantise_weight(spread)
        exact = gemm_reference(x.rows.narrow(0, 16), w)
        wrong = Fp8Weight(w.values, w.scales.t().contiguous().view(w.scales.shape))
        errors: list[float] = []
        for tried in (w, wrong):
            out = torch.empty(tile_for(n, k, 16).splits, 16, n, device="cuda")
            gemm_partials(x.rows.narrow(0, 16), tried, out, tile_for(n, k, 16))
            errors.append(float((add_partials(out) - exact).norm() / exact.norm()))
        bench.row(
            "checks",
            name,
            same_in_any_batch=same,
            same_20_times=again,
            error=errors[0],
            planted=errors[1],
        )
    m, n, k = 64, 2560, 2560
    rows_mx, weight_mx = (Mx.empty(r, k, device="cuda") for r in (m, n))
    quantise_mx(random(m, k), rows_mx)
    quantise_mx(random(n, k), weight_mx)
    exact = dequantise_mx(rows_mx).double() @ dequantise_mx(weight_mx).double().t()
    for native in (False, True):
        out = torch.full((m, n), float("nan"), dtype=BF16, device="cuda")
        gemm_mx(rows_mx, weight_mx, out, native=native)
        error = float((out.double() - exact).norm() / exact.norm())
        bench.row("checks", f"mxfp8 {'native' if native else 'emulated'}", error=error)


PARTS = {f.__name__: f for f in (env, checks, gemm, rows, attention, chain, schedules, stages)}
USUAL = "env,checks,gemm,rows,attention,chain"


def warm(name: str, sweep: bool) -> None:
    """Compile what a part uses, in a process of its own."""
    PARTS[name](Bench(timed=False, sweep=sweep, out=Path()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path())
    parser.add_argument("--only", default=USUAL, help=", ".join(PARTS))
    parser.add_argument("--sweep", action="store_true", help="try every attention schedule")
    parser.add_argument("--schedule", default="", help="block tokens, split tokens, stages")
    args = parser.parse_args()
    chosen = Schedule(*map(int, args.schedule.split(","))) if args.schedule else SCHEDULE
    bench = Bench(timed=True, sweep=args.sweep, out=args.out, schedule=chosen)
    parts = [name for name in args.only.split(",") if name]
    with concurrent.futures.ProcessPoolExecutor(
        len(parts), mp_context=multiprocessing.get_context("spawn")
    ) as pool:
        list(pool.map(warm, parts, [args.sweep] * len(parts)))
    for name in parts:
        PARTS[name](bench)
        (args.out / "kernels.json").write_text(json.dumps(bench.figures, indent=1))


if __name__ == "__main__":
    main()

"""Decode attention over bf16 and over FP8 pages, side by side: times, values, bits.

    python -P -m shoal.loadtest.bench_kv [--out DIR] [--no-sweep]

At S2 Pro's sizes. *check*: every FP8 schedule against the plain torch emulation, a row alone, among
neighbours, by programs of one stretch and of four, with a shared prefix and without; and scales
misread, which must show. *time*: microseconds of one layer's attention, the store of the new token
included, as replays of CUDA graphs with programmatic dependent launch over pages rotated through
more than the L2 cache; then of a prefix that 16 rows each share, and of prefill. bf16 is timed
first and last: the difference is the noise. Writes ``kv.json``; exits with 1 on a wrong value, on
bits that depend on neighbours, or on a planted bug that does not show.
"""

# pyright: basic, reportArgumentType=false
# Torch's stubs are too loose for more.

# ruff: noqa: B023 - the thunks of a loop's round are timed within that round.

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import torch

from shoal.kernels.attention import TOGETHER_ROWS, decode_attention
from shoal.kernels.extend import extend_attention
from shoal.kernels.kv import Fp8Pages, Pages, gather_pages
from shoal.kernels.norm import NormedRows
from shoal.kernels.pages import (
    FP8_SCHEDULE,
    SCHEDULE,
    Schedule,
    cut_on_host,
    fp8_attention_reference,
    tiles_of,
)
from shoal.kernels.quantise import Fp8Rows

from .bench_layer import BF16, DIM, HKV, HQ, PAGE, Bench, Step, random
from .bench_schedules import JOIN_TOKENS, cut, grouped, relative

ROWS = (1, 16, 64, 128, 256)
CONTEXTS = (512, 2048)
TOLERANCE = 5e-3
"""Of bf16 outputs against the emulation."""
TOKEN_BYTES = {"bf16": 2 * HKV * DIM * 2, "fp8": 2 * HKV * (DIM + 4)}


def schedules(sweep: bool) -> list[Schedule]:
    """The one in use first. All cut contexts as bf16's does: the host shares prefixes by that."""
    found = [FP8_SCHEDULE]
    if sweep:
        found += [Schedule(64, 256, s, 4, 8) for s in (2, 3, 4)]
        found += [Schedule(64, 256, s, 4, 16) for s in (2, 3)]
        found += [Schedule(64, 256, 3, 8, 8), Schedule(64, 256, 2, 2, 8)]
        found += [Schedule(32, 256, s, 2, 8) for s in (3, 4, 5)]
        found += [Schedule(32, 256, s, 4, 8) for s in (3, 4)]
        found += [Schedule(32, 256, 4, 1, 8), Schedule(32, 256, 3, 4, 16)]
    return [*dict.fromkeys(found)]


def attend(
    step: Step,
    i: int,
    chosen: Schedule,
    together: bool,
    out: torch.Tensor | Fp8Rows | None = None,
    pages: tuple[Pages, Pages] | None = None,
    **sharing: torch.Tensor,
) -> None:
    decode_attention(
        step.qkv,
        step.normed,
        step.slow,
        *(pages or (step.keys[i], step.values[i])),
        step.tables,
        step.slots,
        step.positions,
        step.work,
        step.attended if out is None else out,
        schedule=chosen,
        together=together,
        pdl=True,
        **sharing,
    )


def context(pages: Fp8Pages, table: torch.Tensor, tokens: int) -> Fp8Pages:
    """[tokens, kv heads, ...] of one context."""
    values = gather_pages(pages.values.view(torch.uint8), table, tokens).contiguous()
    return Fp8Pages(values.view(pages.values.dtype), gather_pages(pages.scales, table, tokens))


def check(refused: set[str], sweep: bool) -> bool:
    """Values and bits of every schedule; False when something is wrong."""
    good = True
    torch.manual_seed(1)
    m = 48
    step = Step(Bench(False, False, Path()), m, 2400, 1, fp8_pages=True)
    ends = torch.randint(JOIN_TOKENS, 2400, (m,), device="cuda")
    ends[:8] = torch.tensor([384, 447, 448, 512, 1023, 1024, 2047, 2048], device="cuda")
    step.positions.copy_(ends)
    step.tables[:, : JOIN_TOKENS // PAGE] = step.tables[0, : JOIN_TOKENS // PAGE]
    step.work.outputs.fill_(float("nan"))
    step.work.sums.fill_(float("nan"))
    out = torch.full((m, HQ * DIM), float("nan"), dtype=BF16, device="cuda")

    def got(chosen: Schedule, together: bool, **sharing: torch.Tensor) -> torch.Tensor:
        attend(step, 0, chosen, together, out, **sharing)
        taken = out.clone()
        out.fill_(float("nan"))
        return taken

    expected: torch.Tensor | None = None
    for chosen in schedules(sweep):
        if cut(chosen) in refused:
            continue
        apart = got(chosen, False)
        if expected is None:
            expected = emulated(step)
        error = relative(apart[::3], expected)
        cuts = [cut_on_host(int(p) + 1, chosen) for p in step.positions]
        prefix = torch.tensor([(JOIN_TOKENS, c) for c in cuts], dtype=torch.int32, device="cuda")
        sharing = grouped(prefix, step.slots.view(-1, 16))
        same_together = torch.equal(got(chosen, True), apart)
        same_shared = [torch.equal(got(chosen, t, **sharing), apart) for t in (False, True)]
        same_again = all(torch.equal(got(chosen, False), apart) for _ in range(20))
        same_alone = torch.equal(alone(step, chosen, 17), apart[17])
        fine = error < TOLERANCE and same_together and same_again and same_alone
        fine &= not step.work.arrived.any()
        # A schedule whose products differ in kind from the prefix's is told, and is no choice.
        fine &= chosen != FP8_SCHEDULE or all(same_shared)
        good &= bool(fine)
        print(
            f"check {cut(chosen):22s} error {error:.5f} together {same_together} alone {same_alone}"
            f" again {same_again} shared {same_shared}{'' if fine else ' WRONG'}",
            flush=True,
        )
    assert expected is not None
    return good & check_planted(step, expected)


def emulated(step: Step) -> torch.Tensor:
    """bf16 rows 0, 3, ... by plain torch, over the queries and pages that a run has left."""
    rows: list[torch.Tensor] = []
    for row in range(0, step.m, 3):
        end = int(step.positions[row]) + 1
        keys, values = (context(t[0], step.tables[row], end) for t in (step.keys, step.values))
        queries = step.work.queries[row][None]
        rows.append(fp8_attention_reference(queries, keys, values, end - 1).flatten())
    return torch.stack(rows).to(BF16)


def alone(step: Step, chosen: Schedule, row: int) -> torch.Tensor:
    """One row of the step, in a step of its own."""
    one = slice(row, row + 1)
    single = Step.__new__(Step)
    single.__dict__.update(step.__dict__)
    # Copies: a pointer that is not aligned would be compiled for anew.
    single.slots, single.positions = step.slots[one].clone(), step.positions[one].clone()
    single.qkv = step.qkv[:, one].contiguous()
    single.normed = NormedRows(
        Fp8Rows(step.normed.rows.values[one], step.normed.rows.scales[:, one]),
        step.normed.squares[:, one].contiguous(),
    )
    out = torch.full((1, HQ * DIM), float("nan"), dtype=BF16, device="cuda")
    attend(single, 0, chosen, False, out)
    return out[0]


def check_planted(step: Step, expected: torch.Tensor) -> bool:
    """Scales of the other kind, of another token and of another head must show."""
    keys, values = step.keys[0], step.values[0]
    assert isinstance(keys, Fp8Pages)
    assert isinstance(values, Fp8Pages)
    good = True
    out = torch.empty(step.m, HQ * DIM, dtype=BF16, device="cuda")
    for name, scales in {
        "swapped": (values.scales.clone(), keys.scales.clone()),
        "another token's key": (keys.scales.roll(1, 2), values.scales.clone()),
        "another token's value": (keys.scales.clone(), values.scales.roll(1, 2)),
        "another head's": (keys.scales.roll(1, 1), values.scales.roll(1, 1)),
    }.items():
        pages = (Fp8Pages(keys.values, scales[0]), Fp8Pages(values.values, scales[1]))
        attend(step, 0, FP8_SCHEDULE, False, out, pages)
        error = relative(out[::3], expected)
        good &= error > 0.3
        print(f"planted {name:22s} error {error:.3f}{'' if error > 0.3 else ' NOT SEEN'}")
    return good


def time_kind(
    bench: Bench, refused: set[str], kind: str, m: int, length: int
) -> tuple[float, list[tuple[float, str]]]:
    """Microseconds as decode would launch it, and of all that was tried."""
    copies = min(6, bench.copies(m * length * TOKEN_BYTES[kind]))
    step = Step(bench, m, length, copies, fp8_pages=kind == "fp8")
    used = FP8_SCHEDULE if kind == "fp8" else SCHEDULE
    chosen_us = float("nan")
    tried: list[tuple[float, str]] = []
    for chosen in schedules(bench.sweep) if kind == "fp8" else [SCHEDULE]:
        if cut(chosen) in refused and kind == "fp8":
            continue
        for together in (False, True):
            us = bench.us([lambda i=i: attend(step, i, chosen, together) for i in range(copies)])
            tried.append((us, cut(chosen) + (" together" if together else "")))
            if chosen == used and together == (m >= TOGETHER_ROWS):
                chosen_us = us
    return chosen_us, sorted(tried)


def time_decode(bench: Bench, refused: set[str]) -> None:
    for m in ROWS:
        for length in CONTEXTS:
            bf16, _ = time_kind(bench, refused, "bf16", m, length)
            fp8, tried = time_kind(bench, refused, "fp8", m, length)
            again, _ = time_kind(bench, refused, "bf16", m, length)
            bench.row(
                "decode",
                f"{m}x{length}",
                bf16=bf16,
                bf16_again=again,
                fp8=fp8,
                ratio=fp8 / bf16,
                fp8_tb_s=m * length * TOKEN_BYTES["fp8"] * 1e-6 / fp8,
                best=tried[0][0],
                best_is=tried[0][1],
            )
            for us, name in tried[:6] if bench.sweep else ():
                print(f"      {us:8.2f} us  {name}", flush=True)


def time_shared(bench: Bench) -> None:
    """With a prefix of JOIN_TOKENS that every 16 rows have in common."""
    for m in (16, 64, 256):
        figures: dict[str, float] = {}
        for kind in ("bf16", "fp8"):
            copies = min(6, bench.copies(m * 512 * TOKEN_BYTES[kind]))
            step = Step(bench, m, 512, copies, fp8_pages=kind == "fp8")
            cuts = torch.full_like(step.positions, cut_on_host(513))
            sharing = {
                "prefix": torch.stack([torch.full_like(cuts, JOIN_TOKENS), cuts], 1),
                "groups": step.slots.view(-1, 16),
            }
            step.tables[:, : JOIN_TOKENS // PAGE] = step.tables[0, : JOIN_TOKENS // PAGE]
            chosen = FP8_SCHEDULE if kind == "fp8" else SCHEDULE
            figures[kind] = bench.us(
                [
                    lambda i=i: attend(step, i, chosen, m >= TOGETHER_ROWS, **sharing)
                    for i in range(copies)
                ]
            )
        bench.row("shared", f"{m}x512", **figures)


def time_prefill(bench: Bench) -> None:
    for length, start in ((64, 512), (512, 0), (512, 1500)):
        figures: dict[str, float] = {}
        for kind in ("bf16", "fp8"):
            step = Step(bench, 1, 2048, 1, fp8_pages=kind == "fp8")
            q, out = random(length, HQ, DIM), Fp8Rows.empty(length, HQ * DIM, "cuda")
            pages = (step.keys[0], step.values[0], step.tables)
            tiles = torch.tensor(tiles_of([(start, length)]), dtype=torch.int32, device="cuda")
            figures[kind] = bench.us([lambda: extend_attention(q, step.slow, *pages, tiles, out)])
        bench.row("prefill", f"{length}@{start}", **figures)


def compile_schedule(chosen: Schedule) -> str | None:
    """In a process of its own: fills the cache on disk. Names what does not run."""
    step = Step(Bench(False, False, Path()), 16, 256, 1, fp8_pages=True)
    prefix = torch.tensor([(64, 1)] * 16, dtype=torch.int32, device="cuda")
    try:
        for together in (False, True):
            attend(step, 0, chosen, together)
            attend(step, 0, chosen, together, prefix=prefix, groups=step.slots.view(1, 16))
        torch.cuda.synchronize()
    except Exception as error:  # a schedule may well not fit
        print(f"does not run: {cut(chosen)}: {type(error).__name__}: {str(error)[:90]}", flush=True)
        return cut(chosen)
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description="decode attention over bf16 and FP8 pages")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--no-sweep", action="store_true", help="the schedule in use alone")
    args = parser.parse_args()
    begun = time.monotonic()
    bench = Bench(timed=True, sweep=not args.no_sweep, out=args.out or Path())
    processes = max(1, min(14, (os.cpu_count() or 2) - 1))
    with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        refused = {name for name in pool.map(compile_schedule, schedules(bench.sweep)) if name}
    print(f"[{time.monotonic() - begun:5.1f}] compiled; {len(refused)} do not run", flush=True)
    good = cut(FP8_SCHEDULE) not in refused and check(refused, bench.sweep)
    time_decode(bench, refused)
    time_shared(bench)
    time_prefill(bench)
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        (args.out / "kv.json").write_text(json.dumps(bench.figures, indent=1))
    print("all values and bits are right" if good else "SOMETHING IS WRONG")
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())

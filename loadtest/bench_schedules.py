"""Decode attention under every schedule worth timing, its values and bits checked: a part of
``bench_tiles``, which runs it.
"""

# pyright: basic, reportArgumentType=false
# Torch's stubs are too loose for more.

# ruff: noqa: B023 - the thunks of a loop's round are timed within that round.

from __future__ import annotations

from pathlib import Path

import torch
from torch.nn import functional as F

from shoal.kernels.attention import decode_attention
from shoal.kernels.kv import gather_pages
from shoal.kernels.norm import NormedRows
from shoal.kernels.pages import SCHEDULE, Schedule, attention_reference, cut_on_host
from shoal.kernels.quantise import Fp8Rows

from .bench_layer import DIM, HKV, HQ, PAGE, Bench, Step, random

CONTEXTS = ((1, 512), (1, 2048), (16, 512), (64, 512), (64, 1024), (128, 512), (256, 512))
JOIN_TOKENS = 384
"""Of a prefix that rows share in the check."""


def relative(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a.double() - b.double()).norm() / b.double().norm())


def schedules() -> list[Schedule]:
    """The one in use first."""
    found = [SCHEDULE, Schedule(64, 256, 3), Schedule(64, 512, 2)]
    for split in (256, 512):
        found += [Schedule(32, split, s) for s in (2, 3, 4)]
        found += [Schedule(64, split, s) for s in (2, 3)]
        found += [Schedule(32, split, s, w, 8) for w in (2, 4) for s in (3, 4, 5)]
        found += [Schedule(64, split, s, 4, 8) for s in (2, 3, 4)]
        found += [Schedule(16, split, s, w, 8) for w in (1, 2) for s in (4, 6, 8)]
        found += [Schedule(16, split, 6, 4, 8)]
    return [*dict.fromkeys(found)]


def cut(s: Schedule) -> str:
    return f"{s.block_tokens}/{s.split_tokens} s{s.stages} w{s.warps} c{s.columns}"


def attend(step: Step, i: int, chosen: Schedule, together: bool, **sharing: torch.Tensor) -> None:
    decode_attention(
        step.qkv,
        step.normed,
        step.slow,
        step.keys[i],
        step.values[i],
        step.tables,
        step.slots,
        step.positions,
        step.work,
        step.attended,
        schedule=chosen,
        together=together,
        pdl=True,
        **sharing,
    )


def attended(step: Step) -> torch.Tensor:
    """Values and scales as one tensor of bits; the buffers are then poisoned."""
    scales = step.attended.scales.t().contiguous()
    got = torch.cat([step.attended.values.view(torch.uint8), scales.view(torch.uint8)], 1)
    step.attended.values.view(torch.uint8).fill_(0x7F)
    step.attended.scales.fill_(float("nan"))
    return got


def bench_memory_access(refused: set[str]) -> bool:
    """Against the reference, alone and among neighbours, with a shared prefix and without."""
    good = True
    bench = Bench(timed=False, sweep=False, out=Path())
    torch.manual_seed(1)
    m = 48
    step = Step(bench, m, 2400, 1)
    ends = torch.randint(JOIN_TOKENS, 2400, (m,), device="cuda")
    ends[:8] = torch.tensor([384, 447, 448, 512, 1023, 1024, 2047, 2048], device="cuda")
    step.positions.copy_(ends)
    step.tables[:, : JOIN_TOKENS // PAGE] = step.tables[0, : JOIN_TOKENS // PAGE]
    groups = step.slots.view(-1, 16)
    step.work.outputs.fill_(float("nan"))
    step.work.sums.fill_(float("nan"))
    expected: torch.Tensor | None = None
    for chosen in schedules():
        if cut(chosen) in refused:
            continue
        attend(step, 0, chosen, False)
        if expected is None:
            queries = step.work.queries
            rows = []
            for row in range(0, m, 3):
                end = int(step.positions[row]) + 1
                k, v = (gather_pages(t[0], step.tables[row], end) for t in (step.keys, step.values))
                rows.append(attention_reference(queries[row][None], k, v, end - 1).flatten())
            expected = torch.stack(rows)
        values = step.attended.values.float().view(m, HQ, DIM) * step.attended.scales.t()[..., None]
        error = relative(values.flatten(1)[::3], expected)
        apart = attended(step)
        attend(step, 0, chosen, True)
        same_together = torch.equal(attended(step), apart)
        cuts = [cut_on_host(int(p) + 1, chosen) for p in step.positions]
        prefix = torch.tensor([(JOIN_TOKENS, c) for c in cuts], dtype=torch.int32, device="cuda")
        same_shared = []
        for together in (False, True):
            attend(step, 0, chosen, together, **grouped(prefix, groups))
            same_shared.append(torch.equal(attended(step), apart))
        single = Step.__new__(Step)
        single.__dict__.update(step.__dict__)
        # Copies: a pointer that is not aligned would be compiled for anew.
        single.slots, single.positions = step.slots[17:18].clone(), step.positions[17:18].clone()
        single.qkv = step.qkv[:, 17:18].contiguous()
        single.normed = NormedRows(
            Fp8Rows(step.normed.rows.values[17:18], step.normed.rows.scales[:, 17:18]),
            step.normed.squares[:, 17:18].contiguous(),
        )
        single.attended = Fp8Rows.empty(1, HQ * DIM, "cuda")
        attend(single, 0, chosen, False)
        same_alone = torch.equal(attended(single)[0], apart[17])
        fine = error < 0.035 and same_together and same_alone and not step.work.arrived.any()
        good &= fine
        # A schedule whose products differ in kind from the prefix's is told, and is no choice.
        print(
            f"check {cut(chosen):22s} error {error:.4f} together {same_together} "
            f"alone {same_alone} shared {same_shared}{'' if fine else ' WRONG'}",
            flush=True,
        )
        if chosen == SCHEDULE and not all(same_shared):
            good = False
    return good


def grouped(prefix: torch.Tensor, groups: torch.Tensor) -> dict[str, torch.Tensor]:
    """Both without the rows that are cut otherwise than the first of their group."""
    cuts = prefix[:, 1].tolist()
    kept, shared = groups.clone(), prefix.clone()
    shared[:, 0] = 0
    for group in kept:
        rows = [row for row in group.tolist() if cuts[row] == cuts[int(group[0])]]
        group.fill_(-1)
        group[: len(rows)] = torch.tensor(rows, dtype=torch.int32)
        shared[rows, 0] = JOIN_TOKENS
    return {"prefix": shared, "groups": kept}


def attention(bench: Bench, refused: set[str]) -> bool:
    good = bench_memory_access(refused)
    for m, context in CONTEXTS:
        size = m * context * HKV * DIM * 4
        copies = min(6, bench.copies(size))
        time_schedules(bench, refused, Step(bench, m, context, copies), f"{m}x{context}", size)
        if m == 256:
            # The same number of tokens in all, in contexts of 64 to about twice the mean.
            step = Step(bench, m, 2 * context, copies)
            mixed = torch.linspace(64, 2 * context - 64, m, device="cuda").int()
            step.positions.copy_(mixed[torch.randperm(m, device="cuda")])
            time_schedules(bench, refused, step, f"{m}x{context} mixed", size)
        q = random(m, HQ, 1, DIM)
        flat = [[random(m, HKV, context, DIM) for _ in "kv"] for _ in range(copies)]
        sdpa = bench.us(
            [
                lambda k=k, v=v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
                for k, v in flat
            ]
        )
        bench.row("attention", f"sdpa {m}x{context}", us=sdpa, tb_s=size * 1e-6 / sdpa)
    return good


def time_schedules(bench: Bench, refused: set[str], step: Step, name: str, size: int) -> None:
    timed: list[tuple[float, str]] = []
    for chosen in schedules():
        if cut(chosen) in refused:
            continue
        for together in (False, True):
            label = cut(chosen) + (" together" if together else "")
            run = [lambda i=i: attend(step, i, chosen, together) for i in range(len(step.keys))]
            timed.append((bench.us(run), label))
    now = min(timed[:2])
    timed.sort()
    best = timed[0][0]
    bench.row("attention", name, now=now[0], best=best, tb_s=size * 1e-6 / best)
    for us, label in [*timed[:8], now]:
        print(f"      {us:7.2f} us {size * 1e-6 / us:5.2f} TB/s  {label}")
    bench.figures.setdefault("schedules", []).extend(
        {"name": name, "us": us, "cut": label} for us, label in timed
    )


def compile_schedule(chosen: Schedule) -> str | None:
    """Likewise."""
    step = Step(Bench(timed=False, sweep=False, out=Path()), 16, 256, 1)
    prefix = torch.tensor([(64, 1)] * 16, dtype=torch.int32, device="cuda")
    try:
        for together in (False, True):
            attend(step, 0, chosen, together)
            attend(step, 0, chosen, together, prefix=prefix, groups=step.slots.view(1, 16))
        torch.cuda.synchronize()
    except Exception as error:  # likewise
        print(f"does not run: {cut(chosen)}: {type(error).__name__}: {str(error)[:90]}", flush=True)
        return cut(chosen)
    return None

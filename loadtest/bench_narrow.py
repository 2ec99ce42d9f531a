"""Attention that multiplies FP8 keys and values unwidened: a part of ``bench_kv``, which runs it.

A variant that does not run or is wrong is told and left out.
"""

# pyright: basic, reportArgumentType=false
# Torch's stubs are too loose for more.

# ruff: noqa: B023 - the thunks of a loop's round are timed within that round.

from __future__ import annotations

import multiprocessing
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from typing import Any

import torch

from shoal.kernels.attention import TOGETHER_ROWS
from shoal.kernels.heads import store_heads
from shoal.kernels.kv import Fp8Pages, Pages
from shoal.kernels.narrow_attention import (
    NarrowQueries,
    narrow_attention,
    store_narrow,
    transposed,
)
from shoal.kernels.pages import FP8_SCHEDULE
from shoal.kernels.quantise import Fp8Rows

from .bench_kv_step import TOLERANCE, alone, attend, emulated, step_to_check
from .bench_layer import BF16, DIM, HKV, HQ, Bench, Step
from .bench_schedules import relative

NARROW_STAGES = (3, 2, 4)
"""Of the loads; the first is the kernel's default."""


class Narrow:
    """Narrow attention over copies of a step's FP8 pages."""

    def __init__(self, step: Step, copies: int) -> None:
        self.step = step
        self.keys = [copied(pages) for pages in step.keys[:copies]]
        self.values = [transposed(copied(pages)) for pages in step.values[:copies]]
        self.queries = NarrowQueries.empty(step.m, step.slow, "cuda")

    def where(
        self, i: int
    ) -> tuple[Fp8Pages, Fp8Pages, torch.Tensor, torch.Tensor, torch.Tensor, NarrowQueries]:
        step = self.step
        slots = (step.tables, step.slots, step.positions)
        return self.keys[i], self.values[i], *slots, self.queries

    def store(self, i: int) -> None:
        store_narrow(self.step.qkv, self.step.normed, self.step.slow, *self.where(i), pdl=True)

    def rest(
        self, i: int, stages: int, together: bool, out: torch.Tensor | Fp8Rows | None = None
    ) -> None:
        step = self.step
        options: Any = {"together": together, "stages": stages, "pdl": True}
        out = step.attended if out is None else out
        narrow_attention(step.slow, *self.where(i), step.work, out, **options)

    def attend(
        self, i: int, stages: int, together: bool, out: torch.Tensor | Fp8Rows | None = None
    ) -> None:
        self.store(i)
        self.rest(i, stages, together, out)


def copied(pages: Pages) -> Fp8Pages:
    assert isinstance(pages, Fp8Pages)
    return Fp8Pages(pages.values.clone(), pages.scales.clone())


def check_narrow(stages: int) -> int | None:
    """In a process of its own, which a bad access may end. ``stages`` if it is not to be timed."""
    try:
        return None if narrow_is_right(stages) else stages
    except Exception as error:  # told and left out
        print(
            f"narrow s{stages} does not run: {type(error).__name__}: {str(error)[:300]}", flush=True
        )
        return stages


def narrow_is_right(stages: int) -> bool:
    step = step_to_check()
    fresh, off = Narrow(step, 1), Narrow(step, 1)
    out = torch.full((step.m, HQ * DIM), float("nan"), dtype=BF16, device="cuda")
    apart = out.clone()
    attend(step, 0, FP8_SCHEDULE, False, out)
    expected, theirs = emulated(step), out.clone()
    fresh.attend(0, stages, False, apart)
    error, between = relative(apart[::3], expected), relative(apart, theirs)
    kept = (
        (fresh.keys[0], copied(step.keys[0])),
        (fresh.values[0], transposed(copied(step.values[0]))),
    )
    # The two kernels may well round one in many to the other side.
    other = sum(int((a.values.float() != b.values.float()).sum()) for a, b in kept)
    stored = other < step.m * HKV * DIM // 100
    fresh.attend(0, stages, True, out)
    together = torch.equal(out, apart)
    again = True
    for _ in range(20):
        fresh.attend(0, stages, False, out)
        again &= torch.equal(out, apart)
    one = Narrow(alone(step, 17), 0)
    one.keys, one.values = fresh.keys, fresh.values
    one.attend(0, stages, False, row := out[:1].clone())
    same_alone = torch.equal(row[0], apart[17])
    off.values[0] = Fp8Pages(off.values[0].values, off.values[0].scales.roll(1, 2))
    off.attend(0, stages, False, out)
    planted = relative(out[::3], expected)
    fine = error < TOLERANCE and stored and together and again and same_alone and planted > 0.3
    fine &= not bool(step.work.arrived.any())
    print(
        f"check narrow s{stages} error {error:.5f} to FP8 today {between:.5f} "
        f"stored otherwise {other} "
        f"together {together} alone {same_alone} again {again} planted {planted:.3f}"
        f"{'' if fine else ' WRONG: left out'}",
        flush=True,
    )
    return fine


def narrow_that_run() -> list[int]:
    """Each tried in a process of its own."""
    spawn = multiprocessing.get_context("spawn")
    wrong: set[int | None] = set()
    for stages in NARROW_STAGES:
        with ProcessPoolExecutor(1, mp_context=spawn) as pool:
            try:
                wrong.add(pool.submit(check_narrow, stages).result())
            except BrokenExecutor:
                wrong.add(stages)
    return [stages for stages in NARROW_STAGES if stages not in wrong]


def time_narrow(bench: Bench, stages: list[int], m: int, length: int) -> dict[str, Any]:
    """Microseconds as decode would launch it, the best of all that was tried, and its parts."""
    copies = min(6, bench.copies(m * length * 2 * HKV * (DIM + 4)))
    step = Step(bench, m, length, copies, fp8_pages=True)
    narrow, used = Narrow(step, copies), m >= TOGETHER_ROWS
    tried = {
        (s, t): bench.us([lambda i=i: narrow.attend(i, s, t) for i in range(copies)])
        for s in stages
        for t in (False, True)
    }
    best = min(tried, key=lambda key: tried[key])
    rows = (step.slots, step.positions)
    weights = (step.slow.query_weight, step.slow.key_weight)
    today = [
        lambda i=i: store_heads(
            step.qkv, step.normed, weights, step.slow.rope, step.tables, step.keys[i],
            step.values[i], step.work.queries, step.slow.eps, rows=rows, pdl=True,
        )
        for i in range(copies)
    ]  # fmt: skip
    return {
        "narrow": tried[stages[0], used],
        "best": tried[best],
        "best_is": f"s{best[0]}{' together' if best[1] else ''}",
        "store": bench.us([lambda i=i: narrow.store(i) for i in range(copies)]),
        "fp8_store": bench.us(today),
        "rest": bench.us([lambda i=i: narrow.rest(i, *best) for i in range(copies)]),
    }

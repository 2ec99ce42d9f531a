"""Attention that multiplies FP8 keys and values unwidened: a part of ``bench_kv``, which runs it.

A variant that does not run or is wrong is told and left out.
"""

# pyright: basic, reportArgumentType=false
# Torch's stubs are too loose for more.

# ruff: noqa: B023 - the thunks of a loop's round are timed within that round.

from __future__ import annotations

import contextlib
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
from shoal.kernels.quantise import Fp8Rows, dequantise_rows

from .bench_kv_step import TOLERANCE, alone, attend, emulated, step_to_check
from .bench_layer import BF16, DIM, HKV, HQ, Bench, Step
from .bench_schedules import relative

VARIANTS = tuple((across, stages) for across in (True, False) for stages in (3, 2, 4))
"""Values transposed or as they are, and stages of the loads; the first is the experiment's."""
QUANTISED_TOLERANCE = 0.035
"""Of e4m3 outputs."""


def name_of(across: bool, stages: int) -> str:
    return f"{'across' if across else 'widened'} s{stages}"


class Narrow:
    """Narrow attention over copies of a step's FP8 pages, values transposed (``across``) or not."""

    def __init__(self, step: Step, copies: int, across: bool) -> None:
        self.step = step
        self.keys = [copied(pages) for pages in step.keys[:copies]]
        self.values = [laid(pages, across) for pages in step.values[:copies]]
        self.queries = NarrowQueries.empty(step.m, step.slow, "cuda")

    def where(
        self, i: int
    ) -> tuple[Fp8Pages, Fp8Pages, torch.Tensor, torch.Tensor, torch.Tensor, NarrowQueries]:
        slots = (self.step.tables, self.step.slots, self.step.positions)
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


def laid(values: Pages, across: bool) -> Fp8Pages:
    return transposed(copied(values)) if across else copied(values)


def check_narrow(variant: tuple[bool, int]) -> bool:
    """In a process of its own, which a bad access may end: whether it is to be timed."""
    try:
        return narrow_is_right(*variant)
    except Exception as error:  # told and left out
        kind = type(error).__name__
        print(f"narrow {name_of(*variant)} does not run: {kind}: {str(error)[:300]}", flush=True)
        return False


def narrow_is_right(across: bool, stages: int) -> bool:
    """Values, what is stored, bits, and a planted bug, as ``bench_kv`` checks today's."""
    step = step_to_check()
    fresh, off = Narrow(step, 1, across), Narrow(step, 1, across)
    out = torch.full((step.m, HQ * DIM), float("nan"), dtype=BF16, device="cuda")
    apart = out.clone()
    attend(step, 0, FP8_SCHEDULE, False, out)
    expected, theirs = emulated(step), out.clone()
    fresh.attend(0, stages, False, apart)
    error, between = relative(apart[::3], expected), relative(apart, theirs)
    kept = (
        (fresh.keys[0], copied(step.keys[0])),
        (fresh.values[0], laid(step.values[0], across)),
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
    rounded = 0.0
    for programs in (False, True):
        fresh.rest(0, stages, programs)
        rounded = max(rounded, relative(dequantise_rows(step.attended)[::3], expected))
    one = Narrow(alone(step, 17), 0, across)
    one.keys, one.values = fresh.keys, fresh.values
    one.attend(0, stages, False, row := out[:1].clone())
    same_alone = torch.equal(row[0], apart[17])
    off.values[0] = Fp8Pages(off.values[0].values, off.values[0].scales.roll(1, 2))
    off.attend(0, stages, False, out)
    planted = relative(out[::3], expected)
    fine = error < TOLERANCE and stored and together and again and same_alone and planted > 0.3
    fine &= rounded < QUANTISED_TOLERANCE and not bool(step.work.arrived.any())
    print(
        f"check narrow {name_of(across, stages):11s} error {error:.5f} to FP8 today {between:.5f} "
        f"stored otherwise {other} together {together} alone {same_alone} again {again} "
        f"quantised {rounded:.4f} planted {planted:.3f}{'' if fine else ' WRONG: left out'}",
        flush=True,
    )
    return fine


def narrow_that_run() -> list[tuple[bool, int]]:
    """Each tried in a process of its own."""
    spawn = multiprocessing.get_context("spawn")
    right: list[tuple[bool, int]] = []
    with contextlib.ExitStack() as pools:
        tries = [
            pools.enter_context(ProcessPoolExecutor(1, mp_context=spawn)).submit(check_narrow, v)
            for v in VARIANTS
        ]
        for variant, tried in zip(VARIANTS, tries, strict=True):
            try:
                if tried.result():
                    right.append(variant)
            except BrokenExecutor:
                print(f"narrow {name_of(*variant)} ended its process", flush=True)
    return right


def time_narrow(
    bench: Bench, variants: list[tuple[bool, int]], m: int, length: int, bf16: float
) -> None:
    """Rows of microseconds for each layout: as decode would launch it, the best of all that was
    tried (of bf16's, and how fast it reads), and of the best its store and the rest."""
    size = m * (length + 1) * 2 * HKV * (DIM + 4)
    copies = min(6, bench.copies(size))
    step = Step(bench, m, length, copies, fp8_pages=True)
    today = bench.us([lambda i=i: store_today(step, i) for i in range(copies)])
    for across in (True, False):
        stages = [s for a, s in variants if a == across]
        if not stages:
            continue
        narrow = Narrow(step, copies, across)
        tried = {
            (s, t): bench.us([lambda i=i: narrow.attend(i, s, t) for i in range(copies)])
            for s in stages
            for t in (False, True)
        }
        best = min(tried, key=lambda key: tried[key])
        rest = bench.us([lambda i=i: narrow.rest(i, *best) for i in range(copies)])
        bench.row(
            "across" if across else "widened",
            f"{m}x{length}",
            narrow=tried[stages[0], m >= TOGETHER_ROWS],
            best=tried[best],
            best_is=f"s{best[0]}{' together' if best[1] else ''}",
            of_bf16=tried[best] / bf16,
            store=bench.us([lambda i=i: narrow.store(i) for i in range(copies)]),
            fp8_store=today,
            rest=rest,
            rest_tb_s=size * 1e-6 / rest,
        )


def store_today(step: Step, i: int) -> None:
    slow = step.slow
    assert slow.query_weight is not None
    assert slow.key_weight is not None
    store_heads(
        step.qkv,
        step.normed,
        (slow.query_weight, slow.key_weight),
        slow.rope,
        step.tables,
        step.keys[i],
        step.values[i],
        step.work.queries,
        slow.eps,
        rows=(step.slots, step.positions),
        pdl=True,
    )

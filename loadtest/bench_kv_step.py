"""The step over FP8 pages that ``bench_kv`` checks, alone and against plain torch, and how decode
attention is called on a step: what ``bench_kv`` and ``bench_narrow`` share.
"""

# pyright: basic, reportArgumentType=false
# Torch's stubs are too loose for more.

from __future__ import annotations

from pathlib import Path

import torch

from shoal.kernels.attention import decode_attention
from shoal.kernels.kv import Fp8Pages, Pages, gather_pages
from shoal.kernels.norm import NormedRows
from shoal.kernels.pages import Schedule, fp8_attention_reference
from shoal.kernels.quantise import Fp8Rows

from .bench_layer import BF16, PAGE, Bench, Step
from .bench_schedules import JOIN_TOKENS

TOLERANCE = 5e-3
"""Of bf16 outputs against the emulation."""


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


def step_to_check() -> Step:
    """48 rows of all lengths that share a prefix's pages."""
    torch.manual_seed(1)
    m = 48
    step = Step(Bench(False, False, Path()), m, 2400, 1, fp8_pages=True)
    ends = torch.randint(JOIN_TOKENS, 2400, (m,), device="cuda")
    ends[:8] = torch.tensor([384, 447, 448, 512, 1023, 1024, 2047, 2048], device="cuda")
    step.positions.copy_(ends)
    step.tables[:, : JOIN_TOKENS // PAGE] = step.tables[0, : JOIN_TOKENS // PAGE]
    step.work.outputs.fill_(float("nan"))
    step.work.sums.fill_(float("nan"))
    return step


def emulated(step: Step) -> torch.Tensor:
    """bf16 rows 0, 3, ... by plain torch, over the queries and pages that a run has left."""
    rows: list[torch.Tensor] = []
    for row in range(0, step.m, 3):
        end = int(step.positions[row]) + 1
        keys, values = (context(t[0], step.tables[row], end) for t in (step.keys, step.values))
        queries = step.work.queries[row][None]
        rows.append(fp8_attention_reference(queries, keys, values, end - 1).flatten())
    return torch.stack(rows).to(BF16)


def alone(step: Step, row: int) -> Step:
    """One row of the step as a step of its own, over the same pages."""
    one = slice(row, row + 1)
    single = Step.__new__(Step)
    single.__dict__.update(step.__dict__)
    single.m = 1
    # Copies: a pointer that is not aligned would be compiled for anew.
    single.slots, single.positions = step.slots[one].clone(), step.positions[one].clone()
    single.qkv = step.qkv[:, one].contiguous()
    single.normed = NormedRows(
        Fp8Rows(step.normed.rows.values[one], step.normed.rows.scales[:, one]),
        step.normed.squares[:, one].contiguous(),
    )
    return single

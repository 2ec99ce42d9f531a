"""A clock for kernels, and one layer of S2 Pro's sizes with its buffers: what the benches of
kernels share. Not a bench itself.
"""

# pyright: basic
# Torch's stubs are too loose for more.

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F

from shoal.kernels.attention import decode_attention
from shoal.kernels.fast_attention import fast_attention
from shoal.kernels.gemm import gemm_partials, gemm_rows
from shoal.kernels.heads import rope_tables
from shoal.kernels.kv import Fp8Pages, Pages, quantise_heads
from shoal.kernels.norm import NormedRows, add_norm
from shoal.kernels.pages import SCHEDULE, Heads, Schedule, Workspace
from shoal.kernels.quantise import Fp8Rows, Fp8Weight, quantise_weight
from shoal.kernels.swiglu import swiglu
from shoal.kernels.tiles import rows_tile, tile_for

from .bench_clock import replay_ms

D, INNER, HQ, HKV, DIM, CODES, PAGE = 2560, 9728, 32, 8, 128, 4096, 64
SHAPES = {
    "qkv": ((HQ + 2 * HKV) * DIM, D),
    "o": (D, HQ * DIM),
    "gate_up": (2 * INNER, D),
    "down": (D, INNER),
    "head": (CODES, D),
}
ROWS = (1, 16, 32, 64, 128, 256)
EPS = 1e-6
ROTATED_BYTES = 190_000_000
BF16 = torch.bfloat16
Thunk = Callable[[], object]


@dataclass
class Bench:
    """Where figures go. Not ``timed``: every kernel runs once, so that it is compiled."""

    timed: bool
    sweep: bool
    out: Path
    schedule: Schedule = SCHEDULE
    figures: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    started: float = field(default_factory=time.monotonic)

    def copies(self, size: int) -> int:
        return max(3, -(-ROTATED_BYTES // size)) if self.timed else 1

    def us(self, thunks: Sequence[Thunk], replays: int = 9) -> float:
        """Microseconds a thunk, inside one graph of at least 16 of them."""
        for thunk in thunks[:2]:
            thunk()
        torch.cuda.synchronize()
        if not self.timed:
            return 1.0
        rounds = max(1, -(-16 // len(thunks)))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(rounds):
                for thunk in thunks:
                    thunk()
        graph.replay()
        torch.cuda.synchronize()
        return replay_ms(graph, replays) * 1e3 / (rounds * len(thunks))

    def row(self, table: str, name: str, **figures: Any) -> None:
        if self.timed:
            self.figures.setdefault(table, []).append({"name": name, **figures})
            cells = "  ".join(
                f"{k} {v:.3g}" if isinstance(v, float) and abs(v) < 1e-2
                else f"{k} {v:.2f}" if isinstance(v, float) else f"{k} {v}"
                for k, v in figures.items()
            )  # fmt: skip
            print(
                f"[{time.monotonic() - self.started:5.1f}] {table:9s} {name:16s} {cells}",
                flush=True,
            )


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device="cuda").to(BF16)


def fp8_random(*shape: int) -> Fp8Pages:
    """Pages whose heads differ in magnitude from token to token, so that a misread scale shows."""
    size = torch.exp2(torch.randint(-3, 2, (*shape[:-1], 1), device="cuda").float())
    return quantise_heads(random(*shape) * size)


def weight(name: str) -> Fp8Weight:
    n, k = SHAPES[name]
    return quantise_weight(torch.randn(n, k, device="cuda") * k**-0.5)


def normed(m: int, k: int) -> NormedRows:
    out = NormedRows.empty(m, k, "cuda")
    add_norm(random(m, k), random(k), out)
    return out


def partials(n: int, k: int, m: int) -> torch.Tensor:
    return torch.empty(tile_for(n, k, m).splits, m, n, device="cuda")


def product(x: NormedRows | Fp8Rows, w: Fp8Weight, out: torch.Tensor, pdl: bool = False) -> None:
    """Rows out for a bf16 ``out``, else partials, by the table of tiles."""
    if out.dtype == BF16:
        gemm_rows(x, w, out, rows_tile(out.shape[0]), eps=EPS, pdl=pdl)
    else:
        gemm_partials(x, w, out, tile_for(w.n, w.k, out.shape[1]), pdl=pdl)


def blas_fp8(x: Fp8Rows, w: Fp8Weight) -> Thunk:
    """cuBLAS block-scaled FP8; it wants rows in fours."""
    m, k = x.values.shape
    fours = max(4, -(-m // 4) * 4)
    kind = F.ScalingType
    values = F.pad(x.values.view(torch.uint8), (0, 0, 0, fours - m)).view(x.values.dtype)
    scales = F.pad(x.scales, (0, fours - m)).t()
    blocks = k // 128
    columns = F.pad(w.scales, (0, -blocks % 4)).contiguous().t()
    return lambda: F.scaled_mm(
        values,
        w.values.t(),
        scales,
        kind.BlockWise1x128,
        columns,
        kind.BlockWise128x128,
        output_dtype=BF16,
    )


class Step:
    """Buffers of a layer at M rows and its share of pages."""

    def __init__(
        self, bench: Bench, m: int, context: int, layers: int, *, fp8_pages: bool = False
    ) -> None:
        ones = random(DIM)
        tables = rope_tables(4096, DIM, 1e6, "cuda")
        self.m = m
        self.slow = Heads(HQ, HKV, DIM, EPS, tables, ones, ones)
        self.fast = Heads(HQ, HKV, DIM, EPS, tables)
        self.residual, self.weight = random(m, D), random(D)
        self.normed = normed(m, D)
        self.qkv, self.o = (partials(*SHAPES[name], m) for name in ("qkv", "o"))
        self.down = partials(*SHAPES["down"], m)
        for buffer in (self.qkv, self.o, self.down):
            buffer.normal_()
        self.both = random(m, 2 * INNER)
        self.gated = Fp8Rows.empty(m, INNER, "cuda")
        self.attended = Fp8Rows.empty(m, HQ * DIM, "cuda")
        pages = context // PAGE + 1
        shape = (pages * m, HKV, PAGE, DIM)
        make = fp8_random if fp8_pages else random
        self.keys: list[Pages]
        self.values: list[Pages]
        self.keys, self.values = ([make(*shape) for _ in range(layers)] for _ in "kv")
        self.tables = torch.randperm(pages * m, device="cuda").int().view(m, pages).contiguous()
        self.slots = torch.arange(m, dtype=torch.int32, device="cuda")
        self.positions = torch.full((m,), context, dtype=torch.int32, device="cuda")
        self.fast_keys, self.fast_values = (random(layers, m, HKV, 16, DIM) for _ in "kv")
        self.work = Workspace.empty(m, self.slow, "cuda")
        self.schedule = bench.schedule

    def attend(
        self,
        kind: str,
        i: int,
        pdl: bool = False,
        prefix: torch.Tensor | None = None,
        groups: torch.Tensor | None = None,
    ) -> None:
        """Attention of the ``slow`` or the ``fast`` stack, over pages or caches number ``i``."""
        if kind == "slow":
            decode_attention(
                self.qkv,
                self.normed,
                self.slow,
                self.keys[i],
                self.values[i],
                self.tables,
                self.slots,
                self.positions,
                self.work,
                self.attended,
                prefix=prefix,
                groups=groups,
                schedule=self.schedule,
                pdl=pdl,
            )
        else:
            cache = (self.fast_keys[i], self.fast_values[i])
            fast_attention(self.qkv, self.normed, self.fast, *cache, 5, self.attended, pdl=pdl)

    def layer(self, weights: dict[str, Fp8Weight], kind: str, i: int, pdl: bool) -> None:
        product(self.normed, weights["qkv"], self.qkv, pdl)
        self.attend(kind, i, pdl)
        product(self.attended, weights["o"], self.o, pdl)
        add_norm(self.residual, self.weight, self.normed, self.o, pdl=pdl)
        product(self.normed, weights["gate_up"], self.both, pdl)
        swiglu(self.both, self.gated, pdl=pdl)
        product(self.gated, weights["down"], self.down, pdl)
        add_norm(self.residual, self.weight, self.normed, self.down, pdl=pdl)

    def products(self, weights: dict[str, Fp8Weight], pdl: bool) -> None:
        product(self.normed, weights["qkv"], self.qkv, pdl)
        product(self.attended, weights["o"], self.o, pdl)
        product(self.normed, weights["gate_up"], self.both, pdl)
        product(self.gated, weights["down"], self.down, pdl)

"""Which tile is the fastest for each convolution of S2's codec: what ``conv_tiles`` is filled from.

Candidates are compiled by many processes first, since that takes far longer than timing them.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from typing import Any

import torch

from shoal.kernels.conv import (
    GELU,
    GLU,
    PLAIN,
    SNAKE,
    ConvWeight,
    Steps,
    Tile,
    conv,
    prepare_conv,
)

from .bench_codec_device import Figures, graph_ms


@dataclass(frozen=True, slots=True)
class Case:
    """One layer of S2's codec; ``length``: its steps in a frame."""

    name: str
    outputs: int
    inputs: int
    taps: int
    length: int
    kind: str
    dilation: int = 1
    act: int = PLAIN
    unit: bool = False
    out: str = "half"
    residual: bool = False
    snaked: bool = False

    def macs(self, steps: int) -> int:
        each = self.outputs * self.inputs * self.taps
        return steps * (each + (self.outputs**2 if self.unit else 0))


CASES = (
    Case("qkv", 3072, 1024, 1, 1, "few", out="float"),
    Case("wo", 1024, 1024, 1, 1, "few", out="float", residual=True),
    Case("w13", 6144, 1024, 1, 1, "glu", act=GLU),
    Case("w2", 1024, 3072, 1, 1, "few", out="float", residual=True),
    Case("upsample", 2048, 1024, 1, 1, "few"),
    Case("widen", 4096, 1024, 1, 4, "few", act=GELU),
    Case("narrow", 1024, 4096, 1, 4, "few", residual=True),
    Case("first", 1536, 1024, 7, 4, "few", out="", snaked=True),
    Case("up 1", 6144, 1536, 2, 4, "few", snaked=True),
    Case("up 2", 3072, 768, 2, 32, "many", snaked=True),
    Case("up 3", 768, 384, 2, 256, "many", snaked=True),
    Case("up 4", 192, 192, 2, 1024, "unit192", snaked=True),
    Case("wide 768", 768, 768, 7, 32, "many", dilation=3, act=SNAKE),
    Case("narrow 768", 768, 768, 1, 32, "many", residual=True, snaked=True),
    Case("wide 384", 384, 384, 7, 256, "many", dilation=3, act=SNAKE),
    Case("narrow 384", 384, 384, 1, 256, "many", residual=True, snaked=True),
    Case("unit 192", 192, 192, 7, 1024, "unit192", 3, SNAKE, True, residual=True, snaked=True),
    Case("unit 96", 96, 96, 7, 2048, "unit96", 3, SNAKE, True, residual=True, snaked=True),
)


def candidates(kind: str) -> Iterator[Tile]:
    match kind:
        case "few":
            for columns, inner in itertools.product((16, 32, 64, 128), (64, 128)):
                yield Tile(64, columns, inner=inner, stages=5 if inner == 64 else 4)
            yield Tile(64, 64, inner=64, stages=8)
            yield Tile(64, 32, inner=128, stages=5)
            yield Tile(128, 64, inner=64, warps=8, stages=5)
            yield Tile(128, 128, inner=64, warps=8, stages=4)
        case "glu":
            for columns, inner in itertools.product((16, 32, 64), (64, 128)):
                yield Tile(64, columns, columns, inner=inner, stages=4)
            yield Tile(128, 64, 64, inner=64, warps=8, stages=4)
        case "many":
            for tma in (True, False):
                yield Tile(128, 128, warps=8, stages=4, tma=tma)
                yield Tile(128, 128, warps=8, stages=3, tma=tma)
                yield Tile(128, 256, warps=8, stages=3, tma=tma)
                yield Tile(64, 128, warps=4, stages=4, tma=tma)
                yield Tile(128, 128, 64, warps=8, stages=3, tma=tma)
            yield Tile(256, 128, warps=8, stages=3)
            yield Tile(64, 256, warps=4, stages=3)
            yield Tile(128, 128, warps=4, stages=3)
            yield Tile(128, 64, warps=4, stages=4)
            yield Tile(128, 128, inner=128, warps=8, stages=2)
        case "unit192":
            for tma in (True, False):
                yield Tile(64, 128, 64, warps=4, stages=3, tma=tma)
                yield Tile(128, 128, 64, warps=8, stages=3, tma=tma)
                yield Tile(128, 256, warps=8, stages=3, tma=tma)
            yield Tile(64, 256, warps=4, stages=3)
            yield Tile(64, 128, 64, warps=8, stages=3)
            yield Tile(128, 128, 64, inner=32, warps=8, stages=4)
            yield Tile(64, 128, 64, inner=32, warps=4, stages=4)
        case _:
            for tma in (True, False):
                yield Tile(128, 128, inner=32, warps=8, stages=4, tma=tma)
                yield Tile(128, 128, inner=32, warps=4, stages=4, tma=tma)
                yield Tile(128, 64, 32, inner=32, warps=4, stages=4, tma=tma)
                yield Tile(64, 64, 32, inner=32, warps=4, stages=4, tma=tma)
            yield Tile(128, 64, 32, inner=32, warps=8, stages=5)
            yield Tile(128, 64, 32, inner=64, warps=8, stages=3)
            yield Tile(128, 128, inner=64, warps=8, stages=3)
            yield Tile(64, 128, inner=32, warps=4, stages=4)
            yield Tile(256, 128, inner=32, warps=8, stages=3)


def prepared(case: Case, rows: int, device: str = "cuda") -> Callable[[Tile], None]:
    """A launch of the layer at a given tile, one frame a row."""
    length = case.length

    def weight(outputs: int, inputs: int, taps: int, dilation: int) -> ConvWeight:
        drawn = torch.randn(outputs, inputs, taps, device=device) / (inputs * taps) ** 0.5
        return prepare_conv(drawn, torch.zeros(outputs, device=device), dilation)

    w = weight(case.outputs, case.inputs, case.taps, case.dilation)
    n = case.outputs // 2 if case.act == GLU else case.outputs
    a = torch.randn(rows, w.past + length, case.inputs, device=device).half()
    if case.kind in ("few", "glu") and case.taps == 1:
        a = a.view(1, rows * length, case.inputs)
    how: dict[str, Any] = {"act": case.act}
    if case.unit:
        how["unit"] = weight(n, n, 1, 1)
    kind = torch.float32 if case.out == "float" else torch.float16
    x = torch.zeros(rows, length, n, device=device, dtype=kind)
    there = Steps(x, length * n)
    if case.residual:
        how["residual"] = there
    if case.out:
        how["out"] = there
    if case.snaked:
        s = torch.zeros(rows, 6 + length, n, device=device, dtype=torch.float16)
        how["snaked"] = Steps(s[:, 6:], (6 + length) * n)
        how["alpha"] = torch.ones(n, device=device)
    steps = a.shape[1] - w.past
    return lambda tile: conv(a, w, steps, tile, **how)


def compile_one(work: tuple[Case, Tile, tuple[int, ...]]) -> str | None:
    """In a process of its own: fills the cache on disk. Says what went wrong."""
    case, tile, rows_wanted = work
    try:
        for rows in rows_wanted:
            prepared(case, rows)(tile)
        torch.cuda.synchronize()
    except Exception as error:  # a tile may well not fit
        return f"{case.name} {tile}: {type(error).__name__}: {str(error)[:120]}"
    return None


def sweep(figures: Figures, rows_wanted: tuple[int, ...], only: str) -> bool:
    """Prints the four fastest tiles of each layer; all of them go into ``figures``."""
    cases = [case for case in CASES if only in case.name]
    work = [(case, tile, rows_wanted) for case in cases for tile in candidates(case.kind)]
    processes = max(1, min(14, (os.cpu_count() or 2) - 2))
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        failures = list(pool.map(compile_one, work))
    for failure in filter(None, failures):
        print("does not run:", failure)
    usable = [(c, t) for (c, t, _), failure in zip(work, failures, strict=True) if failure is None]
    for rows in rows_wanted:
        total = 0.0
        for case in cases:
            launch = prepared(case, rows)
            timed: list[tuple[float, Tile]] = []
            for tile in (tile for c, tile in usable if c is case):

                def body(tile: Tile = tile, launch: Callable[[Tile], None] = launch) -> None:
                    for _ in range(4):
                        launch(tile)

                timed.append((1e3 * graph_ms(body, 0.02) / 4, tile))
            timed.sort(key=lambda pair: pair[0])
            if not timed:
                continue
            total += timed[0][0]
            macs = case.macs(rows * case.length)
            for us, tile in timed[:4]:
                rate = 2e-6 * macs / us
                print(f"{rows:4} {case.name:11s} {us:8.1f} us {rate:6.0f} TFLOP/s {tile}")
            figures.setdefault("sweep", []).extend(
                {"rows": rows, "case": case.name, "us": us, **asdict(tile)} for us, tile in timed
            )
        print(f"{rows:4} rows: the best of each, once: {total:.0f} us", flush=True)
    return True

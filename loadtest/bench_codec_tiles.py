"""Which tile is the fastest for each convolution of S2's codec: what ``conv_tiles`` is filled from.

Candidates are compiled by many processes first, since that takes far longer than timing them.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from multiprocessing import TimeoutError, get_context
from typing import Any

import torch

from shoal.kernels.conv import (
    GELU,
    GLU,
    PLAIN,
    SNAKE,
    ConvWeight,
    Normed,
    Scratch,
    Steps,
    Tile,
    conv,
    prepare_conv,
)
from shoal.kernels.conv_tiles import SCRATCH_TILES, SCRATCH_VALUES, tile_for
from shoal.kernels.last_conv import prepare_taps

from .bench_clock import graph_ms
from .bench_codec_device import Figures

COMPILE_S = 60.0
"""Candidates that are not compiled by then are left out."""


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
    second: str = ""
    """What goes out beside the sum: "snaked", "halved" or "tapped"."""
    normed: bool = False

    def macs(self, steps: int) -> int:
        each = self.outputs * self.inputs * self.taps
        return steps * (each + (self.outputs**2 if self.unit else 0))


CASES = (
    Case("qkv", 3072, 1024, 1, 1, "flat", out="float", normed=True),
    Case("wo", 1024, 1024, 1, 1, "flat", out="float", residual=True, second="halved"),
    Case("w13", 6144, 1024, 1, 1, "glu", act=GLU, normed=True),
    Case("w2", 1024, 3072, 1, 1, "chunked", out="float", residual=True, second="halved"),
    Case("upsample", 2048, 1024, 1, 1, "flat"),
    Case("widen", 4096, 1024, 1, 4, "widen", act=GELU),
    Case("narrow", 1024, 4096, 1, 4, "chunked", residual=True),
    Case("first", 1536, 1024, 7, 4, "deep", out="", second="snaked"),
    Case("up 1", 6144, 1536, 2, 4, "deep", second="snaked"),
    Case("up 2", 3072, 768, 2, 32, "many", second="snaked"),
    Case("up 3", 768, 384, 2, 256, "many", second="snaked"),
    Case("up 4", 192, 192, 2, 1024, "192", second="snaked"),
    Case("wide 768", 768, 768, 7, 32, "wide", dilation=3, act=SNAKE),
    Case("narrow 768", 768, 768, 1, 32, "many", residual=True, second="snaked"),
    Case("wide 384", 384, 384, 7, 256, "many", dilation=3, act=SNAKE),
    Case("narrow 384", 384, 384, 1, 256, "many", residual=True, second="snaked"),
    Case("unit 192", 192, 192, 7, 1024, "unit192", 3, SNAKE, True, residual=True, second="snaked"),
    Case("wide 192", 192, 192, 7, 1024, "192", dilation=3, act=SNAKE),
    Case("narrow 192", 192, 192, 1, 1024, "192", residual=True, second="snaked"),
    Case("unit 96", 96, 96, 7, 2048, "unit96", 3, SNAKE, True, residual=True, second="snaked"),
    Case("last unit", 96, 96, 7, 2048, "unit96", 9, SNAKE, True, "", True, "tapped"),
)


def candidates(kind: str) -> Iterator[Tile]:
    """Tiles worth timing; those of one layer that differ in ``inner`` or ``chunks`` differ in bits,
    so the table takes one such pair for all numbers of rows."""
    few = (Tile(64, 32, stages=6), Tile(64, 32, stages=8), Tile(64, 64, stages=5))
    match kind:
        case "flat":
            yield from (Tile(64, n, inner=128, stages=4) for n in (16, 32, 64))
            yield from (Tile(64, n, inner=128, chunks=2, splits=2) for n in (32, 64))
        case "glu":
            yield from (Tile(64, n, n, inner=128, stages=s) for n in (16, 32) for s in (3, 4))
        case "widen":
            yield from few
            yield Tile(128, 64, warps=8, stages=5)
            yield Tile(128, 128, warps=8, stages=4)
            yield Tile(64, 32, inner=128, stages=4)
        case "chunked":
            for n, chunks in itertools.product((32, 64), (1, 2, 4)):
                for splits in {1, chunks}:
                    yield Tile(64, n, inner=128, stages=4, chunks=chunks, splits=splits)
            yield Tile(64, 32, inner=128, stages=3, chunks=4, splits=4)
        case "deep":
            for chunks in (1, 2, 4):
                for splits in {1, chunks}:
                    tiles = (
                        Tile(128, 128, warps=8, stages=4),
                        Tile(64, 32, stages=6),
                        Tile(64, 64, stages=5),
                        Tile(64, 64, inner=128, stages=3),
                    )
                    yield from (replace(tile, chunks=chunks, splits=splits) for tile in tiles)
                yield Tile(128, 256, warps=8, stages=3, chunks=chunks, splits=chunks)
        case "wide":
            for chunks in (1, 2, 4):
                yield Tile(64, 128, stages=4, chunks=chunks)
                yield Tile(128, 128, warps=8, stages=4, chunks=chunks)
                for tile in few:
                    yield replace(tile, chunks=chunks, splits=chunks)
        case "many":
            yield from few
            yield Tile(128, 128, warps=8, stages=3)
            # Two and three programs on a multiprocessor instead of one and two.
            yield Tile(128, 128, warps=8, stages=3, registers=128)
            yield Tile(128, 128, stages=2, registers=168)
            yield Tile(128, 128, stages=3)
            yield Tile(128, 64, stages=4)
            yield Tile(128, 256, warps=8, stages=3)
            yield from (Tile(64, 128, stages=stages) for stages in (3, 4, 6))
        case "192":
            yield from few
            yield Tile(64, 64, stages=4)
            yield Tile(128, 64, stages=4)
            yield from (Tile(64, 128, 64, stages=stages) for stages in (3, 4))
            yield Tile(64, 128, 64, stages=2, registers=168)
            yield Tile(128, 128, 64, warps=8, stages=2, registers=128)
        case "unit192":
            unit = Tile(64, 128, 64)
            yield from (replace(unit, stages=stages) for stages in (2, 3))
            # Three programs on a multiprocessor instead of two: only the end of a program spills.
            yield replace(unit, stages=2, registers=168)
            yield Tile(128, 128, 64, warps=8, stages=3)
            yield Tile(128, 128, 64, warps=8, stages=2, registers=128)
        case _:
            unit = Tile(128, 64, 32, inner=32, stages=4)
            yield from (replace(unit, stages=stages) for stages in (3, 4))
            yield from (replace(unit, stages=s, registers=r) for s, r in ((4, 168), (3, 128)))
            yield from (replace(unit, warps=8, registers=r) for r in (0, 80))
            yield from (replace(unit, steps=64, registers=r) for r in (0, 96))
            yield replace(unit, steps=256, warps=8, stages=3)
            yield replace(unit, steps=256, warps=8, stages=3, registers=128)


def prepared(case: Case, rows: int, device: str = "cuda") -> Callable[[Tile], None]:
    """A launch of the layer at a given tile, one frame a row."""
    length = case.length

    # Without a GPU kernels are only compiled, and values do not matter.
    draw = torch.randn if device == "cuda" else torch.empty

    def weight(outputs: int, inputs: int, taps: int, dilation: int) -> ConvWeight:
        drawn = draw(outputs, inputs, taps, device=device) / (inputs * taps) ** 0.5
        return prepare_conv(drawn, torch.zeros(outputs, device=device), dilation)

    w = weight(case.outputs, case.inputs, case.taps, case.dilation)
    n = case.outputs // 2 if case.act == GLU else case.outputs
    a = draw(rows, w.past + length, case.inputs, device=device).half()
    if case.kind in ("flat", "glu", "chunked", "widen"):
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
    if case.second == "tapped":
        s = torch.zeros(rows, 6 + length, 8, device=device)
        how["taps"] = prepare_taps(draw(1, n, 7, device=device) / n**0.5)
    else:
        s = torch.zeros(rows, 6 + length, n, device=device, dtype=torch.float16)
    if case.second:
        how[case.second] = Steps(s[:, 6:], s.stride(0))
        how["alpha"] = torch.ones(n, device=device)
    steps = a.shape[1] - w.past
    m = steps * a.shape[0]
    if case.normed:
        how["normed"] = Normed(torch.ones(32, m, device=device), 1e-5)
    squares = torch.empty(n // 16, m, device=device) if case.second == "halved" else None
    scratch = Scratch.empty(device, SCRATCH_VALUES, SCRATCH_TILES)
    return lambda tile: conv(a, w, steps, tile, **how, squares=squares, scratch=scratch, pdl=True)


def chosen(case: Case, rows: int) -> Tile:
    """The table's tile."""
    w = prepare_conv(torch.empty(case.outputs, case.inputs, case.taps, device="meta"), None)
    return tile_for(
        w,
        rows * case.length,
        glu=case.act == GLU,
        unit=case.unit,
        taps=case.second == "tapped",
        squares=case.second == "halved",
    )


def brief(tile: Tile) -> str:
    return (
        f"{tile.steps}x{tile.columns}+{tile.more} inner {tile.inner} warps {tile.warps} "
        f"stages {tile.stages} chunks {tile.chunks}/{tile.splits} "
        f"registers {tile.registers or 'any'}"
    )


Work = tuple[Case, Tile, tuple[int, ...]]


def compile_one(work: Work) -> str | None:
    """In a process of its own: fills the cache on disk. Says what went wrong."""
    case, tile, rows_wanted = work
    try:
        for rows in rows_wanted:
            prepared(case, rows)(tile)
        torch.cuda.synchronize()
    except Exception as error:  # a tile may well not fit
        return f"{type(error).__name__}: {str(error)[:120]}"
    return None


def compiled(work: list[Work]) -> list[Work]:
    """What of it runs and was ready in time; what not is printed, and costs none of the others."""
    until_s = time.monotonic() + COMPILE_S
    usable: list[Work] = []
    with get_context("spawn").Pool(max(1, min(14, (os.cpu_count() or 2) - 2))) as pool:
        asked = [pool.apply_async(compile_one, (each,)) for each in work]
        for each, result in zip(work, asked, strict=True):
            try:
                failure = result.get(max(0.0, until_s - time.monotonic()))
            except TimeoutError:
                failure = "not compiled in time"
            if failure is None:
                usable.append(each)
            else:
                print(f"does not run: {each[0].name} {brief(each[1])}: {failure}", flush=True)
    return usable


def sweep(figures: Figures, rows_wanted: tuple[int, ...], only: str) -> bool:
    """Prints the four fastest tiles of each layer and the table's (*); all go into ``figures``.

    ``only``: parts of layers' names, by commas.
    """
    cases = [case for case in CASES if any(part in case.name for part in only.split(","))]
    tiles = {case.name: list(candidates(case.kind)) for case in cases}
    for case in cases:
        # The table's own tiles too; how far they ask ahead does not matter to data in the cache.
        for rows in rows_wanted:
            tile = replace(chosen(case, rows), ahead=0)
            tiles[case.name] += [] if tile in tiles[case.name] else [tile]
    work = [(case, tile, rows_wanted) for case in cases for tile in tiles[case.name]]
    usable = compiled(work)
    for rows in rows_wanted:
        total = 0.0
        for case in cases:
            launch = prepared(case, rows)
            timed: list[tuple[float, Tile]] = []
            for tile in (tile for c, tile, _ in usable if c is case):

                def body(tile: Tile = tile, launch: Callable[[Tile], None] = launch) -> None:
                    for _ in range(4):
                        launch(tile)

                try:
                    timed.append((1e3 * graph_ms(body, 0.02) / 4, tile))
                except Exception as error:  # nor must one that compiled cost the others
                    print(f"is not timed: {case.name} {brief(tile)}: {str(error)[:120]}")
            timed.sort(key=lambda pair: pair[0])
            if not timed:
                continue
            total += timed[0][0]
            macs = case.macs(rows * case.length)
            ours = replace(chosen(case, rows), ahead=0)
            for place, (us, tile) in enumerate(timed):
                if place < 4 or tile == ours:
                    rate = 2e-6 * macs / us
                    print(
                        f"{rows:4} {case.name:11s} {us:8.1f} us {rate:6.0f} TFLOP/s "
                        f"{'*' if tile == ours else ' '} {brief(tile)}"
                    )
            figures.setdefault("sweep", []).extend(
                {"rows": rows, "case": case.name, "us": us, **asdict(tile)} for us, tile in timed
            )
        print(f"{rows:4} rows: the best of each, once: {total:.0f} us", flush=True)
    return True

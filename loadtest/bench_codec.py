"""Times the codec's streaming decoder alone: milliseconds a frame by rows and frames a call.

    python -P -m shoal.loadtest.bench_codec [--model DIR] [--threads 1]      on the CPU
    python -P -m shoal.loadtest.bench_codec --gpu [--json FILE] [--quick]
    python -P -m shoal.loadtest.bench_codec --bits 64,4 [--bits 256,1]
    python -P -m shoal.loadtest.bench_codec --ring
    python -P -m shoal.loadtest.bench_codec --sweep [--sweep-rows 64,1] [--only NAME,NAME]
    python -P -m shoal.loadtest.bench_codec --pair

All but the first, which may be one, run on a GPU (uninstalled with PYTHONPATH=.typings), with a
codec of S2's shape and random weights: plain torch against our kernels; the first kernel whose
output for a row differs between alone and among so many rows, of so many frames; attention over
the ring alone, checked and timed; the fastest tile of each convolution; and decode steps of S2
Pro's shape with the codec beside them.

The one kind of file in ``loadtest`` that imports the engine: a timing of a single part has no wire
to go through. Prints a table, the time a frame takes early and late in a stream, and whether a
row's samples are the same bits alone as beside neighbours.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import shoal.engine
from shoal.engine.codec import Codec, StreamDecoder, load_codec

SHAPES = ((1, 1), (1, 2), (1, 4), (1, 8), (6, 1), (6, 2), (6, 4), (6, 8))
"""(rows, frames a call)."""
STREAMS = 6


def random_codes(codec: Codec, rows: int, frames: int, generator: torch.Generator) -> torch.Tensor:
    limits = torch.tensor(codec.config.code_limits)
    drawn = torch.rand(rows, frames, codec.codebooks, generator=generator)
    return (drawn * (limits + 1)).to(torch.int32)


def call_ms(codec: Codec, rows: int, frames: int, repeats: int) -> float:
    """Median over ``repeats`` calls."""
    generator = torch.Generator().manual_seed(0)
    decoder = StreamDecoder(codec, rows)
    keep = torch.zeros(rows, dtype=torch.bool)
    codes = random_codes(codec, rows, frames, generator)
    taken: list[float] = []
    for i in range(repeats + 5):
        began = time.perf_counter()
        decoder.decode(range(rows), codes, keep)
        if i >= 5:
            taken.append(time.perf_counter() - began)
    return 1e3 * statistics.median(taken)


def early_and_late_ms(codec: Codec) -> tuple[float, float]:
    """A frame's time in one row, median of frames 10 to 60 and of frames 1,000 to 1,050."""
    generator = torch.Generator().manual_seed(1)
    decoder = StreamDecoder(codec, 1)
    keep = torch.zeros(1, dtype=torch.bool)
    taken: list[float] = []
    for _ in range(1050):
        codes = random_codes(codec, 1, 1, generator)
        began = time.perf_counter()
        decoder.decode((0,), codes, keep)
        taken.append(time.perf_counter() - began)
    return 1e3 * statistics.median(taken[10:60]), 1e3 * statistics.median(taken[1000:])


def rows_that_differ(codec: Codec) -> list[tuple[int, int]]:
    """(rows, frames a call) of :data:`SHAPES` where a row alone gave other bits."""
    differ: list[tuple[int, int]] = []
    generator = torch.Generator().manual_seed(2)
    for rows, frames in SHAPES:
        together, alone = StreamDecoder(codec, rows), StreamDecoder(codec, rows)
        for _ in range(3):
            codes = random_codes(codec, rows, frames, generator)
            keep = torch.zeros(rows, dtype=torch.bool)
            samples = together.decode(range(rows), codes, keep)
            single = [alone.decode((r,), codes[r : r + 1], keep[:1])[0] for r in range(rows)]
            if not torch.equal(samples, torch.stack(single)):
                differ.append((rows, frames))
                break
    return differ


def on_gpu(args: argparse.Namespace) -> int:
    from . import bench_codec_bits, bench_codec_device, bench_codec_tiles  # these need Triton

    figures: dict[str, Any] = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "rows": list(bench_codec_device.ROWS),
    }
    print(f"{figures['device']}, torch {figures['torch']}")
    bench = bench_codec_device.Bench(figures) if args.gpu else None
    rows = tuple(int(r) for r in args.sweep_rows.split(","))
    stages: list[Callable[[], bool]] = []
    if bench is not None:
        stages += [bench.check, bench.floors, bench.kernels]
    if args.bits:
        shapes = [(int(rows), int(frames)) for rows, frames in (b.split(",") for b in args.bits)]
        stages.append(lambda: bench_codec_bits.rows_alone(shapes))
    if args.ring:
        from . import bench_codec_ring

        stages.append(bench_codec_ring.rings_alone)
    if args.sweep:
        stages.append(lambda: bench_codec_tiles.sweep(figures, rows, args.only))
    if bench is not None and not args.quick:
        stages.append(bench.calls)
    if args.pair:
        from . import bench_codec_pair

        stages.append(lambda: bench_codec_pair.pairs(figures))
    good = True
    for stage in stages:
        try:
            good &= stage()
        except Exception:  # one stage's failure must not cost the others' figures
            traceback.print_exc()
            good = False
        if args.json:
            args.json.write_text(json.dumps(figures, indent=1), encoding="utf-8")
    return 0 if good else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", type=Path, help="checkpoint; the built-in voice without it")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=40)
    parser.add_argument("--gpu", action="store_true", help="S2's shape, torch against our kernels")
    parser.add_argument("--quick", action="store_true", help="without the table of rows and frames")
    parser.add_argument(
        "--bits",
        action="append",
        metavar="ROWS,FRAMES",
        help="which kernel gives a row other bits alone than among ROWS rows",
    )
    parser.add_argument("--ring", action="store_true", help="attention over the ring alone")
    parser.add_argument("--sweep", action="store_true", help="time tiles of our kernels")
    parser.add_argument("--pair", action="store_true", help="decode steps with the codec beside")
    parser.add_argument("--sweep-rows", default="64,1")
    parser.add_argument(
        "--only", default="", help="sweep only layers whose name contains one of these"
    )
    parser.add_argument("--json", type=Path, help="where to write a GPU's figures")
    args = parser.parse_args()
    if args.gpu or args.bits or args.ring or args.sweep or args.pair:
        return on_gpu(args)
    torch.set_num_threads(args.threads)
    model = args.model or Path(str(shoal.engine.__file__)).parent / "builtin_voice"
    codec = load_codec(model)
    frame_ms = 1e3 * codec.frame_samples / codec.sample_rate
    print(
        f"{platform.processor() or platform.machine()}, torch {torch.__version__}, "
        f"{args.threads} thread(s); {codec.parameters / 1e6:.1f} M parameters, "
        f"{codec.frame_samples} samples ({frame_ms:.1f} ms) a frame"
    )
    share = 0.0
    print("rows  frames  ms a call  ms a frame  x real time")
    for rows, frames in SHAPES:
        ms = call_ms(codec, rows, frames, args.repeats)
        each = ms / (rows * frames)
        print(f"{rows:4}  {frames:6}  {ms:9.2f}  {each:10.3f}  {frame_ms / each:11.1f}")
        if (rows, frames) == (STREAMS, 4):
            share = STREAMS * each / frame_ms
    print(f"{STREAMS} streams in real time, 4 frames a call: {100 * share:.0f} % of this")
    early, late = early_and_late_ms(codec)
    print(
        f"a frame alone: {early:.2f} ms around frame 10, {late:.2f} ms around frame 1,000 "
        f"({late / early:.2f} x)"
    )
    differ = rows_that_differ(codec)
    print(f"rows whose bits depend on neighbours: {differ or 'none'}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

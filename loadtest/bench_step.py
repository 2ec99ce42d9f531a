"""Times decode steps of the CUDA runner beside their peers, and says where the time goes.

    python -P -m shoal.loadtest.bench_step [--out DIR] [--parts load,voice,speed,profile,peers]
        [--kv-dtype bf16,fp8]

*load*: seconds to put weights on the GPU in FP8, quantised, quantised and kept in a file, and taken
from it. *voice*: the precision gate of ``bench_precision`` in FP8, and again with scales misread,
which must fail. *speed*: random weights of S2 Pro's shape at a context of about 512; the frame step
alone and with the codec decoding beside it, the synchronising calls and allocations of steady
steps, capture time and peak memory. *profile*: microseconds by kernel in one replay, and bytes
against the floor. *peers*: the same frame in plain torch, block FP8 and under torch.compile, and a
layer's products in these and DeepGEMM. Prints tables, writes ``step.json``.
"""

# pyright: basic
# Torch's stubs are too loose for more.

from __future__ import annotations

import argparse
import gc
import json
import statistics
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from shoal.engine.config import EngineConfig
from shoal.engine.cuda.kv_pool import KvDtype
from shoal.engine.cuda.load import device_runner, placed_weights
from shoal.engine.random_model import S2_PRO, byte_tokenizer, random_codec, random_weights
from shoal.engine.runner import Runner, VocodeBatch

from . import bench_peers, bench_precision
from .bench_profile import by_kernel, bytes_read, read_bandwidth
from .bench_steps import CONTEXT, Steps

PARTS = ("load", "voice", "speed", "profile", "peers")
KV_DTYPES: tuple[KvDtype, ...] = ("bf16", "fp8")
WARM_STEPS = 8
TIMED_STEPS = 60
PROFILED_STEPS = 5
MOST_STEPS = WARM_STEPS + 4 * TIMED_STEPS + 8


def say(line: str) -> None:
    print(line, flush=True)


def loaded(
    dtype: str, pdl: bool, slots: int, out: dict[str, Any], kv_dtype: KvDtype = "bf16"
) -> Runner:
    """A runner of random weights, ready to step; says how long that took."""
    pages = slots * 14 + 64
    model = Path("random:s2-pro")
    config = EngineConfig(model, "cuda", dtype, kv_dtype=kv_dtype, slots=slots, pages=pages)
    torch.cuda.reset_peak_memory_stats()
    begun = time.perf_counter()
    device = torch.device("cuda")
    weights, codec = random_weights(S2_PRO, device), random_codec(device)
    runner = device_runner(
        config, S2_PRO, weights, byte_tokenizer(S2_PRO), codec, device, lambda _: None, pdl=pdl
    )
    del weights
    torch.cuda.synchronize()
    placed = time.perf_counter()
    runner.warm_up()
    torch.cuda.synchronize()
    captured = time.perf_counter()
    out["load"] = {
        "weights_s": round(placed - begun, 2),
        "compile_and_capture_s": round(captured - placed, 2),
        "peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 2),
        "page_bytes": runner.spec.page_bytes,
        "reserved_gib": round(torch.cuda.max_memory_reserved() / 2**30, 2),
    }
    say(f"{dtype}{' with PDL' if pdl else ''}, keys and values in {kv_dtype}: {out['load']}")
    return runner


def speed(steps: Steps, batches: Sequence[int]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for batch in batches:
        slots = tuple(range(batch))
        steps.begin(slots)
        steps.run(slots, WARM_STEPS)
        torch.cuda.set_sync_debug_mode("error")
        before = torch.cuda.memory_stats()["allocation.all.allocated"]
        alone = steps.run(slots, TIMED_STEPS)
        allocations = torch.cuda.memory_stats()["allocation.all.allocated"] - before
        torch.cuda.set_sync_debug_mode("default")
        beside, codec = with_codec(steps, slots)
        row = {
            "batch": batch,
            "step_ms": round(statistics.median(alone) * 1e3, 3),
            "step_p99_ms": round(sorted(alone)[int(0.99 * len(alone))] * 1e3, 3),
            "with_codec_ms": round(statistics.median(beside) * 1e3, 3),
            "codec_ms_per_frame_step": round(codec * 1e3, 3),
            "frames_per_s": round(batch / statistics.median(beside)),
            "allocations": allocations,
        }
        rows.append(row)
        say(f"  {row}")
    return rows


def with_codec(steps: Steps, slots: tuple[int, ...]) -> tuple[list[float], float]:
    """Step times while another thread decodes every row's frames as fast as steps make them."""
    runner = steps.runner
    frames = 4
    codes = np.random.default_rng(0).integers(
        0, 1000, (len(slots), frames, runner.spec.codebooks), dtype=np.int32
    )
    batch = VocodeBatch(slots, codes, np.zeros(len(slots), np.bool_))
    runner.vocode(batch)
    done = threading.Event()
    spent: list[float] = []
    budget = threading.Semaphore(0)

    def codec() -> None:
        while not done.is_set():
            if budget.acquire(timeout=0.05):
                begun = time.perf_counter()
                runner.vocode(batch)
                spent.append((time.perf_counter() - begun) / frames)

    thread = threading.Thread(target=codec)
    thread.start()

    def each(index: int) -> None:
        if index % frames == 0:
            budget.release()

    times = steps.run(slots, TIMED_STEPS, each)
    done.set()
    thread.join()
    return times, statistics.median(spent) if spent else 0.0


def where_time_goes(
    steps: Steps,
    dtype: str,
    batches: Sequence[int],
    bandwidth: float,
    kv_dtype: KvDtype = "bf16",
) -> list[dict[str, Any]]:
    """Kernels of a step, and its bytes against what memory could deliver."""
    found: list[dict[str, Any]] = []
    for batch in batches:
        slots = tuple(range(batch))
        steps.begin(slots)
        alone = statistics.median(steps.run(slots, TIMED_STEPS))
        kernels = by_kernel(lambda at=slots: steps.run(at, PROFILED_STEPS), PROFILED_STEPS)
        must = bytes_read(S2_PRO, dtype, batch, CONTEXT + TIMED_STEPS, kv_dtype)
        floor = sum(must.values()) / bandwidth
        row = {
            "batch": batch,
            "step_ms": round(alone * 1e3, 3),
            "kernels_ms": round(sum(kernel["us"] for kernel in kernels) / 1e3, 3),
            "floor_ms": round(floor * 1e3, 3),
            "times_the_floor": round(alone / floor, 2),
            "read_tb_s": round(sum(must.values()) / alone * 1e-12, 2),
            "bytes": must,
        }
        say(f"  {row}")
        for kernel in kernels[:16]:
            say(
                f"    {kernel['kernel']:48s} {kernel['launches']:7.1f} x"
                f" {kernel['us']:9.1f} us  {kernel['share']:6.1%}"
            )
        found.append({**row, "kernels": kernels})
    return found


def load_times() -> dict[str, float]:
    """Seconds until FP8 weights are on the device, from bf16 ones that are."""
    device, tokenizer = torch.device("cuda"), byte_tokenizer(S2_PRO)
    weights = random_weights(S2_PRO, device)
    times: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in ("first", "quantised", "quantised and kept", "taken from the file"):
            kept = Path(folder) if name in ("quantised and kept", "taken from the file") else None
            torch.cuda.synchronize()
            begun = time.perf_counter()
            placed = placed_weights(S2_PRO, weights, tokenizer, "fp8", device, say, cache_dir=kept)
            torch.cuda.synchronize()
            times[name] = round(time.perf_counter() - begun, 3)
            del placed
            gc.collect()
    torch.cuda.empty_cache()
    say(f"FP8 weights on the device: {times}")
    return times


def voice(out: Path | None) -> tuple[bool, dict[str, int]]:
    """Exit codes of the precision gate, and whether they are what they should be."""
    where = [] if out is None else ["--out", str(out)]
    codes: dict[str, int] = {}
    for name, words, expected in (
        ("fp8", ["--dtype", "fp8", *where], 0),
        ("fp8, fp8 keys", ["--dtype", "fp8", "--kv-dtype", "fp8"], 0),
        ("fp8, scales misread", ["--dtype", "fp8", "--plant-scales", "--sentences", "4"], 1),
        ("mxfp8", ["--dtype", "mxfp8", "--sentences", "8"], 0),
        ("random", ["--model", "random:s2-pro", "--sentences", "4"], 0),
    ):
        codes[name] = bench_precision.main(words)
        say(f"  {name}: exit code {codes[name]}, expected {expected}")
        gc.collect()
        torch.cuda.empty_cache()
    right = codes["fp8"] == codes["fp8, fp8 keys"] == codes["mxfp8"] == codes["random"] == 0
    return right and codes["fp8, scales misread"] == 1, codes


def main() -> int:
    parser = argparse.ArgumentParser(description="time decode steps on a GPU beside their peers")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--batches", default="1,16,64,128,256")
    parser.add_argument("--profiled", default="1,64,256", help="batches to take apart by kernel")
    parser.add_argument("--compared", default="1,64,256", help="batches that peers run")
    parser.add_argument("--dtypes", default="fp8+pdl,bf16", help="+pdl: programmatic launch")
    parser.add_argument(
        "--kv-dtype", default="bf16", help="of keys and values: bf16, fp8, or bf16,fp8 in turn"
    )
    args = parser.parse_args()
    parts = args.parts.split(",")
    if set(args.kv_dtype.split(",")) - set(KV_DTYPES):
        parser.error(f"no --kv-dtype is called {args.kv_dtype!r}; there are bf16 and fp8")
    if unknown := sorted(set(parts) - set(PARTS)):
        parser.error(f"no part is called {unknown[0]!r}; there are {', '.join(PARTS)}")
    batches, profiled, compared = (
        [int(part) for part in text.split(",")]
        for text in (args.batches, args.profiled, args.compared)
    )
    out: dict[str, Any] = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    passed = True

    def keep() -> None:
        if args.out:
            args.out.mkdir(parents=True, exist_ok=True)
            (args.out / "step.json").write_text(json.dumps(out, indent=1))

    if "load" in parts:
        out["load_s"] = load_times()
        keep()
    if {"speed", "profile"} & set(parts):
        out["read_tb_s"] = round(read_bandwidth() * 1e-12, 3)
        say(f"memory reads at {out['read_tb_s']} TB/s")
        kinds = set(args.kv_dtype.split(","))
        pairs: list[tuple[str, KvDtype]] = [
            (name, kind) for name in args.dtypes.split(",") for kind in KV_DTYPES
        ]
        for name, kv_dtype in pairs:
            if kv_dtype not in kinds:
                continue
            dtype, pdl = name.removesuffix("+pdl"), name.endswith("+pdl")
            held: dict[str, Any] = {}
            out[name if kv_dtype == "bf16" else f"{name}, {kv_dtype} keys"] = held
            runner = loaded(dtype, pdl, max(batches), held, kv_dtype)
            steps = Steps(runner, MOST_STEPS)
            if "speed" in parts:
                held["rows"] = speed(steps, batches)
                keep()
            if "profile" in parts:
                bandwidth = out["read_tb_s"] * 1e12
                chosen = [batch for batch in profiled if batch <= max(batches)]
                held["profile"] = where_time_goes(steps, dtype, chosen, bandwidth, kv_dtype)
            runner.close()
            del runner, steps
            gc.collect()
            torch.cuda.empty_cache()
            keep()
    if "peers" in parts:
        device = torch.device("cuda")
        with torch.no_grad():
            say("peers: a frame")
            out["peer_frames"] = bench_peers.frames(S2_PRO, compared, CONTEXT, device)
            keep()
            say("peers: one layer's products")
            out["peer_chains"] = bench_peers.chains(S2_PRO.slow, compared, device)
        keep()
    if "voice" in parts:
        passed, out["gate"] = voice(args.out)
    keep()
    return 0 if passed else 1


if __name__ == "__main__":
    raise SystemExit(main())

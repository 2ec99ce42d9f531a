"""Where a decode step's time goes: by kernel, and against the bytes it must read.

Part of ``bench_step``. The times are of a replayed graph under torch's profiler, a kernel's from
its start to its end: with programmatic launch a kernel starts early and waits, so that they then
add up to more than the step.
"""

# pyright: basic, reportArgumentType=false
# Torch's stubs are too loose for more.

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import DeviceType  # pyright: ignore[reportPrivateImportUsage]
from torch.profiler import ProfilerActivity, profile

from shoal.engine.cuda.kv_pool import KvDtype, page_bytes
from shoal.engine.model.config import DualARConfig, StackConfig

VALUE_BYTES = {"bf16": 2.0, "fp8": 1.0 + 4 / (128 * 128), "mxfp8": 1.0 + 1 / 32}
"""A weight's, its share of a scale included."""


def by_kernel(steps: Callable[[], object], count: int) -> list[dict[str, Any]]:
    """Kernels that ``steps`` runs in ``count`` equal steps: launches and microseconds a step."""
    steps()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        steps()
        torch.cuda.synchronize()
    times: defaultdict[str, float] = defaultdict(float)
    launches: defaultdict[str, int] = defaultdict(int)
    for event in found.events() or ():
        if event.device_type != DeviceType.CUDA:
            continue
        name = short_name(event.name)
        times[name] += event.time_range.elapsed_us()
        launches[name] += 1
    total = sum(times.values()) or 1.0
    return [
        {
            "kernel": name,
            "launches": round(launches[name] / count, 1),
            "us": round(time / count, 1),
            "share": round(time / total, 3),
        }
        for name, time in sorted(times.items(), key=lambda item: -item[1])
    ]


def short_name(name: str) -> str:
    """A kernel's name without its template arguments and hashes, 48 characters at most."""
    name = re.sub(r"^void ", "", name)
    name = re.split(r"[<(]", name, maxsplit=1)[0]
    return name.split("::")[-1][:48] or "?"


def bytes_read(
    config: DualARConfig, dtype: str, rows: int, context: int, kv_dtype: KvDtype = "bf16"
) -> dict[str, int]:
    """What one step must read from memory at least: weights once a pass, keys and values once."""
    each = VALUE_BYTES[dtype]

    def layers(stack: StackConfig) -> int:
        attention = stack.qkv_dim * stack.dim + stack.dim * stack.heads * stack.head_dim
        return stack.layers * (attention + 3 * stack.dim * stack.ffn_dim)

    passes = config.codebooks - 1  # positions 0 and 1 share one
    slow, fast = config.slow, config.fast
    return {
        "slow_weights": round(each * layers(slow)),
        "fast_weights": round(each * layers(fast) * passes),
        "heads": round(each * config.codebook_size * (slow.dim + fast.dim * passes)),
        "keys_and_values": rows
        * context
        * page_bytes(slow.layers, slow.kv_heads, 1, slow.head_dim, kv_dtype),
    }


def read_bandwidth() -> float:
    """Bytes a second that a kernel reads at best, over 2 GiB."""
    import triton

    from .bench_kernels import read_kernel

    source = torch.randint(0, 100, (1 << 29,), dtype=torch.int32, device="cuda")
    target = torch.empty(1 << 22, dtype=torch.int32, device="cuda")
    programs, tile = 132 * 8, 2048
    count = source.numel() // (programs * tile)
    times = triton.testing.do_bench(
        lambda: read_kernel[(programs,)](source, target, TILE=tile, COUNT=count),
        return_mode="median",
    )
    return programs * tile * count * 4 / (float(times) * 1e-3)

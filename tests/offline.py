"""Every kernel, compiled for a GPU that is not there. Run as a script, with an architecture, in a
process where kernels are not interpreted: prints a line of JSON for each.

A stand-in for Triton's driver makes the launchers compile for that architecture and run nothing.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

HOPPER, BLACKWELL = 90, 120
SHARED_LIMIT = {HOPPER: 227 * 1024, BLACKWELL: 99 * 1024}


@dataclass(frozen=True, slots=True)
class Compiled:
    """One compiled kernel: its case, instructions found in the PTX, and what ptxas made of it."""

    case: str
    kernel: str
    instructions: dict[str, int]
    registers: int
    stack_bytes: int
    shared_bytes: int


INSTRUCTIONS = {
    "wgmma_fp8": r"wgmma\.mma_async\S*e4m3\.e4m3",
    "wgmma_bf16": r"wgmma\.mma_async\S*bf16\.bf16",
    "wgmma_f16": r"wgmma\.mma_async\S*f32\.f16\.f16",
    "wgmma": r"wgmma\.mma_async",
    "widened": r"cvt\.rn\.f16x2\.e4m3x2",
    "shuffled": r"\bprmt\.b32",
    "mma": r"\bmma\.sync",
    "mma_block_scaled": r"mma\.sync\S*kind::mxf8f6f4\S*block_scale\S*ue8m0",
    "tma": r"cp\.async\.bulk\.tensor",
    "cp_async": r"cp\.async\.c[ga]",
    "acq_rel": r"atom\.\S*acq_rel",
    "dependent_launch": r"griddepcontrol",
}


def resource_usage(cubin: bytes) -> tuple[int, int]:
    import triton

    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(tool), "-res-usage", file.name]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", text)
    assert found, text
    return int(found[1]), int(found[2])


class OfflineDevice:
    """Stands in for Triton's driver: compiles for ``architecture``, loads and launches nothing."""

    def __init__(self, architecture: int) -> None:
        from triton.backends.compiler import GPUTarget

        self.target = GPUTarget("cuda", architecture, 32)
        self.case = ""
        self.compiled: list[Compiled] = []
        self.utils = self
        self._ptx = ""

    def get_current_target(self) -> Any:
        return self.target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_device_properties(self, device: int) -> dict[str, int]:
        return {"max_shared_mem": SHARED_LIMIT[self.target.arch]}

    def launcher_cls(self, source: Any, metadata: Any) -> Callable[..., None]:
        return lambda *args: None

    def before_load(self, module: Any, function: Any, name: str, files: Any, key: str) -> None:
        self._ptx = next(Path(p).read_text() for n, p in files.items() if n.endswith(".ptx"))

    def load_binary(self, name: str, cubin: bytes, shared: int, device: int) -> tuple[Any, ...]:
        counts = {k: len(re.findall(p, self._ptx)) for k, p in INSTRUCTIONS.items()}
        registers, stack = resource_usage(cubin)
        found = {k: n for k, n in counts.items() if n}
        self.compiled.append(Compiled(self.case, name, found, registers, stack, shared))
        return None, None, registers, 0, 1024


def compile_cases(architecture: int, wanted: str = "") -> Iterator[Compiled]:
    """Run every case whose name contains ``wanted`` on an offline device."""
    from triton import knobs
    from triton.runtime.driver import driver

    device = OfflineDevice(architecture)
    driver.set_active(device)  # type: ignore[arg-type]
    knobs.runtime.kernel_load_start_hook = device.before_load
    for name, run in cases(architecture):
        if wanted in name:
            device.case = name
            device.compiled.clear()
            run()
            yield from device.compiled


def cases(architecture: int) -> Iterator[tuple[str, Callable[[], None]]]:
    yield from mx_cases(native=architecture == BLACKWELL)
    yield from wide_cases()
    if architecture == HOPPER:
        yield from gemm_cases()
        yield from attention_cases()
        yield from sampler_cases()
        yield from codec_cases()


def gemm_cases() -> Iterator[tuple[str, Callable[[], None]]]:
    """Every tile that the table has for S2 Pro's weights, and the row-wise kernels around them."""
    import torch

    from shoal.kernels.gemm import Tile, gemm_partials, gemm_rows
    from shoal.kernels.norm import NormedRows, add_norm, whole_norm
    from shoal.kernels.quantise import Fp8Rows, Fp8Weight, quantise
    from shoal.kernels.rounding import FP8
    from shoal.kernels.swiglu import swiglu
    from shoal.kernels.tiles import rows_tile, tile_for

    d, inner = 2560, 9728
    both = Fp8Weight(torch.empty(2 * inner, d, dtype=FP8), torch.empty(2 * inner // 128, d // 128))

    def partials(n: int, k: int, m: int, tile: Tile) -> None:
        weight = Fp8Weight(torch.empty(n, k, dtype=FP8), torch.empty(n // 128, k // 128))
        x = Fp8Rows.empty(m, k, "cpu")
        gemm_partials(x, weight, torch.empty(tile.splits, m, n), tile, pdl=True)

    for m in (1, 32, 64, 128, 256):
        for n, k in ((6144, d), (d, 4096)):
            yield f"gemm-{n}x{k}-{m}", lambda n=n, k=k, m=m: partials(n, k, m, tile_for(n, k, m))
        x = NormedRows.empty(m, d, "cpu")
        out = torch.empty(m, 2 * inner, dtype=torch.bfloat16)
        tile = rows_tile(m)
        yield f"gemm-rows-{m}", lambda x=x, o=out, t=tile: gemm_rows(x, both, o, t, eps=1e-6)
    long = Tile(128, 128, warps=8, stages=5, tokens_long=True)
    yield "gemm-long", lambda: partials(6144, d, 256, long)
    yield "gemm-copies", lambda: partials(6144, d, 1, Tile(16, 64, 4, tma=False))
    residual = torch.empty(16, d, dtype=torch.bfloat16)
    part = torch.empty(8, 16, d)
    normed, gated = NormedRows.empty(16, d, "cpu"), Fp8Rows.empty(16, inner, "cpu")
    wide = torch.empty(16, 2 * inner, dtype=torch.bfloat16)
    weight = residual[0].contiguous()
    yield "rows-norm", lambda: add_norm(residual, weight, normed, part, pdl=True)
    yield "rows-whole", lambda: whole_norm(residual, weight, residual, 1e-6, part)
    yield "rows-swiglu", lambda: swiglu(wide, gated)
    yield "rows-quantise", lambda: quantise(residual, normed.rows)


def wide_cases() -> Iterator[tuple[str, Callable[[], None]]]:
    """Every tile of prefill's bf16 products."""
    import torch

    from shoal.kernels.bf16_gemm import bf16_gemm, wide_tile_for
    from shoal.kernels.gemm import Tile

    def empty(rows: int, columns: int) -> torch.Tensor:
        return torch.empty(rows, columns, dtype=torch.bfloat16)

    for m in (32, 64, 128, 256):
        for n, k, kind in ((6144, 2560, torch.float32), (19456, 2560, torch.bfloat16)):
            out = torch.empty(wide_tile_for(n, k, m).splits, m, n, dtype=kind)
            yield (
                f"wide-{n}x{k}-{m}",
                lambda n=n, k=k, m=m, o=out: bf16_gemm(empty(m, k), empty(n, k), o),
            )
    x, weight, one = empty(128, 4096), empty(2560, 4096), torch.empty(1, 128, 2560)
    folded = Tile(128, 64, 1, 4, tokens_long=True)
    yield "wide-folded", lambda: bf16_gemm(x, weight, one, folded)


def attention_cases() -> Iterator[tuple[str, Callable[[], None]]]:
    import torch

    from shoal.kernels.attention import decode_attention
    from shoal.kernels.extend import extend_attention
    from shoal.kernels.fast_attention import fast_attention
    from shoal.kernels.heads import rope_tables, store_heads
    from shoal.kernels.kv import quantise_heads
    from shoal.kernels.norm import NormedRows
    from shoal.kernels.pages import Heads, Workspace
    from shoal.kernels.quantise import Fp8Rows

    m = 16
    weight = torch.empty(128, dtype=torch.bfloat16)
    heads = Heads(32, 8, 128, 1e-6, rope_tables(64, 128, 1e6, "cpu"), weight, weight)
    qkv = torch.empty(4, m, 6144)
    rows = NormedRows.empty(m, 2560, "cpu")
    pages = torch.empty(8, 8, 64, 128, dtype=torch.bfloat16)
    number = torch.zeros(m, dtype=torch.int32)
    table = torch.zeros(m, 16, dtype=torch.int32)
    prefix = torch.zeros(m, 2, dtype=torch.int32)
    work = Workspace.empty(m, heads, "cpu")
    out = Fp8Rows.empty(m, 4096, "cpu")
    queries = torch.empty(m, 32, 128, dtype=torch.bfloat16)
    tiles = table[:1, :3].contiguous()
    rope = ((weight, weight), heads.rope, table)
    for name, kept in (("attention", pages), ("attention-kv8", quantise_heads(pages))):
        where = (kept, kept, table, number, number)
        yield f"{name}-decode", lambda w=where: decode_attention(qkv, rows, heads, *w, work, out)
        yield (
            f"{name}-together",
            lambda w=where: decode_attention(qkv, rows, heads, *w, work, out, together=True),
        )
        yield (
            f"{name}-cascade",
            lambda w=where: decode_attention(
                qkv, rows, heads, *w, work, out, prefix=prefix, groups=table, pdl=True
            ),
        )
        yield (
            f"{name}-extend",
            lambda k=kept: extend_attention(queries, heads, k, k, table, tiles, out),
        )
        yield (
            f"{name}-store",
            lambda k=kept: store_heads(qkv, rows, *rope, k, k, queries, 1e-6, tiles=tiles),
        )
    fast = torch.empty(m, 8, 16, 128, dtype=torch.bfloat16)
    plain = Heads(32, 8, 128, 1e-6, heads.rope)
    yield "attention-fast", lambda: fast_attention(qkv, rows, plain, fast, fast, 3, out)
    two = Fp8Rows.empty(m, 4096, "cpu")
    yield "attention-fast2", lambda: fast_attention(qkv, rows, plain, fast, fast, 0, two, tokens=2)


def sampler_cases() -> Iterator[tuple[str, Callable[[], None]]]:
    import torch

    from shoal.kernels.embedding import embed
    from shoal.kernels.norm import NormedRows
    from shoal.kernels.sampler import FastInput, Sampling, SlowToken, sample
    from shoal.kernels.window import prev_tokens_shift_inplace

    m, d = 16, 2560
    number = torch.zeros(m, dtype=torch.int32)
    columns = torch.zeros(m, 11, dtype=torch.int32)
    row = torch.empty(m, d, dtype=torch.bfloat16)
    table = torch.empty(40960, d, dtype=torch.bfloat16)
    real = torch.empty(m)
    sampling = Sampling(real, real, number, number, number, number)
    normed = NormedRows.empty(m, d, "cpu")
    slow = SlowToken(row, row[0], torch.zeros(m, 10, dtype=torch.int32), 5, 3)
    target = FastInput(table, row, row[0], normed)
    logits = torch.empty(4, m, 4096)
    yield (
        "sample-slow",
        lambda: sample(
            logits, None, 1e-6, 0, number, sampling, columns, slow=slow, fast_input=target
        ),
    )
    yield (
        "sample-fast",
        lambda: sample(logits, normed, 1e-6, 2, number, sampling, columns, fast_input=target),
    )
    yield (
        "rows-embed",
        lambda: embed(columns, table, table, (5, 9), 3.0, row, norm_weight=row[0], normed=normed),
    )
    window = torch.zeros(m, 10, 11, dtype=torch.int32)
    yield "rows-window", lambda: prev_tokens_shift_inplace(window, columns)


def codec_cases() -> Iterator[tuple[str, Callable[[], None]]]:
    """The codec's convolutions at S2's size with the table's tiles, and the kernels around them."""
    import torch

    from shoal.kernels.codec_rows import depthwise_norm, embed_codes
    from shoal.kernels.conv import Steps
    from shoal.kernels.last_conv import last_conv
    from shoal.kernels.ring_attention import ring_attention
    from shoal.loadtest.bench_codec_tiles import CASES, chosen, prepared

    for case in CASES:
        # A unit of 192 channels is two kernels, for few rows alone.
        two = case.name in ("wide 192", "narrow 192")
        more = case.kind in ("wide", "deep", "chunked", "unit96")
        for rows in (1,) if two else (1, 64) if more else (64,):
            yield (
                f"codec-{case.name}-{rows}",
                lambda c=case, r=rows: prepared(c, r, "cpu")(chosen(c, r)),
            )
    half, real = torch.empty(2, 10, 1024, dtype=torch.float16), torch.empty(8, 1024)
    number = torch.zeros(2, dtype=torch.int64)
    turn = (torch.empty(2, 1, 32), torch.empty(2, 1, 32))
    ring = torch.empty(2, 2, 16, 128, 64, dtype=torch.float16)
    qkv = torch.empty(2, 3072)
    yield (
        "codec-rows-attention",
        lambda: ring_attention(qkv, turn, number, number, ring, half, pdl=True),
    )
    taps, row = (real[:7], real[0]), (real[0], real[0])
    steps = Steps(half, half.stride(0))
    yield "codec-rows-depthwise", lambda: depthwise_norm(steps, 2, 4, taps, row, half, pdl=True)
    books = number.view(1, 2).int()
    yield (
        "codec-rows-embed",
        lambda: embed_codes(books, real, number, number, real, half, real, pdl=True),
    )
    tapped = torch.empty(2, 26, 8)
    yield "codec-rows-last", lambda: last_conv(tapped, 7, real[0], 20, real, pdl=True)


def mx_cases(native: bool) -> Iterator[tuple[str, Callable[[], None]]]:
    import torch

    from shoal.kernels.mx_attention import MxCache, decode_mx, extend_mx, prefill_mx, store_mx
    from shoal.kernels.mxfp8 import Mx, gemm_mx, quantise_mx, swiglu_mx
    from shoal.kernels.pages import Heads, Workspace

    def mx(*shape: int) -> Mx:
        return Mx.empty(*shape, device="cpu")

    weight = mx(2560, 2560)
    for m in (1, 64, 128):
        out = torch.empty(m, 2560, dtype=torch.bfloat16)
        yield f"mx-gemm-{m}", lambda m=m, o=out: gemm_mx(mx(m, 2560), weight, o, native=native)
    rows = torch.empty(16, 5120, dtype=torch.bfloat16)
    yield "mx-quantise", lambda: quantise_mx(rows, mx(16, 5120))
    yield "mx-swiglu", lambda: swiglu_mx(rows, mx(16, 2560))
    queries, out = mx(64, 32, 128), torch.empty(64, 32, 128, dtype=torch.bfloat16)
    cache = MxCache(mx(8, 8, 64, 128), mx(8, 8, 64, 128))
    number = torch.zeros(64, dtype=torch.int32)
    table = torch.zeros(64, 16, dtype=torch.int32)
    work = Workspace.empty(64, Heads(32, 8, 128, 1e-6, (out, out)), "cpu")
    head = torch.empty(64, 8, 128, dtype=torch.bfloat16)
    yield "mx-store", lambda: store_mx(head, cache.keys, table, rows=(number, number))
    yield (
        "mx-prefill",
        lambda: prefill_mx(queries, mx(8, 512, 128), mx(8, 512, 128), out, native=native),
    )
    yield "mx-extend", lambda: extend_mx(queries, cache, number, 64, out, native=native)
    yield (
        "mx-decode",
        lambda: decode_mx(queries, cache, table, number, number, work, out, native=native),
    )


if __name__ == "__main__":
    for done in compile_cases(int(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else ""):
        sys.stdout.write(json.dumps(asdict(done)) + "\n")
        sys.stdout.flush()

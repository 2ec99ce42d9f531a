"""Which kernel of the codec gives a row other bits alone than among neighbours, if any does.

Both ways run kernel by kernel, and what each wrote for the row is compared: a residual unit's end
also where it is one kernel in one way and two in the other. Then both run as they always do, with
launches that overlap: bits that differ only there are a kernel that did not wait.
"""

from __future__ import annotations

import torch

from shoal.engine.codec import Codec, CodecConfig, StreamDecoder
from shoal.engine.codec.device_streams import DeviceStreams
from shoal.engine.codec.load import codec_of

from .bench_codec_device import random_codes, random_tensors

CALLS = 4
"""How many a stream has, one after the other."""


def written(
    streams: DeviceStreams, slots: torch.Tensor, codes: torch.Tensor, rows: list[int]
) -> list[dict[tuple[str, int], list[torch.Tensor]]]:
    """What the kernels of one call wrote for each of ``rows``: by name, and by which of that name.

    Kernels that end one and the same sum have one name, whatever became of what led to it.
    """
    count, frames, _ = codes.shape
    device = codes.device
    keep = torch.zeros(count, dtype=torch.bool, device=device)
    config = streams.network.config
    out = torch.empty(count, frames * config.frame_samples, device=device)
    found: list[dict[tuple[str, int], list[torch.Tensor]]] = [{} for _ in rows]
    times: dict[str, int] = {}
    for kernel in streams.kernels(slots, codes, keep, out):
        kernel.launch()
        name = kernel.name.removesuffix(" narrow") if "unit" in kernel.name else kernel.name
        times[name] = times.get(name, -1) + 1
        for row, parts in zip(rows, found, strict=True):
            parts[name, times[name]] = [
                whole.reshape(count, whole.numel() // count)[row].clone() for whole in kernel.writes
            ]
    return found


def differing(
    together: dict[tuple[str, int], list[torch.Tensor]],
    alone: dict[tuple[str, int], list[torch.Tensor]],
) -> str:
    """The first kernel that differs, in words; empty when none does."""
    for (name, time), parts in together.items():
        for i, (a, b) in enumerate(zip(parts, alone.get((name, time), []), strict=False)):
            unequal = a != b
            if bool(unequal.any()):
                worst = float((a.double() - b.double()).abs().max())
                return (
                    f"{name} ({time + 1}.), output {i}: {int(unequal.sum())} of {a.numel()} values "
                    f"differ, the first at {int(unequal.nonzero()[0])}, by up to {worst:.2e}"
                )
    return ""


def rows_alone(shapes: list[tuple[int, int]]) -> bool:
    """``shapes``: rows and frames a call. False when any bit differs."""
    device = torch.device("cuda")
    config = CodecConfig()
    codec = codec_of(config, random_tensors(config, device), device, kernels=True)
    good = True
    with torch.inference_mode():
        for rows, frames in shapes:
            good &= _kernel_by_kernel(codec, rows, frames) & _as_always(codec, rows, frames)
    return good


def _some(rows: int) -> list[int]:
    return sorted({0, rows // 3, rows // 2, rows - 1})


def _kernel_by_kernel(codec: Codec, rows: int, frames: int) -> bool:
    assert codec.network is not None
    together, alone = (DeviceStreams(codec.network, rows, codec.device) for _ in range(2))
    slots = torch.arange(rows, device=codec.device)
    some = _some(rows)
    for call in range(CALLS):
        codes = random_codes(codec, rows, frames, 20 + call)
        for row, parts in zip(some, written(together, slots, codes, some), strict=True):
            one = slice(row, row + 1)
            single = written(alone, slots[one], codes[one], [0])[0]
            words = differing(parts, single)
            if words:
                print(f"row {row} of {rows}, {frames} frame(s), call {call}: {words}")
                return False
    print(f"{rows} rows, {frames} frame(s): no kernel's output depends on neighbours", flush=True)
    return True


def _as_always(codec: Codec, rows: int, frames: int) -> bool:
    together, alone = StreamDecoder(codec, rows), StreamDecoder(codec, rows)
    keep = torch.zeros(rows, dtype=torch.bool)
    unequal = 0
    for call in range(CALLS):
        codes = random_codes(codec, rows, frames, 40 + call)
        sound = together.decode(range(rows), codes, keep)
        for row in range(rows):
            single = alone.decode((row,), codes[row : row + 1], keep[:1])
            unequal += not torch.equal(sound[row], single[0])
    print(f"{rows} rows, {frames} frame(s), overlapped: {unequal} of {CALLS * rows} differ")
    return unequal == 0

"""The codec on a GPU: plain torch's convolutions against our kernels, in one run.

Times one call as a captured graph, by rows and frames; each kernel by itself; and how far both are
from a float32 decoder, with whether a row's samples are the same bits alone as among neighbours.
"""

from __future__ import annotations

import math
import statistics
import time
from typing import Any

import torch

from shoal.engine.codec import Codec, CodecConfig, StreamDecoder
from shoal.engine.codec.device_network import DeviceNetwork
from shoal.engine.codec.device_streams import DeviceStreams
from shoal.engine.codec.load import codec_of, expected_shapes

from .bench_clock import graph_ms

ROWS = (1, 16, 64, 128, 256)
FRAMES = (1, 2, 4)
Figures = dict[str, Any]


def random_tensors(config: CodecConfig, device: torch.device) -> dict[str, torch.Tensor]:
    """Weights of a size that keeps activations near 1."""
    generator = torch.Generator(device).manual_seed(0)
    tensors: dict[str, torch.Tensor] = {}
    for name, shape in expected_shapes(config).items():
        fan = math.prod(shape[1:]) if len(shape) > 1 else 1
        drawn = torch.empty(shape, device=device).normal_(generator=generator)
        if name.endswith("original0") or name.endswith("weight_g"):
            drawn = drawn.abs() * 0.3 + 0.5
        elif len(shape) > 1 and not name.endswith("alpha"):
            drawn = drawn / math.sqrt(max(1, fan))
        elif name.endswith("bias"):
            drawn = drawn * 0.1
        else:
            drawn = drawn.abs() * 0.3 + 0.5
        tensors[name] = drawn
    return tensors


def random_codes(codec: Codec, rows: int, frames: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    limits = torch.tensor(codec.config.code_limits)
    drawn = torch.rand(rows, frames, codec.codebooks, generator=generator)
    return (drawn * (limits + 1)).to(torch.int32).to(codec.device)


def call_ms(codec: Codec, rows: int, frames: int) -> float:
    decoder = StreamDecoder(codec, rows)
    slots = torch.arange(rows, device=codec.device)
    codes = random_codes(codec, rows, frames, 1)
    keep = torch.zeros(rows, dtype=torch.bool, device=codec.device)
    return graph_ms(lambda: decoder.decode_at(slots, codes, keep))


def plain_ms(codec: Codec, rows: int, frames: int) -> float:
    """Our kernels one after the other, without programmatic dependent launch."""
    assert codec.network is not None
    streams = DeviceStreams(codec.network, rows, codec.device, pdl=False)
    slots = torch.arange(rows, device=codec.device)
    codes = random_codes(codec, rows, frames, 1)
    keep = torch.zeros(rows, dtype=torch.bool, device=codec.device)
    with torch.inference_mode():
        return graph_ms(lambda: streams.run(slots, codes, keep))


def timings(old: Codec, new: Codec, figures: Figures) -> None:
    print("rows  frames  torch ms   ours ms  us a frame  ratio  not overlapped")
    for frames in FRAMES:
        for rows in ROWS:
            before, after = call_ms(old, rows, frames), call_ms(new, rows, frames)
            figures.setdefault("calls", []).append(
                {"rows": rows, "frames": frames, "torch_ms": before, "ours_ms": after}
            )
            plain = plain_ms(new, rows, frames) if frames == 1 else math.nan
            each = 1e3 * after / (rows * frames)
            print(
                f"{rows:4}  {frames:6}  {before:8.3f}  {after:8.3f}  {each:10.1f}  "
                f"{before / after:5.2f}  {plain:8.3f}",
                flush=True,
            )


def snr_db(wanted: torch.Tensor, got: torch.Tensor) -> float:
    error = (wanted.double() - got.double()).pow(2).mean()
    return float(10 * torch.log10(wanted.double().pow(2).mean() / error))


def correctness(exact: Codec, old: Codec, new: Codec, figures: Figures) -> bool:
    cuts = (1, 2, 4, 1, 8)
    rows = 3
    decoders = {name: StreamDecoder(c, rows) for name, c in
                (("exact", exact), ("torch", old), ("ours", new))}  # fmt: skip
    sound: dict[str, list[torch.Tensor]] = {name: [] for name in decoders}
    for i, cut in enumerate(cuts):
        codes = random_codes(exact, rows, cut, 10 + i)
        reset = torch.zeros(rows, dtype=torch.bool)
        for name, decoder in decoders.items():
            sound[name].append(decoder.decode(range(rows), codes, reset))
    whole = {name: torch.cat(parts, 1) for name, parts in sound.items()}
    level = float(whole["exact"].std())
    figures["rms"] = level
    for name in ("torch", "ours"):
        figures[f"snr_{name}_db"] = snr_db(whole["exact"], whole[name])
    print(f"rms {level:.3f}; SNR against float32: torch fp16 {figures['snr_torch_db']:.1f} dB, "
          f"ours {figures['snr_ours_db']:.1f} dB")  # fmt: skip
    equal = True
    keep = torch.zeros(256, dtype=torch.bool)
    for many in (3, 64, 256):
        for cut in (1, 4):
            together, alone = StreamDecoder(new, many), StreamDecoder(new, many)
            for i in range(2):
                codes = random_codes(new, many, cut, 20 + i)
                got = together.decode(range(many), codes, keep[:many])
                for r in (0, many // 2, many - 1):
                    single = alone.decode((r,), codes[r : r + 1], keep[:1])
                    if not torch.equal(got[r], single[0]):
                        worst = float((got[r] - single[0]).abs().max())
                        print(f"row {r} of {many}, {cut} frames: other bits, by {worst:.2e}")
                        equal = False
    split, joint = StreamDecoder(new, 1), StreamDecoder(new, 1)
    codes = random_codes(new, 1, 8, 30)
    pieces = [split.decode((0,), codes[:, t : t + 1], keep[:1]) for t in range(8)]
    same_cut = torch.equal(torch.cat(pieces, 1), joint.decode((0,), codes, keep[:1]))
    figures["row_bits_fixed"], figures["cut_bits_fixed"] = equal, same_cut
    print(f"row alone = among neighbours: {equal}; frame by frame = at once: {same_cut}")
    return equal and figures["snr_ours_db"] > min(45.0, figures["snr_torch_db"] - 1)


def by_kernel(new: Codec, rows: int, frames: int, figures: Figures) -> None:
    """Each kernel of a call by itself, its buffers warm in the cache where they fit."""
    assert new.network is not None
    streams = DeviceStreams(new.network, rows, new.device)
    slots = torch.arange(rows, device=new.device)
    codes = random_codes(new, rows, frames, 1)
    keep = torch.zeros(rows, dtype=torch.bool, device=new.device)
    out = torch.empty(rows, frames * new.frame_samples, device=new.device)
    totals: dict[str, list[float]] = {}
    with torch.inference_mode():
        streams.run(slots, codes, keep)
        for kernel in list(streams.kernels(slots, codes, keep, out)):
            four = [kernel.launch] * 4
            us = 1e3 * graph_ms(lambda four=four: [launch() for launch in four], 0.01) / 4
            totals.setdefault(kernel.name, []).append(us)
    total = sum(map(sum, totals.values()))
    print(f"kernels of {rows} rows, {frames} frame(s): {total:.0f} us one by one")
    for name, each in totals.items():
        print(f"  {name:24s} {len(each):3} x {statistics.mean(each):7.1f} us = {sum(each):7.1f}")
        figures.setdefault(f"kernels_{rows}x{frames}", []).append(
            {"name": name, "count": len(each), "us": sum(each)}
        )


def floors(network: DeviceNetwork, rows: int, figures: Figures) -> None:
    """What a frame of ``rows`` streams has to do at least: products, and bytes of weights (once),
    of state (read and written) and of the layers' outputs (written and read)."""
    config = network.config
    latent, shape = config.quantizer.latent_dim, config.pre_post
    parts: dict[str, list[float]] = {}

    def count(part: str, weights: int, steps: int, kept: float, passed: float) -> None:
        """Weights, all products of which are used in ``steps`` steps; values kept of a stream, and
        values of a stream that go to the next kernel."""
        row = parts.setdefault(part, [0.0, 0.0, 0.0, 0.0])
        for i, value in enumerate(
            (2.0 * weights * steps * rows, 2.0 * weights, 2 * kept * rows, 4 * passed * rows)
        ):
            row[i] += value

    for layer in network.layers:
        each = (layer.wqkv, layer.wo, layer.w13, layer.w2)
        ring = (shape.window + 1) * shape.dim * 2
        count("transformer", sum(w.values.numel() for w in each), 1, ring, 8 * shape.dim)
    length = 1
    for up, mix in network.mixes:
        length *= up.outputs // latent
        count("convnext", up.values.numel(), length * latent // up.outputs, 0, latent * length)
        wide = mix.widen.values.numel() + mix.narrow.values.numel()
        count("convnext", wide, length, 12 * latent, length * (latent * 2 + mix.widen.outputs))
    first = network.first
    count("first", first.values.numel(), length, 2 * first.past * latent, length * first.outputs)
    for i, block in enumerate(network.blocks, start=1):
        channels = block.units[0].wide.outputs
        count(f"block {i}", block.up.values.numel(), length, 2 * block.up.inputs, 0)
        length *= block.up.outputs // channels
        count(f"block {i}", 0, 0, 0, 2 * length * channels)
        for unit in block.units:
            weights = unit.wide.values.numel() + unit.narrow.values.numel()
            past = 2 * unit.wide.past * channels
            count(f"block {i}", weights, length, past, 2 * length * channels)
    print(f"floor of {rows} rows, 1 frame: part, GFLOP, MB of weights, state, outputs; "
          f"us at 790 TFLOP/s, at 4.3 TB/s")  # fmt: skip
    parts["all"] = [sum(column) for column in zip(*parts.values(), strict=True)]
    for part, (flop, weights, kept, passed) in parts.items():
        moved = weights + kept + passed
        print(f"  {part:12s} {flop / 1e9:7.1f} {weights / 1e6:7.1f} {kept / 1e6:7.1f} "
              f"{passed / 1e6:7.1f}  {flop / 790e6:7.1f} {moved / 4.3e6:7.1f}")  # fmt: skip
    figures[f"floor_{rows}"] = parts


class Bench:
    """The three decoders of one random codec of S2's shape, and what is measured on them."""

    def __init__(self, figures: Figures) -> None:
        device = torch.device("cuda")
        # As the runner has it: cuDNN looks for the fastest convolution of each shape.
        torch.set_float32_matmul_precision("high")
        torch.backends.cudnn.allow_tf32 = True
        torch.backends.cudnn.benchmark = True
        self._figures = figures
        config = CodecConfig()
        tensors = random_tensors(config, device)
        began = time.perf_counter()
        self._new = codec_of(config, tensors, device, kernels=True)
        torch.cuda.synchronize()
        figures["prepare_s"] = time.perf_counter() - began
        self._old = codec_of(config, tensors, device, kernels=False)
        self._exact = codec_of(config, tensors, device, compute=torch.float32, kernels=False)

    def check(self) -> bool:
        began = time.perf_counter()
        good = correctness(self._exact, self._old, self._new, self._figures)
        print(f"checked in {time.perf_counter() - began:.0f} s, compiling included", flush=True)
        return good

    def floors(self) -> bool:
        assert self._new.network is not None
        for rows in (64, 1):
            floors(self._new.network, rows, self._figures)
        return True

    def kernels(self) -> bool:
        for rows, frames in ((64, 1), (1, 1), (256, 1)):
            by_kernel(self._new, rows, frames, self._figures)
        return True

    def calls(self) -> bool:
        timings(self._old, self._new, self._figures)
        return True

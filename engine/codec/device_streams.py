"""Streams of the codec on a GPU: their state, the workspace of one call, and the order of kernels.

Owns which buffer every layer reads and writes. A call is a fixed list of launches for its number of
rows and frames, without allocation once that shape has run, so it can be captured. One thread: the
codec's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import prod

import torch
from torch import Tensor

from shoal.kernels.codec_rows import depthwise_norm, embed_codes
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
)
from shoal.kernels.conv_tiles import SCRATCH_TILES, SCRATCH_VALUES, fuses, tile_for
from shoal.kernels.last_conv import STEP, last_conv
from shoal.kernels.ring_attention import ring_attention
from shoal.kernels.tails import TailPlace, begin, load_tails, save_tails, tail_table

from .device_network import Block, DeviceNetwork, Mix

PASS_FRAMES = 256
"""Rows times frames that go through the network at once: bounds the workspace (about 5 MB each at
S2's size)."""

_ALIGN = 64

Launch = Callable[[], None]


@dataclass(frozen=True, slots=True, eq=False)
class Padded:
    """[rows, past + length, channels] fp16, whose first ``past`` steps are a tail."""

    data: Tensor
    past: int

    @property
    def fresh(self) -> Steps:
        """The new steps, to be written."""
        return Steps(self.data[:, self.past :], self.data.stride(0))


@dataclass(slots=True, eq=False)
class _Layout:
    """Hands out the workspace from its start; without one it only counts."""

    work: Tensor | None
    used: int = 0
    flat: int = 0
    places: list[TailPlace] = field(default_factory=list[TailPlace])

    def take(self, *shape: int) -> Tensor:
        start = self.used
        self.used += -(-prod(shape) // _ALIGN) * _ALIGN
        if self.work is None:
            return torch.empty(shape, dtype=torch.float16, device="meta")
        return self.work[start : start + prod(shape)].view(shape)

    def padded(self, rows: int, past: int, length: int, channels: int) -> Padded:
        start = self.used
        data = self.take(rows, past + length, channels)
        if past:
            self.places.append(
                TailPlace(
                    self.flat,
                    past * channels,
                    start,
                    (past + length) * channels,
                    length * channels,
                )
            )
            self.flat += past * channels
        return Padded(data, past)


def whole(data: Tensor) -> Steps:
    """Rows of steps without a tail."""
    return Steps(data, data.stride(0))


class Pass:
    """Buffers and launches of ``rows`` streams, ``frames`` each."""

    def __init__(
        self,
        network: DeviceNetwork,
        rows: int,
        frames: int,
        layout: _Layout,
        wide: Tensor,
        tiles: Callable[..., Tile],
        scratch: Scratch | None = None,
        pdl: bool = False,
    ) -> None:
        self._network, self._layout, self._tiles = network, layout, tiles
        self._scratch, self._pdl = scratch, pdl
        self.rows, self.frames = rows, frames
        m, dim = rows * frames, network.config.pre_post.dim
        halves = network.config.pre_post.head_dim // 2
        self._x = wide[: m * dim].view(m, dim)
        at = m * dim
        self._qkv = wide[at : at + 3 * m * dim].view(m, 3 * dim)
        at += 3 * m * dim
        self.turn = tuple(
            wide[at + i * m * halves : at + (i + 1) * m * halves].view(rows, frames, halves)
            for i in range(2)
        )
        at += 2 * m * halves
        self._squares = [wide[at : at + m].view(1, m)]
        for weight in (network.layers[0].wo, network.layers[0].w2):
            at += self._squares[-1].numel()
            groups = -(-dim // tiles(weight, m).columns)
            self._squares.append(wide[at : at + groups * m].view(groups, m))
        self.launches: list[tuple[str, Launch]] = []
        self._build()

    @staticmethod
    def wide_floats(network: DeviceNetwork, m: int) -> int:
        """fp32 values that a pass of ``m`` rows times frames takes."""
        shape = network.config.pre_post
        return m * (4 * shape.dim + shape.head_dim + 1 + 2 * (shape.dim // 16))

    def _conv(self, name: str, a: Tensor, weight: ConvWeight, length: int, **how: object) -> None:
        kind = {"glu": how.get("act") == GLU, "unit": how.get("unit") is not None}
        tile = self._tiles(weight, self.rows * length, **kind)
        more = {"scratch": self._scratch, "pdl": self._pdl}
        self.launches.append((name, lambda: conv(a, weight, length, tile, **how, **more)))

    def _build(self) -> None:
        net, layout, rows = self._network, self._layout, self.rows
        latent = net.config.quantizer.latent_dim
        m, dim = self._x.shape
        self._half = layout.take(m, dim)
        self._mixed = layout.take(m, dim)
        self._inner = layout.take(m, net.config.pre_post.intermediate)
        length = self.frames
        x = self._half.view(rows, length, dim)
        for i, (up, mix) in enumerate(net.mixes):
            factor = up.outputs // latent
            tail = layout.padded(rows, mix.taps[0].shape[0] - 1, length * factor, latent)
            norm = None if i else self._normed_by(2)
            self._conv(f"upsample {i}", x, up, length, normed=norm, out=tail.fresh)
            length *= factor
            last = i == len(net.mixes) - 1
            target = layout.padded(rows, net.first.past if last else 0, length, latent)
            self._mix(f"convnext {i}", tail, mix, length, target)
            x = target.data
        snaked = layout.padded(rows, net.blocks[0].up.past, length, net.config.decoder_dim)
        self._conv("first", x, net.first, length, alpha=net.first_after, snaked=snaked.fresh)
        for i, block in enumerate(net.blocks):
            following = net.blocks[i + 1].up.past if i + 1 < len(net.blocks) else None
            snaked, length = self._block(f"block {i + 1}", block, snaked, length, following)
        self._tapped, self._length = snaked, length

    def _mix(self, name: str, a: Padded, mix: Mix, length: int, target: Padded) -> None:
        rows, channels = self.rows, a.data.shape[2]
        y = self._layout.take(rows, length, channels)
        inner = self._layout.take(rows, length, mix.widen.outputs)
        steps = Steps(a.data, a.data.stride(0))
        self.launches.append(
            (
                f"{name} depthwise",
                lambda: depthwise_norm(steps, rows, length, mix.taps, mix.norm, y, pdl=self._pdl),
            )
        )
        self._conv(f"{name} widen", y, mix.widen, length, act=GELU, out=whole(inner))
        self._conv(f"{name} narrow", inner, mix.narrow, length, residual=a.fresh, out=target.fresh)

    def _block(
        self, name: str, block: Block, a: Padded, length: int, past: int | None
    ) -> tuple[Padded, int]:
        """Returns what follows and its length: snaked behind ``past`` steps, or for the last block
        (None) the products of its snake with the last convolution's taps."""
        rows, layout = self.rows, self._layout
        channels = block.units[0].wide.outputs
        factor = block.up.outputs // channels
        out_length = length * factor
        x = layout.take(rows, out_length, channels)
        s = layout.padded(rows, block.units[0].wide.past, out_length, channels)
        self._conv(
            f"{name} up",
            a.data,
            block.up,
            length,
            act=PLAIN,
            out=whole(x),
            alpha=block.after,
            snaked=s.fresh,
        )
        fused = fuses(channels, rows * out_length)
        h = None if fused else layout.take(rows, out_length, channels)
        for i, unit in enumerate(block.units):
            last = i == len(block.units) - 1
            ends: dict[str, object] = {
                "residual": whole(x),
                "out": None if last else whole(x),
                "alpha": unit.after,
            }
            if last and past is None:
                # fp32, in the place of two fp16 each.
                net = self._network
                target = layout.padded(rows, net.last_taps - 1, out_length, 2 * STEP)
                target = Padded(target.data.view(torch.float32), target.past)
                ends |= {"taps": net.last, "tapped": target.fresh}
            else:
                after = block.units[i + 1].wide.past if not last else past or 0
                target = layout.padded(rows, after, out_length, channels)
                ends["snaked"] = target.fresh
            if h is None:
                self._conv(
                    f"{name} unit {i}",
                    s.data,
                    unit.wide,
                    out_length,
                    act=SNAKE,
                    unit=unit.narrow,
                    **ends,
                )
            else:
                at = f"{name} unit {i}"
                self._conv(f"{at} wide", s.data, unit.wide, out_length, act=SNAKE, out=whole(h))
                self._conv(f"{at} narrow", h, unit.narrow, out_length, **ends)
            s = target
        return s, out_length

    def attend(self, slots: Tensor, now: Tensor, rings: Tensor) -> Iterator[tuple[str, Launch]]:
        """The transformer's launches, from ``x`` and its norm in the workspace."""
        net, shape = self._network, self._network.config.pre_post
        m, dim = self._x.shape

        def product(a: Tensor, weight: ConvWeight, out: Tensor, **how: object) -> Launch:
            tile = self._tiles(weight, m, glu=how.get("act") == GLU)
            target = Steps(out, out.shape[1])
            more = {"scratch": self._scratch, "pdl": self._pdl}
            return lambda: conv(a[None], weight, m, tile, out=target, **how, **more)

        def onto(which: int) -> dict[str, object]:
            return {
                "residual": Steps(self._x, dim),
                "halved": Steps(self._half, dim),
                "squares": self._squares[which],
            }

        for i, layer in enumerate(net.layers):
            before = self._normed_by(2 if i else 0)
            yield "qkv", product(self._half, layer.wqkv, self._qkv, normed=before)
            ring = rings[i]
            yield (
                "attention",
                lambda ring=ring: ring_attention(
                    self._qkv, self.turn, slots, now, ring, shape.heads, self._mixed, pdl=self._pdl
                ),
            )
            yield "wo", product(self._mixed, layer.wo, self._x, **onto(1))
            after = self._normed_by(1)
            yield "w13", product(self._half, layer.w13, self._inner, act=GLU, normed=after)
            yield "w2", product(self._inner, layer.w2, self._x, **onto(2))

    def _normed_by(self, which: int) -> Normed:
        """By the sums of squares of the embedding (0), of ``wo`` (1) or of ``w2`` (2)."""
        return Normed(self._squares[which], self._network.config.pre_post.norm_eps)

    def embed(self, codes: Tensor) -> None:
        table, first, last = self._network.books
        squares = self._squares[0]
        embed_codes(codes, table, first, last, self._x, self._half, squares, pdl=self._pdl)

    def sound(self, out: Tensor) -> None:
        net = self._network
        last_conv(self._tapped.data, net.last_taps, net.last_bias, self._length, out, pdl=self._pdl)


class DeviceStreams:
    """State of ``max_slots`` streams and what decodes them. A slot never reset is at its start."""

    def __init__(
        self,
        network: DeviceNetwork,
        max_slots: int,
        device: torch.device,
        *,
        pass_frames: int = PASS_FRAMES,
        tiles: Callable[..., Tile] = tile_for,
        pdl: bool = True,
    ) -> None:
        """``pdl``: programmatic dependent launch, a kernel's programs are placed while the one
        before still runs (on a GPU)."""
        self._network, self._device, self._tiles = network, device, tiles
        self._pdl = pdl and device.type == "cuda"
        self._scratch = Scratch.empty(device, SCRATCH_VALUES, SCRATCH_TILES)
        self._pass_frames = pass_frames
        shape = network.config.pre_post
        counted = _Layout(None)
        nothing = torch.empty(Pass.wide_floats(network, 1), device="meta")
        Pass(network, 1, 1, counted, nothing, tiles)
        self._tails = torch.zeros(max_slots, counted.flat, dtype=torch.float16, device=device)
        self._rings = torch.zeros(
            len(network.layers),
            2,
            max_slots,
            shape.window,
            shape.dim,
            dtype=torch.float16,
            device=device,
        )
        self._position = torch.zeros(max_slots, dtype=torch.int64, device=device)
        self._now = torch.zeros(max_slots, dtype=torch.int64, device=device)
        self._work = torch.empty(0, dtype=torch.float16, device=device)
        self._wide = torch.empty(0, device=device)
        self._passes: dict[tuple[int, int], tuple[Pass, Tensor, Tensor]] = {}

    @property
    def bytes_per_slot(self) -> int:
        halves = self._tails.numel() + self._rings.numel()
        return 2 * halves // len(self._position) + 16

    def run(self, slots: Tensor, codes: Tensor, reset: Tensor) -> Tensor:
        """``slots`` int64 [B], different; ``codes`` int [B, T, NQ]; ``reset`` bool [B]. Returns
        float32 [B, T * frame_samples]."""
        rows, frames, _ = codes.shape
        samples = self._network.config.frame_samples * frames
        out = torch.empty(rows, samples, device=self._device)
        self.run_into(slots, codes, reset, out)
        return out

    def run_into(self, slots: Tensor, codes: Tensor, reset: Tensor, out: Tensor) -> None:
        """:meth:`run` to ``out`` [B, T * frame_samples], contiguous: float32, or int16 up to
        32,767."""
        rows, frames, _ = codes.shape
        most = max(1, self._pass_frames // frames)
        for at in range(0, rows, most):
            part = slice(at, min(rows, at + most))
            for _, launch in self.launches(slots[part], codes[part], reset[part], out[part]):
                launch()

    def launches(
        self, slots: Tensor, codes: Tensor, reset: Tensor, out: Tensor
    ) -> Iterator[tuple[str, Launch]]:
        """The kernels of one pass by name, in order."""
        rows, frames, _ = codes.shape
        sized, table, work = self._sized(rows, frames)
        now = self._now[:rows]
        flat = self._tails
        where = (slots, reset, self._position, now, self._network.frequency, sized.turn)
        yield "begin", lambda: begin(*where)
        yield "load tails", lambda: load_tails(flat, work, table, slots, reset, self._pdl)
        yield "embed", lambda: sized.embed(codes.reshape(rows * frames, -1).contiguous())
        yield from sized.attend(slots, now, self._rings)
        yield from sized.launches
        yield "last", lambda: sized.sound(out)
        yield "save tails", lambda: save_tails(flat, work, table, slots, self._pdl)

    def _sized(self, rows: int, frames: int) -> tuple[Pass, Tensor, Tensor]:
        """A pass, its table of tails and its workspace.

        A pass keeps the workspace it was made with even when a larger one follows: a captured graph
        may point into it.
        """
        found = self._passes.get((rows, frames))
        if found is not None:
            return found
        network = self._network
        counted = _Layout(None)
        wide = Pass.wide_floats(network, rows * frames)
        Pass(network, rows, frames, counted, torch.empty(wide, device="meta"), self._tiles)
        if counted.used > self._work.numel():
            self._work = torch.zeros(counted.used, dtype=torch.float16, device=self._device)
        if wide > self._wide.numel():
            self._wide = torch.zeros(wide, device=self._device)
        layout = _Layout(self._work)
        sized = Pass(
            network, rows, frames, layout, self._wide, self._tiles, self._scratch, self._pdl
        )
        found = sized, tail_table(layout.places, self._device), self._work
        self._passes[rows, frames] = found
        return found

"""One pass of the codec's network on a GPU: its workspace and its kernels in order.

Owns which buffer every layer reads and writes, for one number of rows and of frames. Knows neither
the streams' state (``device_streams.py``) nor what is captured. One thread: the codec's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import prod
from typing import NamedTuple

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
from shoal.kernels.conv_tiles import WHOLE, fuses
from shoal.kernels.last_conv import STEP, last_conv
from shoal.kernels.ring_attention import ring_attention
from shoal.kernels.tails import TailPlace

from .device_network import Block, DeviceNetwork, Mix

_ALIGN = 64


class Kernel(NamedTuple):
    """One launch, and what it writes for streams: tensors [rows, ...] or [rows * frames, ...]."""

    name: str
    launch: Callable[[], None]
    writes: tuple[Tensor, ...] = ()


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
class Layout:
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
        layout: Layout,
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
            groups = -(-dim // tiles(weight, m, squares=True).columns)
            self._squares.append(wide[at : at + groups * m].view(groups, m))
        self.kernels: list[Kernel] = []
        self._build()

    @staticmethod
    def wide_floats(network: DeviceNetwork, m: int) -> int:
        """fp32 values that a pass of ``m`` rows times frames takes."""
        shape = network.config.pre_post
        return m * (4 * shape.dim + shape.head_dim + 1 + 2 * -(-shape.dim // 16))

    def _conv(self, name: str, a: Tensor, weight: ConvWeight, length: int, **how: object) -> None:
        self.kernels.append(self._product(name, a, weight, length, self.rows * length, **how))

    def _product(
        self, name: str, a: Tensor, weight: ConvWeight, length: int, steps: int, **how: object
    ) -> Kernel:
        """``steps``: of all rows, ``length`` in each row of ``a``."""
        kind = {which: which in how for which in ("unit", "taps", "squares")}
        tile = self._tiles(weight, steps, glu=how.get("act") == GLU, **kind)
        more = {"scratch": self._scratch, "pdl": self._pdl}
        targets = (how.get(which) for which in ("out", "snaked", "halved", "tapped"))
        writes = tuple(target.data for target in targets if isinstance(target, Steps))
        return Kernel(name, lambda: conv(a, weight, length, tile, **how, **more), writes)

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
        self.kernels.append(
            Kernel(
                f"{name} depthwise",
                lambda: depthwise_norm(steps, rows, length, mix.taps, mix.norm, y, pdl=self._pdl),
                (y,),
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
            at = f"{name} unit {i}"
            last = i == len(block.units) - 1
            ends: dict[str, object] = {"residual": whole(x), "alpha": unit.after}
            if not last:
                ends["out"] = whole(x)
            tapped = last and past is None and channels <= WHOLE
            if tapped:
                target = self._products_with_taps(out_length, STEP)
                ends |= {"taps": self._network.last, "tapped": target.fresh}
            else:
                after = block.units[i + 1].wide.past if not last else past or 0
                target = layout.padded(rows, after, out_length, channels)
                ends["snaked"] = target.fresh
            if h is None:
                how = {"act": SNAKE, "unit": unit.narrow}
                self._conv(at, s.data, unit.wide, out_length, **how, **ends)
            else:
                self._conv(f"{at} wide", s.data, unit.wide, out_length, act=SNAKE, out=whole(h))
                self._conv(f"{at} narrow", h, unit.narrow, out_length, **ends)
            s = target
            if last and past is None and not tapped:
                s = self._products_with_taps(out_length, self._network.last.outputs)
                self._conv("taps", target.data, self._network.last, out_length, out=s.fresh)
        return s, out_length

    def _products_with_taps(self, length: int, width: int) -> Padded:
        """fp32 [rows, past + length, width], each in the place of two fp16."""
        past = self._network.last_taps - 1
        target = self._layout.padded(self.rows, past, length, 2 * width)
        return Padded(target.data.view(torch.float32), past)

    def attend(self, slots: Tensor, now: Tensor, rings: Tensor) -> Iterator[Kernel]:
        """The transformer's kernels, from ``x`` and its norm in the workspace."""
        net = self._network
        m, dim = self._x.shape

        def product(name: str, a: Tensor, weight: ConvWeight, out: Tensor, **how: object) -> Kernel:
            target = Steps(out, out.shape[1])
            return self._product(name, a[None], weight, m, m, out=target, **how)

        def onto(which: int) -> dict[str, object]:
            return {
                "residual": Steps(self._x, dim),
                "halved": Steps(self._half, dim),
                "squares": self._squares[which],
            }

        for i, layer in enumerate(net.layers):
            before = self._normed_by(2 if i else 0)
            yield product("qkv", self._half, layer.wqkv, self._qkv, normed=before)
            ring = rings[i]
            yield Kernel(
                "attention",
                lambda ring=ring: ring_attention(
                    self._qkv, self.turn, slots, now, ring, self._mixed, pdl=self._pdl
                ),
                (self._mixed,),
            )
            yield product("wo", self._mixed, layer.wo, self._x, **onto(1))
            after = self._normed_by(1)
            yield product("w13", self._half, layer.w13, self._inner, act=GLU, normed=after)
            yield product("w2", self._inner, layer.w2, self._x, **onto(2))

    def _normed_by(self, which: int) -> Normed:
        """By the sums of squares of the embedding (0), of ``wo`` (1) or of ``w2`` (2)."""
        return Normed(self._squares[which], self._network.config.pre_post.norm_eps)

    def embed(self, codes: Tensor) -> Kernel:
        """``codes`` int [rows, frames, books]."""
        return Kernel("embed", lambda: self._embed(codes), (self._x, self._half))

    def _embed(self, codes: Tensor) -> None:
        codes = codes.reshape(self.rows * self.frames, -1).contiguous()
        table, first, last = self._network.books
        squares = self._squares[0]
        embed_codes(codes, table, first, last, self._x, self._half, squares, pdl=self._pdl)

    def sound(self, out: Tensor) -> Kernel:
        """``out`` [rows, samples]: float32, or int16 up to 32,767."""
        net = self._network
        what = (self._tapped.data, net.last_taps, net.last_bias, self._length, out)
        return Kernel("last", lambda: last_conv(*what, pdl=self._pdl), (out,))

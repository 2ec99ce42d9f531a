"""Streams of the codec on a GPU: what they keep between calls, and calls of any size.

A call is a fixed list of kernels for its number of rows and frames, without allocation once that
shape has run, so it can be captured. One thread: the codec's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from shoal.kernels.conv import Scratch, Tile
from shoal.kernels.conv_tiles import PASS_STEPS, SCRATCH_TILES, SCRATCH_VALUES, tile_for
from shoal.kernels.tails import TailTable, begin, load_tails, save_tails, tail_table

from .device_network import DeviceNetwork
from .device_pass import Kernel, Layout, Pass

PASS_FRAMES = PASS_STEPS
"""Rows times frames that go through the network at once: bounds the workspace (about 5 MB each at
S2's size)."""


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
        counted = Layout(None)
        nothing = torch.empty(Pass.wide_floats(network, 1), device="meta")
        Pass(network, 1, 1, counted, nothing, tiles)
        self._tails = torch.zeros(max_slots, counted.flat, dtype=torch.float16, device=device)
        self._rings = torch.zeros(
            len(network.layers),
            2,
            max_slots,
            shape.heads,
            shape.window,
            shape.head_dim,
            dtype=torch.float16,
            device=device,
        )
        self._position = torch.zeros(max_slots, dtype=torch.int64, device=device)
        self._now = torch.zeros(max_slots, dtype=torch.int64, device=device)
        self._work = torch.empty(0, dtype=torch.float16, device=device)
        self._wide = torch.empty(0, device=device)
        self._passes: dict[tuple[int, int], tuple[Pass, TailTable, Tensor]] = {}

    @property
    def network(self) -> DeviceNetwork:
        return self._network

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
        if frames > self._pass_frames:
            self._run_long(slots, codes, reset, out)
            return
        most = self._pass_frames // frames
        for at in range(0, rows, most):
            part = slice(at, min(rows, at + most))
            for kernel in self.kernels(slots[part], codes[part], reset[part], out[part]):
                kernel.launch()

    def _run_long(self, slots: Tensor, codes: Tensor, reset: Tensor, out: Tensor) -> None:
        """More frames than a pass takes, one stretch after the other."""
        at = 0
        for stretch in codes.split(self._pass_frames, 1):
            until = at + stretch.shape[1] * self._network.config.frame_samples
            part = torch.empty_like(out[:, at:until], memory_format=torch.contiguous_format)
            self.run_into(slots, stretch, reset, part)
            out[:, at:until] = part
            reset, at = torch.zeros_like(reset), until

    def kernels(self, slots: Tensor, codes: Tensor, reset: Tensor, out: Tensor) -> Iterator[Kernel]:
        """The kernels of one pass, in order."""
        rows, frames, _ = codes.shape
        sized, table, work = self._sized(rows, frames)
        now = self._now[:rows]
        flat = self._tails
        where = (slots, reset, self._position, now, self._network.frequency, sized.turn)
        yield Kernel("begin", lambda: begin(*where), (now, *sized.turn))
        load = (flat, work, table, slots, reset, self._pdl)
        yield Kernel("load tails", lambda: load_tails(*load))
        yield sized.embed(codes)
        yield from sized.attend(slots, now, self._rings)
        yield from sized.kernels
        yield sized.sound(out)
        yield Kernel("save tails", lambda: save_tails(flat, work, table, slots, self._pdl))

    def _sized(self, rows: int, frames: int) -> tuple[Pass, TailTable, Tensor]:
        """A pass, its table of tails and its workspace.

        A pass keeps the workspace it was made with even when a larger one follows: a captured graph
        may point into it.
        """
        found = self._passes.get((rows, frames))
        if found is not None:
            return found
        network = self._network
        counted = Layout(None)
        wide = Pass.wide_floats(network, rows * frames)
        Pass(network, rows, frames, counted, torch.empty(wide, device="meta"), self._tiles)
        if counted.used > self._work.numel():
            self._work = torch.zeros(counted.used, dtype=torch.float16, device=self._device)
        if wide > self._wide.numel():
            self._wide = torch.zeros(wide, device=self._device)
        layout = Layout(self._work)
        sized = Pass(
            network, rows, frames, layout, self._wide, self._tiles, self._scratch, self._pdl
        )
        found = sized, tail_table(layout.places, self._device), self._work
        self._passes[rows, frames] = found
        return found

"""The codec's attention over its ring alone: values and bits by rows and frames, then times.

Values against plain torch in float32 for streams that are at different places; bits of a row alone
against among neighbours, and of frames one by one against at once. Times as the codec's eight
layers, each with a ring of its own, so that nothing is in the cache for having been read just now.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from shoal.kernels.ring_attention import ring_attention

from .bench_clock import graph_ms

HEADS, WINDOW, HEAD_DIM = 16, 128, 64
DIM, PAIRS = HEADS * HEAD_DIM, HEAD_DIM // 2
LAYERS = 8
MOST = 256
CHECKED = tuple((rows, frames) for rows in (1, 64, 256) for frames in (1, 2, 4, 8))
TIMED = ((1, 1), (16, 1), (64, 1), (128, 1), (256, 1), (64, 4), (32, 8))
WAYS = ((4, 128), (4, 102), (2, 255), (8, 80))
"""Warps of a program and registers of a thread; the first is the codec's."""
TOLERANCE = 1e-3


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """What one call of so many rows and frames takes."""

    qkv: torch.Tensor
    turn: tuple[torch.Tensor, torch.Tensor]
    slots: torch.Tensor
    now: torch.Tensor

    def part(self, rows: slice, frames: slice) -> Call:
        """The same of some rows, and of some frames, none of which but the first were before."""
        count, length, pairs = self.turn[0].shape
        qkv = self.qkv.view(count, length, -1)[rows, frames].reshape(-1, 3 * DIM)
        turn = (t[rows, frames].reshape(-1, t[0, frames].shape[0], pairs) for t in self.turn)
        cos, sin = (t.contiguous() for t in turn)
        now = self.now[rows] + (frames.start or 0)
        return Call(qkv.contiguous(), (cos, sin), self.slots[rows].contiguous(), now)

    def run(self, ring: torch.Tensor, warps: int, registers: int) -> torch.Tensor:
        """fp16 [rows, frames, DIM]."""
        out = torch.full((len(self.qkv), DIM), torch.nan, dtype=torch.float16, device="cuda")
        self.launch(ring, out, warps, registers)
        return out.view(*self.turn[0].shape[:2], DIM)

    def launch(self, ring: torch.Tensor, out: torch.Tensor, warps: int, registers: int) -> None:
        ring_attention(self.qkv, self.turn, self.slots, self.now, ring, out,
                       warps=warps, registers=registers, pdl=True)  # fmt: skip


def call_of(rows: int, frames: int) -> Call:
    """Rows at their streams' start, in the first turn of the ring, and far beyond it."""
    generator = torch.Generator("cuda").manual_seed(rows + 1000 * frames)
    drawn = torch.randn(rows * frames, 3 * DIM, device="cuda", generator=generator)
    slots = torch.randperm(MOST, device="cuda", generator=generator)[:rows]
    row = torch.arange(rows, device="cuda")
    now = torch.where(row % 3 == 1, row * 7 % WINDOW, 1000 + 37 * row)
    now = torch.where(row % 3 == 2, row % 2, now)
    at = now[:, None] + torch.arange(frames, device="cuda")
    frequency = 10000.0 ** (-torch.arange(PAIRS, device="cuda") / PAIRS)
    angle = at[:, :, None].float() * frequency
    return Call(drawn, (angle.cos(), angle.sin()), slots, now)


def reference(call: Call, ring: torch.Tensor) -> torch.Tensor:
    """float32 [rows, frames, DIM]; nothing is written to ``ring``."""
    rows, frames, _ = call.turn[0].shape
    split = call.qkv.view(rows, frames, 3, HEADS, PAIRS, 2)
    keys, values = (ring[i][call.slots].float() for i in range(2))
    row, j = torch.arange(rows, device="cuda"), torch.arange(WINDOW, device="cuda")
    mixed: list[torch.Tensor] = []
    for t in range(frames):
        cos, sin = (part[:, t, None] for part in call.turn)

        def turned(
            x: torch.Tensor, cos: torch.Tensor = cos, sin: torch.Tensor = sin
        ) -> torch.Tensor:
            even, odd = x.unbind(-1)
            return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(2)

        place = (call.now + t) % WINDOW
        keys[row, :, place] = turned(split[:, t, 1]).half().float()
        values[row, :, place] = split[:, t, 2].flatten(2).half().float()
        seen = j <= call.now[:, None] + t
        score = (keys * turned(split[:, t, 0])[:, :, None]).sum(-1) / math.sqrt(HEAD_DIM)
        share = score.masked_fill(~seen[:, None], -torch.inf).softmax(-1)
        # What was never written may be anything.
        kept = values.masked_fill(~seen[:, None, :, None], 0.0)
        mixed.append((share[..., None] * kept).sum(2).flatten(1))
    return torch.stack(mixed, 1)


def fresh_ring(call: Call) -> torch.Tensor:
    """Random where a stream has been, NaN where none has."""
    generator = torch.Generator("cuda").manual_seed(7)
    shape = (2, MOST, HEADS, WINDOW, HEAD_DIM)
    ring = torch.randn(shape, device="cuda", generator=generator, dtype=torch.float16)
    j = torch.arange(WINDOW, device="cuda")
    written = torch.zeros(MOST, WINDOW, dtype=torch.bool, device="cuda")
    written[call.slots] = j < call.now[:, None]
    return ring.masked_fill_(~written[:, None, :, None], torch.nan)


def sound(rows: int, frames: int, warps: int, registers: int) -> bool:
    """Prints what is wrong, if anything is."""
    call = call_of(rows, frames)
    before = fresh_ring(call)
    ring = before.clone()
    got = call.run(ring, warps, registers)
    wanted = reference(call, before)
    off = (got.float() - wanted).pow(2).mean() / wanted.pow(2).mean()
    error = float(off.sqrt())
    wrong = [] if error < TOLERANCE else [f"off by {error:.1e}"]
    for r in sorted({0, rows // 3, rows // 2, rows - 1}):
        single = before.clone()
        alone = call.part(slice(r, r + 1), slice(0, frames)).run(single, warps, registers)
        slot = call.slots[r]
        if not torch.equal(alone[0], got[r]):
            wrong.append(f"row {r} alone has other bits")
        # As integers: two NaN are never equal.
        if not torch.equal(single[:, slot].view(torch.int16), ring[:, slot].view(torch.int16)):
            wrong.append(f"row {r} alone leaves another ring")
    cut = before.clone()
    every = slice(0, rows)
    parts = [call.part(every, slice(t, t + 1)).run(cut, warps, registers) for t in range(frames)]
    if not torch.equal(torch.cat(parts, 1), got):
        wrong.append("frames one by one have other bits")
    if not torch.equal(cut.view(torch.int16), ring.view(torch.int16)):
        wrong.append("frames one by one leave another ring")
    others = torch.ones(MOST, dtype=torch.bool, device="cuda")
    others[call.slots] = False
    if not torch.equal(before[:, others].view(torch.int16), ring[:, others].view(torch.int16)):
        wrong.append("another slot's ring was written")
    if wrong:
        print(f"{rows} rows, {frames} frame(s), {warps} warps: " + "; ".join(wrong), flush=True)
    return not wrong


def times(rings: torch.Tensor, ways: tuple[tuple[int, int], ...]) -> None:
    """``rings`` [LAYERS, 2, MOST, HEADS, WINDOW, HEAD_DIM]."""
    names = "  ".join(f"{warps} x {registers:3}" for warps, registers in ways)
    print(f"us a layer by warps x registers\nrows  frames  floor  {names}")
    for rows, frames in TIMED:
        call = call_of(rows, frames)
        call.now.fill_(1000)
        call.slots.copy_(torch.arange(rows))
        out = torch.empty(len(call.qkv), DIM, dtype=torch.float16, device="cuda")
        moved = rows * (WINDOW + 2 * frames) * 2 * DIM * 2 + rows * frames * (12 + 2) * DIM
        each: list[str] = []
        for way in ways:

            def body(
                call: Call = call, out: torch.Tensor = out, way: tuple[int, int] = way
            ) -> None:
                for ring in rings:
                    call.launch(ring, out, *way)

            ms = graph_ms(body, 0.02)
            each.append(f"{1e3 * ms / LAYERS:7.1f}")
        print(f"{rows:4}  {frames:6}  {moved / 4.3e6:5.1f}  " + "  ".join(each), flush=True)


def rings_alone() -> bool:
    """False when a value or a bit of the codec's own way is wrong; another is then left out."""
    good = all([sound(rows, frames, *WAYS[0]) for rows, frames in CHECKED])
    print(f"attention over the ring, {len(CHECKED)} shapes: values and bits "
          f"{'as they should be' if good else 'WRONG'}", flush=True)  # fmt: skip
    usable = [WAYS[0]]
    for way in WAYS[1:]:
        try:
            if all([sound(rows, frames, *way) for rows, frames in ((64, 1), (1, 4))]):
                usable.append(way)
        except Exception as error:  # it may well not compile
            print(f"{way} does not run: {type(error).__name__}: {str(error)[:120]}")
    shape = (LAYERS, 2, MOST, HEADS, WINDOW, HEAD_DIM)
    times(torch.zeros(shape, dtype=torch.float16, device="cuda"), tuple(usable))
    return good

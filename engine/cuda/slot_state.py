"""What a decode step reads and writes per slot, as two int32 tensors on the device.

Owns the layout only. One row a slot plus one dummy row that the padding rows of a graph bucket
point at. Everything the next step needs is here, so that no step waits for the host: the last
column, its position, the window of slow tokens, the sampling values, whether the row has ended.
Floats lie in the same tensor bit for bit, which makes a join one row copy. Written on the decode
stream alone.
"""

from __future__ import annotations

import numpy as np
import torch

from shoal.kernels.advance import Fields
from shoal.kernels.sampler import Sampling

from ..runner import Int32Array, Join

WINDOW_FRAMES = 10
_GENERATION, _POSITION, _DRAW, _FIRST, _DONE = range(5)
_TEMPERATURE, _TOP_P, _TOP_K, _SEED_LOW, _SEED_HIGH = range(5, 10)
_COLUMN = 10


class SlotState:
    """State int32 [slots + 1, width] and page tables int32 [slots + 1, max_pages]."""

    def __init__(
        self, slots: int, codebooks: int, max_pages: int, scratch_page: int, device: torch.device
    ) -> None:
        """``scratch_page``: where rows without a context may read and write."""
        self.slots = slots
        self.codebooks = codebooks
        self.max_pages = max_pages
        window = _COLUMN + 1 + codebooks
        self.width = window + WINDOW_FRAMES
        self.fields = Fields(
            generation=_GENERATION,
            position=_POSITION,
            draw=_DRAW,
            first=_FIRST,
            done=_DONE,
            column=_COLUMN,
            codebooks=codebooks,
            window=window,
            window_frames=WINDOW_FRAMES,
        )
        self._scratch_page = scratch_page
        self.state = torch.zeros(slots + 1, self.width, dtype=torch.int32, device=device)
        self.state[:, _DONE] = 1
        self.tables = torch.full(
            (slots + 1, max_pages), scratch_page, dtype=torch.int32, device=device
        )

    @property
    def dummy(self) -> int:
        """The slot of padding rows."""
        return self.slots

    @property
    def record_width(self) -> int:
        """int32 values of one packed join: the slot, its state row, its page table."""
        return 1 + self.width + self.max_pages

    @property
    def columns(self) -> torch.Tensor:
        """int32 [slots + 1, 1 + codebooks], a view: the column that a step feeds."""
        return self.state[:, _COLUMN : _COLUMN + 1 + self.codebooks]

    @property
    def window(self) -> torch.Tensor:
        """int32 [slots + 1, WINDOW_FRAMES], a view: earlier slow tokens."""
        return self.state[:, self.fields.window :]

    @property
    def positions(self) -> torch.Tensor:
        """int32 [slots + 1], a view: the position of the column."""
        return self.state[:, _POSITION]

    def sampling(self) -> Sampling:
        """Views of what a draw reads."""
        floats = self.state.view(torch.float32)
        return Sampling(
            temperature=floats[:, _TEMPERATURE],
            top_p=floats[:, _TOP_P],
            top_k=self.state[:, _TOP_K],
            seed_low=self.state[:, _SEED_LOW],
            seed_high=self.state[:, _SEED_HIGH],
            draw=self.state[:, _DRAW],
        )

    def pack(self, join: Join, out: Int32Array) -> None:
        """Write ``join`` into ``out`` int32 [record_width]."""
        out[:] = 0
        out[0] = join.slot
        row = out[1 : 1 + self.width]
        row[_GENERATION] = join.generation
        row[_POSITION] = join.position
        row[_DRAW] = join.draw
        row[_FIRST] = 1
        sampling = join.sampling
        row[_TEMPERATURE : _TOP_P + 1] = np.array(
            [sampling.temperature, sampling.top_p], np.float32
        ).view(np.int32)
        row[_TOP_K] = sampling.top_k
        row[_SEED_LOW : _SEED_HIGH + 1] = np.array(
            [sampling.seed & 0xFFFFFFFFFFFFFFFF], np.uint64
        ).view(np.int32)
        row[_COLUMN : _COLUMN + 1 + self.codebooks] = join.column
        table = out[1 + self.width :]
        table[:] = self._scratch_page
        table[: len(join.table)] = join.table

"""Per-slot decode state for the CPU runner, and the step over it.

Owns what would live on a device for a slot: its last column, position, draw counter, window,
sampling, page table and whether it ended. One thread at a time; the runner's worker. Knows
nothing of threads or queues.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from shoal.engine.runner import Join, SlotSampling, StepPlan, StepResult

from .philox import seed_words
from .sampling import (
    MIN_TEMPERATURE,
    NARROW_TOP_K,
    WINDOW_FRAMES,
    prev_tokens_shift_inplace,
)


@dataclass(slots=True)
class _Slot:
    generation: int = -1
    position: int = 0
    draw: int = 0
    ended: bool = True
    fresh: bool = False
    """No frame was drawn yet: the next one does not enter the window."""
    wide: bool = False
    pages: list[int] = field(default_factory=list[int])
    table: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))


class DecodeState:
    """State of all slots. ``step`` is a compiled :class:`.step.DecodeStep`."""

    def __init__(
        self,
        step: nn.Module,
        pools: list[Tensor],
        *,
        slots: int,
        width: int,
        page_tokens: int,
        end_token: int,
    ) -> None:
        self._step = step
        self._pools = pools
        self._page_tokens = page_tokens
        self._end_token = end_token
        self._slots = [_Slot() for _ in range(slots)]
        self._columns = torch.zeros(slots, width, dtype=torch.int32)
        self._window = torch.zeros(slots, WINDOW_FRAMES, width, dtype=torch.int32)
        self._seeds = torch.zeros(slots, 2, dtype=torch.int64)
        self._inverse_temperature = torch.ones(slots, 1)
        self._top_p = torch.ones(slots, 1)
        self._top_k = torch.ones(slots, 1, dtype=torch.int64)
        self.rows_vary = True
        """Compute only the rows that run (at least two), instead of as many as there are slots."""

    def run(self, plan: StepPlan) -> StepResult:
        """One step. Raises ``ValueError`` for a plan that breaks the scheduler's own promises."""
        for join in plan.joins:
            self._join(join)
        for grant in plan.grants:
            slot = self._slots[grant.slot]
            slot.pages.append(grant.page)
            slot.table = torch.tensor(slot.pages)
        rows = [index for index in plan.slots if not self._slots[index].ended]
        if rows:
            self._decode(rows)
        return StepResult(
            step=plan.step,
            slots=plan.slots,
            generations=tuple(self._slots[index].generation for index in plan.slots),
            columns=self._columns[list(plan.slots)].numpy(),
            ended=np.array([self._slots[index].ended for index in plan.slots], np.bool_),
        )

    def _join(self, join: Join) -> None:
        index = join.slot
        pages = list(join.table)
        if join.column.shape != (self._columns.size(1),):
            raise ValueError(f"join of slot {index}: column has shape {join.column.shape}")
        self._slots[index] = _Slot(
            generation=join.generation,
            position=join.position,
            draw=join.draw,
            ended=False,
            fresh=True,
            wide=join.sampling.top_k > NARROW_TOP_K,
            pages=pages,
            table=torch.tensor(pages, dtype=torch.int64),
        )
        self._columns[index] = torch.tensor(join.column.tolist(), dtype=torch.int32)
        self._window[index] = 0
        self._set_sampling(index, join.sampling)

    def _set_sampling(self, index: int, sampling: SlotSampling) -> None:
        greedy = sampling.temperature <= 0.0
        self._seeds[index] = torch.tensor(seed_words(sampling.seed))
        self._inverse_temperature[index] = 1.0 / max(sampling.temperature, MIN_TEMPERATURE)
        self._top_p[index] = sampling.top_p
        # One rank left to choose from is the arg max, whatever the noise says.
        self._top_k[index] = 1 if greedy else sampling.top_k

    def _decode(self, rows: Sequence[int]) -> None:
        slots = [self._slots[index] for index in rows]
        size = self._page_tokens
        for index, slot in zip(rows, slots, strict=True):
            if slot.position >= len(slot.pages) * size:
                raise ValueError(f"slot {index}: no page for position {slot.position}")
        at = torch.tensor(rows)
        window = self._window[at]
        columns: Tensor = self._step(
            self._columns[at],
            window,
            torch.tensor([slot.position for slot in slots]),
            torch.tensor([slot.draw for slot in slots]),
            self._seeds[at],
            self._inverse_temperature[at],
            self._top_p[at],
            self._top_k[at],
            any(slot.wide for slot in slots),
            max(2, len(rows)) if self.rows_vary else max(2, len(self._slots)),
            self._pools,
            size,
            torch.tensor([s.pages[s.position // size] * size + s.position % size for s in slots]),
            [slot.table[: slot.position // size + 1] for slot in slots],
            [slot.position + 1 for slot in slots],
        )
        prev_tokens_shift_inplace(window, columns)
        self._columns[at] = columns
        for row, (slot, token) in enumerate(zip(slots, columns[:, 0].tolist(), strict=True)):
            if slot.fresh:
                window[row] = 0
            slot.fresh = False
            slot.ended = token == self._end_token
            slot.position += 1
            slot.draw += 1
        self._window[at] = window

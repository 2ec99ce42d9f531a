"""Per-slot decode state for the CPU runner, and the step over it.

Owns the host's half of a slot - position, draw counter, page table, whether it ended - beside the
tensors in :class:`.step.DecodeStep`. One thread at a time; the runner's worker. Knows nothing of
threads or queues.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from ..runner import Join, StepPlan, StepResult
from .philox import seed_words
from .sampling import MIN_TEMPERATURE, NARROW_TOP_K

MAX_TOP_K = 2**31 - 1
"""Above any vocabulary, and still a tensor's number."""


@dataclass(slots=True)
class _Slot:
    generation: int = -1
    position: int = 0
    draw: int = 0
    ended: bool = True
    fresh: bool = False
    """No frame of the segment was drawn yet."""
    wide: bool = False
    column: list[int] = field(default_factory=list[int])
    """What it drew last, or is to feed first."""
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
        """``width``: 1 + codebooks."""
        self._step = step
        self._pools = pools
        self._width = width
        self._page_tokens = page_tokens
        self._end_token = end_token
        self._slots = [_Slot(column=[0] * width) for _ in range(slots)]
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
        slots = [self._slots[index] for index in plan.slots]
        columns = np.array([slot.column for slot in slots], np.int32)
        return StepResult(
            step=plan.step,
            slots=plan.slots,
            generations=tuple(slot.generation for slot in slots),
            columns=columns.reshape(len(slots), self._width),
            ended=np.array([slot.ended for slot in slots], np.bool_),
        )

    def _join(self, join: Join) -> None:
        column = join.column.tolist()
        if len(column) != self._width:
            raise ValueError(f"join of slot {join.slot}: column has {len(column)} entries")
        sampling, pages = join.sampling, list(join.table)
        # One rank left to choose from is the arg max, whatever the noise says.
        top_k = 1 if sampling.temperature <= 0.0 else min(sampling.top_k, MAX_TOP_K)
        self._slots[join.slot] = _Slot(
            generation=join.generation,
            position=join.position,
            draw=join.draw,
            ended=False,
            fresh=True,
            wide=top_k > NARROW_TOP_K,
            column=column,
            pages=pages,
            table=torch.tensor(pages, dtype=torch.int64),
        )
        self._step.join(
            join.slot,
            column,
            list(seed_words(sampling.seed)),
            1.0 / max(sampling.temperature, MIN_TEMPERATURE),
            float(sampling.top_p),
            top_k,
        )

    def _decode(self, rows: Sequence[int]) -> None:
        slots = [self._slots[index] for index in rows]
        size = self._page_tokens
        for index, slot in zip(rows, slots, strict=True):
            if slot.position >= len(slot.pages) * size:
                raise ValueError(f"slot {index}: no page for position {slot.position}")
        drawn: Tensor = self._step(
            rows,
            [slot.position for slot in slots],
            [slot.draw for slot in slots],
            [slot.fresh for slot in slots],
            any(slot.wide for slot in slots),
            max(2, len(rows) if self.rows_vary else len(self._slots)),
            self._pools,
            size,
            [s.pages[s.position // size] * size + s.position % size for s in slots],
            [slot.table[: slot.position // size + 1] for slot in slots],
        )
        for slot, column in zip(slots, drawn.tolist(), strict=True):
            slot.column = column
            slot.fresh = False
            slot.ended = column[0] == self._end_token
            slot.position += 1
            slot.draw += 1

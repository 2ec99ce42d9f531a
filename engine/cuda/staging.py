"""A step plan as one pinned int32 buffer, and the pinned buffers its results come back in.

Owns the two sets of host buffers that the decode thread uses in turn (step ``n`` uses set
``n % 2``) and the packing. Allocated once; nothing is pinned or allocated in a step. A set is
written again only after the results of the step that last used it were read, so a copy in flight
is never overwritten.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from shoal.kernels.join import apply_joins, apply_joins_reference

from ..runner import BoolArray, Int32Array, StepPlan
from .slot_state import SlotState

BUFFERS = 2


@dataclass(frozen=True, slots=True)
class StagedPlan:
    """A packed plan: which buffer set, how many rows, and how much of the buffer is used."""

    buffer: int
    rows: int
    joins: int
    grants: int
    used: int


class StepStaging:
    """Pinned host buffers for plans and results, and the device buffer a plan is copied into.

    A plan is ``[buffer | rows (max_rows) | join records | grants]``. Results are int32
    ``[max_rows, codebooks + 3]``: the column, whether the row ended, its generation.
    """

    def __init__(self, slots: SlotState, max_rows: int, device: torch.device) -> None:
        self._slots = slots
        self._max_rows = max_rows
        self._table_lengths = [0] * (slots.slots + 1)
        self._on_gpu = device.type == "cuda"
        size = 1 + max_rows * (1 + slots.record_width + 2)
        width = slots.codebooks + 3

        def host(*shape: int) -> list[torch.Tensor]:
            return [
                torch.zeros(*shape, dtype=torch.int32, pin_memory=self._on_gpu)
                for _ in range(BUFFERS)
            ]

        self._plans = host(size)
        self._plans_np: list[Int32Array] = [plan.numpy() for plan in self._plans]
        self._results = host(max_rows, width)
        self._results_np: list[Int32Array] = [result.numpy() for result in self._results]
        self._device_plan = torch.zeros(size, dtype=torch.int32, device=device)
        self.buffer = self._device_plan[:1]
        self.rows = self._device_plan[1 : 1 + max_rows]
        self.rows.fill_(slots.dummy)
        self.results = torch.zeros(BUFFERS, max_rows, width, dtype=torch.int32, device=device)

    def pack(self, plan: StepPlan, bucket: int) -> StagedPlan:
        """Write ``plan`` into its host buffer, padded to ``bucket`` rows. Raises ``ValueError``
        for a plan that cannot run."""
        rows = len(plan.slots)
        if rows > bucket:
            raise ValueError(f"a plan of {rows} rows does not fit a bucket of {bucket}")
        if len(plan.joins) > self._max_rows or len(plan.grants) > self._max_rows:
            raise ValueError("more joins or grants than slots in one step")
        buffer = plan.step % BUFFERS
        out = self._plans_np[buffer]
        out[0] = buffer
        out[1 : 1 + rows] = plan.slots
        out[1 + rows : 1 + bucket] = self._slots.dummy
        at = 1 + self._max_rows
        width, pages = self._slots.record_width, self._slots.max_pages
        for join in plan.joins:
            if len(join.table) > pages:
                raise ValueError(f"slot {join.slot}: {len(join.table)} pages, {pages} at most")
            self._slots.pack(join, out[at : at + width])
            self._table_lengths[join.slot] = len(join.table)
            at += width
        joining = {join.slot for join in plan.joins}
        for grant in plan.grants:
            if grant.slot in joining:
                raise ValueError(f"slot {grant.slot}: joins and gets a page in one step")
            place = self._table_lengths[grant.slot]
            if place >= pages:
                raise ValueError(f"slot {grant.slot}: its page table is full")
            out[at : at + 2] = (grant.slot * pages + place, grant.page)
            self._table_lengths[grant.slot] = place + 1
            at += 2
        return StagedPlan(buffer, rows, len(plan.joins), len(plan.grants), at)

    def send(self, staged: StagedPlan) -> None:
        """Copy a packed plan to the device, apply its joins and grants. On the current stream."""
        self._device_plan[: staged.used].copy_(
            self._plans[staged.buffer][: staged.used], non_blocking=True
        )
        if staged.joins or staged.grants:
            apply = apply_joins if self._on_gpu else apply_joins_reference
            records = self._device_plan[1 + self._max_rows :]
            apply(records, self._slots.state, self._slots.tables, staged.joins, staged.grants)

    def fetch(self, staged: StagedPlan) -> None:
        """Enqueue the copy of a step's results to the host. On the current stream."""
        self._results[staged.buffer][: staged.rows].copy_(
            self.results[staged.buffer, : staged.rows], non_blocking=True
        )

    def read(self, staged: StagedPlan) -> tuple[Int32Array, BoolArray, tuple[int, ...]]:
        """Columns, ended flags and generations of a fetched step, copied out of the buffer."""
        got = self._results_np[staged.buffer][: staged.rows]
        ended = got[:, -2].astype(np.bool_)
        return got[:, :-2].copy(), ended, tuple(int(value) for value in got[:, -1])

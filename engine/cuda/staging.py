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

from shoal.kernels.cascade import GROUP_ROWS
from shoal.kernels.join import apply_joins, apply_joins_reference

from ..runner import BoolArray, Int32Array, StepPlan
from .sharing import Group, Sharing, groups_for
from .slot_state import SlotState

BUFFERS = 2


@dataclass(frozen=True, slots=True)
class StagedPlan:
    """A packed plan: which buffer set, how many rows, and how much of the buffer is used.

    ``shared``: rows that share a prefix are grouped, for a step that attends to it once.
    """

    buffer: int
    rows: int
    joins: int
    grants: int
    used: int
    shared: bool = False


class StepStaging:
    """Pinned host buffers for plans and results, and the device buffer a plan is copied into.

    A plan is ``[buffer | rows (max_rows) | prefix (max_rows, 2) | groups (groups_for(max_rows),
    GROUP_ROWS) | join records | grants]``; prefix and groups are as ``decode_attention`` takes
    them. Results are int32 ``[max_rows, codebooks + 3]``: the column, whether the row ended, its
    generation.
    """

    def __init__(
        self,
        slots: SlotState,
        max_rows: int,
        device: torch.device,
        sharing: Sharing | None = None,
    ) -> None:
        """``sharing``: finds rows with a prefix in common; None: none is looked for."""
        self._slots = slots
        self._sharing = sharing
        self._max_rows = max_rows
        self._table_lengths = [0] * (slots.slots + 1)
        self._on_gpu = device.type == "cuda"
        most_groups = groups_for(max_rows)
        self._prefix_at = 1 + max_rows
        self._groups_at = self._prefix_at + 2 * max_rows
        self._records_at = self._groups_at + most_groups * GROUP_ROWS
        size = self._records_at + max_rows * (slots.record_width + 2)
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
        self.prefix = self._device_plan[self._prefix_at : self._groups_at].view(max_rows, 2)
        groups = self._device_plan[self._groups_at : self._records_at]
        self.groups = groups.view(most_groups, GROUP_ROWS).fill_(-1)
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
        at = self._records_at
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
        shared = self._share(plan, out, rows, bucket)
        return StagedPlan(buffer, rows, len(plan.joins), len(plan.grants), at, shared)

    def _share(self, plan: StepPlan, out: Int32Array, rows: int, bucket: int) -> bool:
        """Group the rows that have a prefix in common; whether any are."""
        sharing = self._sharing
        if sharing is None:
            return False
        for join in plan.joins:
            sharing.join(join)
        slots = out[1 : 1 + rows]
        groups = sharing.groups(slots)
        sharing.ran(slots)
        if groups:
            self._write_groups(groups, out, bucket)
        return bool(groups)

    def _write_groups(self, groups: list[Group], out: Int32Array, bucket: int) -> None:
        prefix = out[self._prefix_at : self._prefix_at + 2 * bucket].reshape(bucket, 2)
        prefix[:] = 0
        table = out[self._groups_at : self._records_at].reshape(-1, GROUP_ROWS)
        table[: groups_for(bucket)] = -1
        for index, group in enumerate(groups):
            table[index, : len(group.rows)] = group.rows
            prefix[group.rows] = (group.tokens, group.cut)

    def send(self, staged: StagedPlan) -> None:
        """Copy a packed plan to the device, apply its joins and grants. On the current stream."""
        self._device_plan[: staged.used].copy_(
            self._plans[staged.buffer][: staged.used], non_blocking=True
        )
        if staged.joins or staged.grants:
            apply = apply_joins if self._on_gpu else apply_joins_reference
            records = self._device_plan[self._records_at :]
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

"""The device's prefill and decode step without a device, in Triton's interpreter on the CPU.

Owns what a stream needs to be decoded by the very kernels of a GPU where there is none: pages, slot
state, staging, a step of all slots and a prefill pass. No graphs, no streams, no codec. For gates
and tests: a frame takes ten seconds, a prompt's column half a second.

What is not a GPU's: ``kernels/rounding.py`` spells out every rounding as the GPU rounds, but a
product of a tile is added in float64, where the matrix unit keeps some 14 bits of an FP8 product
before its sum is scaled; exponentials and roots are numpy's; no two programs run at once, so no
race shows; and there is neither programmatic dependent launch nor a copy engine. Any one thread.
"""

from __future__ import annotations

import torch
from torch import Tensor

from shoal.kernels.attention import Workspace
from shoal.kernels.kv import Fp8Pages, Pages, quantise_heads
from shoal.kernels.pages import TILE_TOKENS
from shoal.kernels.rounding import INTERPRETED

from ..model.config import DualARConfig
from ..runner import PrefillChunk, StepPlan, StepResult
from .kv_pool import KvDtype, KvPool
from .prefill import PrefillPass, in_passes
from .reference import Context
from .slot_state import SlotState
from .staging import StagedPlan, StepStaging
from .step import DecodeStep
from .weights import CudaWeights

CPU = torch.device("cpu")
PREFILL_ROWS = (1, 2, 4, 8, 16, *range(TILE_TOKENS, 257, TILE_TOKENS))
"""A row of nobody costs as much as any other here, so there are many buckets."""


class NotInterpreted(Exception):
    """Triton compiles in this process; the message says how to have it interpret."""


def check_interpreted() -> None:
    """:raises NotInterpreted: the kernels were imported to be compiled."""
    if not INTERPRETED:
        raise NotInterpreted(
            "Triton reads TRITON_INTERPRET before the first kernel is imported and it was not "
            "set: run this with TRITON_INTERPRET=1 in the environment"
        )


class InterpretedRunner:
    """``launch``, ``collect`` and ``prefill`` are those of :class:`shoal.engine.runner.Runner`; a
    step is over when ``launch`` returns. What is written where may be looked at in ``pool``."""

    def __init__(
        self,
        config: DualARConfig,
        weights: CudaWeights,
        *,
        slots: int,
        pages: int,
        page_tokens: int = 64,
        kv_dtype: KvDtype = "bf16",
        last_columns: int | None = None,
    ) -> None:
        """``weights``: on the CPU. Every step runs a row for each of ``slots``. ``last_columns``:
        of each prefilled chunk that begins a context, the kernels read as many columns, and the
        keys and values before those are the plain torch reference's; all columns when None.
        :raises NotInterpreted: Triton compiles."""
        check_interpreted()
        slow = config.slow
        shape = (slow.kv_heads, page_tokens, slow.head_dim)
        self._slots = slots
        self._weights = weights
        self._kv_dtype: KvDtype = kv_dtype
        self._last_columns = last_columns
        self.pool = KvPool.empty(slow.layers, pages, *shape, CPU, kv_dtype)
        state = SlotState(slots, config.codebooks, pages, pages, CPU)
        self._staging = StepStaging(state, slots, CPU)
        work = Workspace.empty(slots, weights.slow.layers[0].heads, CPU)
        self._step = DecodeStep(weights, self.pool, state, self._staging, work, slots, CPU)
        self.prefill_pass = PrefillPass(
            weights, weights.prefill, self.pool, PREFILL_ROWS, pages, CPU
        )
        self._launched: dict[int, tuple[StepPlan, StagedPlan]] = {}

    def launch(self, plan: StepPlan) -> None:
        staged = self._staging.pack(plan, self._slots)
        self._staging.send(staged)
        self._step.run()
        self._staging.fetch(staged)
        self._launched[plan.step] = (plan, staged)

    def collect(self, step: int) -> StepResult:
        plan, staged = self._launched.pop(step)
        columns, ended, generations = self._staging.read(staged)
        return StepResult(step, plan.slots, generations, columns, ended)

    def prefill(self, *chunks: PrefillChunk) -> None:
        for chunk in chunks:
            for batch in in_passes([self._begun(chunk)], self.prefill_pass.buckets[-1]):
                self.prefill_pass.run(self.prefill_pass.send(batch))

    def _begun(self, chunk: PrefillChunk) -> PrefillChunk:
        """What of ``chunk`` is the kernels' to read; the rest is written."""
        if self._last_columns is None or chunk.position:
            return chunk
        known = max(len(chunk.columns) - self._last_columns, 0)
        if not known:
            return chunk
        context = Context(self._weights, self._kv_dtype)
        context.prefill(torch.from_numpy(chunk.columns[:known]))
        for index, kept in enumerate(context.kept):
            for pages, part in zip(self.pool.layer(index), kept, strict=True):
                write_rows(pages, chunk.table, part)
        return PrefillChunk(chunk.columns[known:], known, chunk.table)


def write_rows(pages: Pages, table: tuple[int, ...], rows: Tensor) -> None:
    """Write a context's keys or values ``rows`` [positions, kv heads, dim], from position 0 on,
    into its pages, rounded to bf16 and quantised where they are."""
    page_tokens = (pages.values if isinstance(pages, Fp8Pages) else pages).shape[2]
    for first in range(0, len(rows), page_tokens):
        part = rows[first : first + page_tokens].transpose(0, 1).bfloat16()
        page, end = table[first // page_tokens], part.shape[1]
        if isinstance(pages, Fp8Pages):
            narrow = quantise_heads(part)
            pages.values[page, :, :end] = narrow.values
            pages.scales[page, :, :end] = narrow.scales
        else:
            pages[page, :, :end] = part

"""One decode step over the state of all slots, for any set of them.

Owns the order of a frame - embed, slow stack, slow token, fast stack with a draw per codebook -
which draw uses which noise, and the tensors that are a slot's state. Knows nothing of pages beyond
the places it is told. Compiled by TorchScript as one call, so that a step computes without the
interpreter's lock.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .dual_ar import DualAR
from .philox import log_exponential
from .sampling import WINDOW_FRAMES, race, shift_window, slow_candidate


class DecodeStep(nn.Module):
    """Wraps a :class:`DualAR` and draws with it."""

    def __init__(self, model: DualAR, slots: int) -> None:
        super().__init__()
        self.model = model
        self.codebooks = model.codebooks
        self.codebook_size = model.codebook_size
        self.semantic_begin = model.semantic_begin
        self.end_token = model.end_token
        # Slow token first draw, its second draw, then codebooks 1, 2, ...
        self.noise_codebooks = torch.tensor([0, *range(model.codebooks)])
        self.noise_streams = torch.tensor([0, 1, *[0] * (model.codebooks - 1)])

        width = 1 + model.codebooks
        self.columns = torch.zeros(slots, width, dtype=torch.int32)
        self.window = torch.zeros(slots, WINDOW_FRAMES, width, dtype=torch.int32)
        self.seeds = torch.zeros(slots, 2, dtype=torch.int64)
        self.inverse_temperature = torch.ones(slots, 1)
        self.top_p = torch.ones(slots, 1)
        self.top_k = torch.ones(slots, 1, dtype=torch.int64)

    @torch.jit.export
    def join(
        self,
        slot: int,
        column: list[int],
        seed: list[int],
        inverse_temperature: float,
        top_p: float,
        top_k: int,
    ) -> None:
        """Set a slot's state for a new segment: the column to feed, an empty window."""
        self.columns[slot] = torch.tensor(column, dtype=torch.int32)
        self.window[slot] = 0
        self.seeds[slot] = torch.tensor(seed, dtype=torch.int64)
        self.inverse_temperature[slot] = inverse_temperature
        self.top_p[slot] = top_p
        self.top_k[slot] = top_k

    def forward(
        self,
        slots: list[int],
        positions: list[int],
        draws: list[int],
        fresh: list[bool],
        wide: bool,
        computed_rows: int,
        pools: list[Tensor],
        page_tokens: int,
        places: list[int],
        tables: list[Tensor],
    ) -> Tensor:
        """Feed each slot's column, draw the next ones and keep them.

        Every list has an entry per row; ``fresh`` rows draw their segment's first frame, which
        does not enter the window. ``computed_rows``, at least the number of rows, is how many the
        matrix products run with. ``pools``, ``places`` and ``tables`` as in
        :meth:`DualAR.slow_stack`, a sequence per row. Returns int32 [rows, 1 + codebooks]; a row
        that drew the end token has codes that mean nothing.
        """
        at = torch.tensor(slots)
        columns = self.columns[at]
        window = self.window[at]
        drawn = self._draw(
            at,
            columns,
            window,
            positions,
            draws,
            wide,
            computed_rows,
            pools,
            page_tokens,
            places,
            tables,
        )
        shift_window(window, drawn)
        window = window * (~torch.tensor(fresh)).to(torch.int32).view(-1, 1, 1)
        self.columns.index_copy_(0, at, drawn)
        self.window.index_copy_(0, at, window)
        return drawn

    def _draw(
        self,
        at: Tensor,
        columns: Tensor,
        window: Tensor,
        positions: list[int],
        draws: list[int],
        wide: bool,
        computed_rows: int,
        pools: list[Tensor],
        page_tokens: int,
        places: list[int],
        tables: list[Tensor],
    ) -> Tensor:
        rows = columns.size(0)
        padding = computed_rows - rows
        inverse_temperature, top_p = self.inverse_temperature[at], self.top_p[at]
        top_k = self.top_k[at]
        noise = log_exponential(
            self.seeds[at],
            torch.tensor(draws),
            self.noise_codebooks,
            self.noise_streams,
            self.codebook_size + 1,
        )
        lengths = [position + 1 for position in positions]
        x = F.pad(self.model.embed(columns), [0, 0, 0, padding])
        x = self.model.slow_stack(
            x,
            F.pad(torch.tensor(positions), [0, padding]),
            pools,
            page_tokens,
            torch.tensor(places),
            tables,
            lengths,
            [1] * rows,
            x,
        )
        hidden, logits = self.model.slow_head(x)
        candidate = slow_candidate(
            logits[:rows],
            inverse_temperature,
            top_p,
            top_k,
            noise[:, :2],
            window,
            self.semantic_begin,
            wide,
        )
        ended = candidate == self.codebook_size
        code = candidate.masked_fill(ended, 0)
        drawn = [(candidate + self.semantic_begin).masked_fill(ended, self.end_token), code]
        logits, caches = self.model.fast_first(hidden, F.pad(code, [0, padding]))
        for book in range(1, self.codebooks):
            code = race(
                logits[:rows],
                inverse_temperature,
                top_p,
                top_k,
                noise[:, book + 1, : self.codebook_size],
                wide,
            )
            drawn.append(code)
            if book + 1 < self.codebooks:
                logits = self.model.fast_next(F.pad(code, [0, padding]), book + 1, caches)
        return torch.stack(drawn, 1).to(torch.int32)

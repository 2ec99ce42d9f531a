"""One decode step: columns in, columns out, for any set of rows.

Owns the order of a frame - embed, slow stack, slow token, fast stack with a draw per codebook -
and which draw uses which noise. Knows nothing of slots or pages beyond the places it is told.
Compiled by TorchScript as one call, so that a step computes without the interpreter's lock.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .dual_ar import DualAR
from .philox import log_exponential
from .sampling import race, slow_candidate


class DecodeStep(nn.Module):
    """Wraps a :class:`DualAR` and draws with it."""

    def __init__(self, model: DualAR) -> None:
        super().__init__()
        self.model = model
        self.codebooks = model.codebooks
        self.codebook_size = model.codebook_size
        self.semantic_begin = model.semantic_begin
        self.end_token = model.end_token
        # Slow token first draw, its second draw, then codebooks 1, 2, ...
        self.noise_codebooks = torch.tensor([0, *range(model.codebooks)])
        self.noise_streams = torch.tensor([0, 1, *[0] * (model.codebooks - 1)])

    def forward(
        self,
        columns: Tensor,
        window: Tensor,
        positions: Tensor,
        draws: Tensor,
        seeds: Tensor,
        inverse_temperature: Tensor,
        top_p: Tensor,
        top_k: Tensor,
        wide: bool,
        computed_rows: int,
        pools: list[Tensor],
        page_tokens: int,
        places: Tensor,
        tables: list[Tensor],
        lengths: list[int],
    ) -> Tensor:
        """Feed ``columns`` int32 [B, 1 + codebooks] and return the next ones, same shape.

        ``window`` int32 [B, W, 1 + codebooks]; ``positions``, ``draws`` int64 [B]; ``seeds``
        int64 [B, 2]; the sampling values [B, 1]. ``computed_rows`` >= B is how many rows the
        matrix products run with. The rest as in :meth:`DualAR.slow_stack`, a sequence per row.
        A row that draws the end token gets codes that mean nothing.
        """
        rows = columns.size(0)
        padding = computed_rows - rows
        noise = log_exponential(
            seeds, draws, self.noise_codebooks, self.noise_streams, self.codebook_size + 1
        )
        x = F.pad(self.model.embed(columns), [0, 0, 0, padding])
        x = self.model.slow_stack(
            x,
            F.pad(positions, [0, padding]),
            pools,
            page_tokens,
            places,
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
        token = (candidate + self.semantic_begin).masked_fill(ended, self.end_token)
        code = candidate.masked_fill(ended, 0)
        drawn = [token, code]
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

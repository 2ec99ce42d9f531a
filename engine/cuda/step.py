"""One decode step of a bucket: columns in, the next columns out, as kernels on one stream.

Owns the order of a frame - embed, slow stack, slow token, fast stack with a draw per codebook,
bookkeeping - and the buffers of one bucket size. Everything it reads and writes lives on the
device at fixed addresses, so a step can be captured once and replayed. Knows nothing of graphs,
plans or threads.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from shoal.kernels.advance import advance
from shoal.kernels.attention import Workspace, decode_attention
from shoal.kernels.embedding import embed
from shoal.kernels.fast_attention import fast_attention
from shoal.kernels.norm import NormedRows
from shoal.kernels.quantise import Fp8Rows
from shoal.kernels.sampler import SlowToken, sample

from .kv_pool import KvPool
from .sharing import groups_for
from .slot_state import SlotState
from .stack import make_stack
from .staging import StepStaging
from .weights import CudaWeights, Layer

FAST_CONTEXT = 16
"""Positions that the fast stack's cache has room for; a power of two above the codebooks."""


class DecodeStep:
    """A step of ``rows`` rows. ``run`` enqueues it on the current stream."""

    def __init__(
        self,
        weights: CudaWeights,
        pool: KvPool,
        slots: SlotState,
        staging: StepStaging,
        work: Workspace,
        rows: int,
        device: torch.device,
        pdl: bool = False,
    ) -> None:
        self._pdl = pdl
        self._weights = weights
        self._pool = pool
        self._slots = slots
        self._staging = staging
        self._work = work
        self._rows = rows
        self._row_slots = staging.rows[:rows]
        self._sampling = slots.sampling()
        self._positions = torch.zeros(rows, dtype=torch.int32, device=device)
        self._drawn = torch.zeros(rows, 1 + weights.codebooks, dtype=torch.int32, device=device)
        self._slow = make_stack(weights.slow, rows, device, pdl)
        # The first fast pass runs two positions of every row; later ones a view of its buffers.
        self._fast_first = make_stack(weights.fast, 2 * rows, device, pdl)
        self._fast = make_stack(weights.fast, rows, device, pdl)
        fast = weights.fast.config
        cache = (rows, fast.kv_heads, FAST_CONTEXT, fast.head_dim)
        self._fast_keys = [
            torch.zeros(cache, dtype=torch.bfloat16, device=device) for _ in range(fast.layers)
        ]
        self._fast_values = [torch.zeros_like(keys) for keys in self._fast_keys]

    def run(self, *, shared: bool = False) -> None:
        """Feed every row's column, draw its next one, and bring the slots' state forward.

        ``shared``: attend to shared prefixes as the staged groups say. The same bits either way.
        """
        weights, slots, rows = self._weights, self._slots, self._row_slots
        torch.index_select(slots.positions, 0, rows, out=self._positions)
        embed(
            slots.columns,
            weights.embeddings,
            weights.codebook_embeddings,
            (weights.semantic_begin, weights.semantic_begin + weights.codebook_size - 1),
            weights.embedding_scale,
            self._slow.residual,
            slots=rows,
            pdl=self._pdl,
        )
        self._slow.run(partial(self._attend, shared))
        hidden = self._slow.normed
        sample(
            self._slow.logits(hidden),
            None,
            weights.slow.eps,
            0,
            rows,
            self._sampling,
            self._drawn,
            slow=SlowToken(
                hidden,
                weights.end_row[0],
                slots.window,
                weights.semantic_begin,
                weights.end_token,
            ),
            pdl=self._pdl,
        )
        self._run_fast(hidden)
        advance(
            slots.state,
            slots.fields,
            rows,
            self._drawn,
            weights.end_token,
            self._staging.results,
            self._staging.buffer,
            pdl=self._pdl,
        )

    def _run_fast(self, hidden: Tensor) -> None:
        weights, rows = self._weights, self._rows
        first = self._fast_first
        source = hidden if weights.norm_fast_input else self._slow.residual
        if weights.fast_project is None:
            first.residual[:rows].copy_(source)
        else:
            weight, bias = weights.fast_project
            torch.addmm(bias, source, weight.t(), out=first.residual[:rows])
        torch.index_select(weights.fast_embeddings, 0, self._drawn[:, 1], out=first.residual[rows:])
        first.run(lambda *args: self._attend_fast(0, 2, *args))
        logits = first.logits(first.normed[rows:])
        following = self._fast.embedded(weights.fast_embeddings)
        for book in range(1, weights.codebooks):
            last = book + 1 == weights.codebooks
            sample(
                logits,
                None,
                weights.fast.eps,
                book,
                self._row_slots,
                self._sampling,
                self._drawn,
                fast_input=None if last else following,
                pdl=self._pdl,
            )
            if last:
                break
            if following is None:
                torch.index_select(
                    weights.fast_embeddings, 0, self._drawn[:, 1 + book], out=self._fast.residual
                )
            self._fast.run(
                lambda *args, at=book + 1: self._attend_fast(at, 1, *args),
                begun=following is not None,
            )
            logits = self._fast.logits(self._fast.normed)

    def _attend(
        self,
        shared: bool,
        index: int,
        layer: Layer,
        qkv: Tensor,
        normed: NormedRows | None,
        out: Tensor | Fp8Rows,
    ) -> None:
        decode_attention(
            qkv,
            normed,
            layer.heads,
            *self._pool.layer(index),
            self._slots.tables,
            self._row_slots,
            self._positions,
            self._work,
            out,
            prefix=self._staging.prefix[: self._rows] if shared else None,
            groups=self._staging.groups[: groups_for(self._rows)] if shared else None,
            pdl=self._pdl,
        )

    def _attend_fast(
        self,
        position: int,
        tokens: int,
        index: int,
        layer: Layer,
        qkv: Tensor,
        normed: NormedRows | None,
        out: Tensor | Fp8Rows,
    ) -> None:
        fast_attention(
            qkv,
            normed,
            layer.heads,
            self._fast_keys[index],
            self._fast_values[index],
            position,
            out,
            tokens=tokens,
            pdl=self._pdl,
        )

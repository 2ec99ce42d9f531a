"""Prefill on the device: a chunk of columns through the slow stack, its KV into pages.

Owns the stream of lowest priority and its buffers. The prefill thread waits for the device here, so
that a step launched after :meth:`Prefill.run` returned needs no event to see the KV.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from shoal.kernels.embedding import embed
from shoal.kernels.extend import extend_attention
from shoal.kernels.heads import store_heads
from shoal.kernels.norm import NormedRows
from shoal.kernels.quantise import Fp8Rows

from ..runner import PrefillChunk
from .stack import Bf16Stack
from .step import KvPool
from .weights import CudaWeights, Layer


class Prefill:
    """Up to ``max_rows`` columns at a time, in bf16."""

    def __init__(
        self,
        weights: CudaWeights,
        pool: KvPool,
        max_rows: int,
        max_pages: int,
        device: torch.device,
    ) -> None:
        self._weights = weights
        self._pool = pool
        self._max_rows = max_rows
        lowest, _ = torch.cuda.Stream.priority_range()
        self._stream = torch.cuda.Stream(device, priority=lowest)
        self._done = torch.cuda.Event(blocking=True)
        width = 1 + weights.codebooks
        config = weights.prefill.config
        self._host_columns = torch.zeros(max_rows, width, dtype=torch.int32, pin_memory=True)
        self._host_table = torch.zeros(max_pages, dtype=torch.int32, pin_memory=True)
        self._columns = torch.zeros(max_rows, width, dtype=torch.int32, device=device)
        self._table = torch.zeros(max_pages, dtype=torch.int32, device=device)
        self._queries = torch.zeros(
            max_rows, config.heads, config.head_dim, dtype=torch.bfloat16, device=device
        )
        self._stacks: dict[int, Bf16Stack] = {}
        self._device = device

    @torch.inference_mode()
    def run(self, chunk: PrefillChunk) -> None:
        """Write the chunk's KV; returns when it is written."""
        with torch.cuda.stream(self._stream):
            if chunk.copy_page is not None:
                self._pool.copy_page(*chunk.copy_page)
            pages = len(chunk.table)
            self._host_table[:pages] = torch.from_numpy(np.asarray(chunk.table, np.int32))
            self._table[:pages].copy_(self._host_table[:pages], non_blocking=True)
            for begin in range(0, len(chunk.columns), self._max_rows):
                part = chunk.columns[begin : begin + self._max_rows]
                self._rows(torch.from_numpy(np.ascontiguousarray(part)), chunk.position + begin)
            self._done.record()
        self._done.synchronize()

    def _rows(self, columns: Tensor, start: int) -> None:
        weights, count = self._weights, len(columns)
        self._host_columns[:count] = columns
        device_columns = self._columns[:count]
        device_columns.copy_(self._host_columns[:count], non_blocking=True)
        stack = self._stack(count)
        embed(
            device_columns,
            weights.embeddings,
            weights.codebook_embeddings,
            (weights.semantic_begin, weights.semantic_begin + weights.codebook_size - 1),
            weights.embedding_scale,
            stack.residual,
        )
        queries = self._queries[:count]

        def attend(
            index: int,
            layer: Layer,
            qkv: Tensor,
            normed: NormedRows | None,
            out: Tensor | Fp8Rows,
        ) -> None:
            heads, keys, values = layer.heads, self._pool.keys[index], self._pool.values[index]
            qk = None
            if heads.query_weight is not None and heads.key_weight is not None:
                qk = (heads.query_weight, heads.key_weight)
            store_heads(
                qkv, normed, qk, heads.rope, self._table, start, keys, values, queries, heads.eps
            )
            extend_attention(queries, heads, keys, values, self._table, start, out)

        stack.run(attend)

    def _stack(self, rows: int) -> Bf16Stack:
        if rows not in self._stacks:
            self._stacks[rows] = Bf16Stack(self._weights.prefill, rows, self._device)
        return self._stacks[rows]

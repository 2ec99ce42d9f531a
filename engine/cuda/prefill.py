"""Prefill on the device: a chunk of columns through the slow stack, its KV into pages.

``PrefillPass`` owns the kernels of a chunk and the staging of what they read; everything that
differs from chunk to chunk lies on the device, so that one recorded pass of a bucket's rows serves
every chunk that fits. ``Prefill`` owns the stream of lowest priority and the graphs. The prefill
thread waits for the device there, so that a step launched after :meth:`Prefill.run` returned needs
no event to see the KV.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from shoal.kernels.embedding import embed
from shoal.kernels.extend import extend_attention
from shoal.kernels.heads import store_heads
from shoal.kernels.norm import NormedRows
from shoal.kernels.quantise import Fp8Rows

from ..runner import Int32Array, PrefillChunk
from .buckets import bucket_of
from .stack import StackRun, make_stack
from .step import KvPool
from .weights import CudaWeights, Layer, StackWeights

_START, _COUNT, _TABLE = 0, 1, 2


class PrefillPass:
    """Chunks of up to ``buckets[-1]`` columns. Enqueues on the current stream, waits for nothing.

    What a pass reads is ``[start | count | table (max_pages) | columns]``, int32, in one buffer
    that is copied to the device at once.
    """

    def __init__(
        self,
        weights: CudaWeights,
        stack: StackWeights,
        pool: KvPool,
        buckets: Sequence[int],
        max_pages: int,
        device: torch.device,
    ) -> None:
        """``stack``: the slow stack, in the dtype that prefill is to multiply in."""
        self.buckets = tuple(buckets)
        self._weights = weights
        self._pool = pool
        self._width = 1 + weights.codebooks
        self._columns_at = _TABLE + max_pages
        most = self.buckets[-1]
        size = self._columns_at + most * self._width
        self._host = torch.zeros(size, dtype=torch.int32, pin_memory=device.type == "cuda")
        self._host_np: Int32Array = self._host.numpy()
        # A pass that was given no chunk yet writes one column's KV into the scratch page.
        self._host_np[_COUNT] = 1
        self._host_np[_TABLE : self._columns_at] = pool.scratch_page
        self._device = self._host.to(device)
        self._span = self._device[:_TABLE]
        self._table = self._device[_TABLE : self._columns_at]
        self._columns = self._device[self._columns_at :].view(most, self._width)
        config = stack.config
        self._queries = torch.zeros(
            most, config.heads, config.head_dim, dtype=torch.bfloat16, device=device
        )
        self._stacks: dict[int, StackRun] = {
            rows: make_stack(stack, rows, device) for rows in self.buckets
        }

    def send(self, columns: Int32Array, position: int, table: tuple[int, ...]) -> int:
        """Stage columns int32 [L, 1 + codebooks], L from 1 to the last bucket; returns the bucket.

        The pass that read the buffer before must be over. Rows behind L repeat a column that
        exists; their KV is not written.
        """
        count, pages = len(columns), len(table)
        rows = bucket_of(count, self.buckets)
        if pages > self._columns_at - _TABLE:
            raise ValueError(f"{pages} pages, {self._columns_at - _TABLE} at most")
        host = self._host_np
        host[_START] = position
        host[_COUNT] = count
        host[_TABLE : _TABLE + pages] = table
        used = self._columns_at + rows * self._width
        staged = host[self._columns_at : used].reshape(rows, self._width)
        staged[:count] = columns
        staged[count:] = columns[0]
        self._device[:used].copy_(self._host[:used], non_blocking=True)
        return rows

    def run(self, rows: int) -> None:
        """The kernels of a bucket of ``rows`` rows, for what was staged last."""
        weights, stack = self._weights, self._stacks[rows]
        embed(
            self._columns[:rows],
            weights.embeddings,
            weights.codebook_embeddings,
            (weights.semantic_begin, weights.semantic_begin + weights.codebook_size - 1),
            weights.embedding_scale,
            stack.residual,
        )
        queries = self._queries[:rows]

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
                qkv,
                normed,
                qk,
                heads.rope,
                self._table,
                keys,
                values,
                queries,
                heads.eps,
                span=self._span,
            )
            extend_attention(queries, heads, keys, values, self._table, self._span, out)

        stack.run(attend)


class Prefill:
    """The prefill thread's device work. Kernels run one by one until :meth:`capture` was called."""

    def __init__(self, prefill: PrefillPass, pool: KvPool, device: torch.device) -> None:
        self._pass = prefill
        self._pool = pool
        lowest, _ = torch.cuda.Stream.priority_range()
        self._stream = torch.cuda.Stream(device, priority=lowest)
        self._done = torch.cuda.Event(blocking=True)
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}

    @torch.inference_mode()
    def capture(self) -> None:
        """Capture every bucket; before any other thread uses the device."""
        pool = torch.cuda.graph_pool_handle()
        for rows in reversed(self._pass.buckets):
            with torch.cuda.stream(self._stream):
                for _ in range(2):
                    self._pass.run(rows)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(
                graph, pool=pool, stream=self._stream, capture_error_mode="thread_local"
            ):
                self._pass.run(rows)
            self._graphs[rows] = graph
            with torch.cuda.stream(self._stream):
                graph.replay()  # the first launch uploads it
        torch.cuda.synchronize()

    @torch.inference_mode()
    def run(self, chunk: PrefillChunk) -> None:
        """Write the chunk's KV; returns when it is written."""
        most = self._pass.buckets[-1]
        with torch.cuda.stream(self._stream):
            if chunk.copy_page is not None:
                self._pool.copy_page(*chunk.copy_page)
            for begin in range(0, len(chunk.columns), most):
                part = chunk.columns[begin : begin + most]
                rows = self._pass.send(part, chunk.position + begin, chunk.table)
                graph = self._graphs.get(rows)
                if graph is None:
                    self._pass.run(rows)
                else:
                    graph.replay()
                # The next part is staged where this one was.
                self._wait()
            self._wait()

    def _wait(self) -> None:
        self._done.record()
        self._done.synchronize()

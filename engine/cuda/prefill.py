"""Prefill on the device: chunks of columns through the slow stack, their KV into pages.

What a chunk leaves there is the same to the bit alone and beside others, in whatever order and
bucket, and however its context was cut into chunks: products add in an order that belongs to the
weight, attention in blocks of pages from the context's first on, and all else is done row by row.

``PrefillPass`` owns the kernels of a pass and the staging of what they read; everything that
differs from chunk to chunk lies on the device, so that one recorded pass of a bucket's rows serves
whatever chunks fit, of one context or of several. ``Prefill`` owns the stream of lowest priority
and the graphs. The prefill thread waits for the device there, so that a step launched after
:meth:`Prefill.run` returned needs no event to see the KV.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from shoal.kernels.embedding import embed
from shoal.kernels.extend import extend_attention
from shoal.kernels.heads import store_heads
from shoal.kernels.norm import NormedRows
from shoal.kernels.pages import TILE_TOKENS, tiles_of
from shoal.kernels.quantise import Fp8Rows

from ..runner import Int32Array, PrefillChunk
from .buckets import bucket_of
from .kv_pool import KvPool
from .stack import StackRun, make_stack
from .weights import CudaWeights, Layer, StackWeights


def in_passes(chunks: Iterable[PrefillChunk], most: int) -> Iterator[list[PrefillChunk]]:
    """``chunks`` in passes of ``most`` rows, in order; cut where a pass is full.

    Chunks begin with a tile each. One that goes on where the one before it ends may share its pass:
    a layer's keys are all written before any are read.
    """
    batch: list[PrefillChunk] = []
    room = most // TILE_TOKENS
    for chunk in chunks:
        begin = 0
        while begin < len(chunk.columns):
            if not room:
                yield batch
                batch, room = [], most // TILE_TOKENS
            part = chunk.columns[begin : begin + room * TILE_TOKENS]
            batch.append(PrefillChunk(part, chunk.position + begin, chunk.table))
            begin += len(part)
            room -= -(-len(part) // TILE_TOKENS)
    if batch:
        yield batch


class PrefillPass:
    """Chunks of up to ``buckets[-1]`` rows in all. Enqueues on the current stream, waits for
    nothing.

    What a pass reads is ``[tiles | columns | a table (max_pages) for each chunk]``, int32, in one
    buffer that is copied to the device at once. A chunk takes whole tiles; there are as many tables
    as tiles.
    """

    def __init__(
        self,
        weights: CudaWeights,
        stack: StackWeights,
        pool: KvPool,
        buckets: Sequence[int],
        max_pages: int,
        device: torch.device,
        *,
        fixed: bool = True,
    ) -> None:
        """``stack``: the slow stack, in the dtype that prefill is to multiply in. ``buckets``:
        ascending, the last a multiple of TILE_TOKENS (ValueError). Not ``fixed``: bf16 products are
        cuBLAS's, and a context's bits depend on the bucket; to measure what that is worth."""
        self.buckets = tuple(buckets)
        if self.buckets[-1] % TILE_TOKENS:
            raise ValueError(f"{self.buckets[-1]} rows are no whole tiles of {TILE_TOKENS}")
        self._weights = weights
        self._pool = pool
        self._width = 1 + weights.codebooks
        self._max_pages = max_pages
        most = self.buckets[-1]
        self._most_tiles = -(-most // TILE_TOKENS)
        self._columns_at = 3 * self._most_tiles
        self._tables_at = self._columns_at + most * self._width
        size = self._tables_at + self._most_tiles * max_pages
        self._host = torch.zeros(size, dtype=torch.int32, pin_memory=device.type == "cuda")
        self._host_np: Int32Array = self._host.numpy()
        # A pass that was given no chunk yet writes nothing.
        self._host_np[self._tables_at :] = pool.scratch_page
        self._device = self._host.to(device)
        self._tiles = self._device[: self._columns_at].view(self._most_tiles, 3)
        self._columns = self._device[self._columns_at : self._tables_at].view(most, self._width)
        self._tables = self._device[self._tables_at :].view(self._most_tiles, max_pages)
        config = stack.config
        self._queries = torch.zeros(
            most, config.heads, config.head_dim, dtype=torch.bfloat16, device=device
        )
        self._stacks: dict[int, StackRun] = {
            rows: make_stack(stack, rows, device, fixed=fixed) for rows in self.buckets
        }

    def send(self, chunks: Sequence[PrefillChunk]) -> int:
        """Stage chunks, each of one column at least; returns the bucket that they fit.

        The pass that read the buffer before must be over. Raises ``ValueError`` for chunks that do
        not fit, before anything of them is staged.
        """
        tiles = tiles_of([(chunk.position, len(chunk.columns)) for chunk in chunks])
        count = (len(tiles) - 1) * TILE_TOKENS + tiles[-1][2]
        rows = bucket_of(count, self.buckets)
        longest = max(len(chunk.table) for chunk in chunks)
        if longest > self._max_pages:
            raise ValueError(f"{longest} pages, {self._max_pages} at most")
        host, begin = self._host_np, 0
        laid = host[: self._columns_at].reshape(-1, 3)
        laid[: len(tiles)] = tiles
        laid[len(tiles) :] = 0
        columns = host[self._columns_at : self._tables_at].reshape(-1, self._width)
        # Rows of nobody are computed too: with a column that exists.
        columns[:rows] = chunks[0].columns[0]
        tables = host[self._tables_at :].reshape(-1, self._max_pages)
        for index, chunk in enumerate(chunks):
            columns[begin : begin + len(chunk.columns)] = chunk.columns
            begin += -(-len(chunk.columns) // TILE_TOKENS) * TILE_TOKENS
            tables[index, : len(chunk.table)] = chunk.table
        used = self._tables_at + len(chunks) * self._max_pages
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
        tiles = self._tiles[: -(-rows // TILE_TOKENS)]

        def attend(
            index: int,
            layer: Layer,
            qkv: Tensor,
            normed: NormedRows | None,
            out: Tensor | Fp8Rows,
        ) -> None:
            heads, (keys, values) = layer.heads, self._pool.layer(index)
            qk = None
            if heads.query_weight is not None and heads.key_weight is not None:
                qk = (heads.query_weight, heads.key_weight)
            store_heads(
                qkv,
                normed,
                qk,
                heads.rope,
                self._tables,
                keys,
                values,
                queries,
                heads.eps,
                tiles=tiles,
            )
            extend_attention(queries, heads, keys, values, self._tables, tiles, out)

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
    def run(self, chunks: Sequence[PrefillChunk]) -> None:
        """Write the chunks' KV, as many at once as fit; returns when it is written."""
        with torch.cuda.stream(self._stream):
            for chunk in chunks:
                if chunk.copy_page is not None:
                    self._pool.copy_page(*chunk.copy_page)
            for batch in in_passes(chunks, self._pass.buckets[-1]):
                rows = self._pass.send(batch)
                graph = self._graphs.get(rows)
                if graph is None:
                    self._pass.run(rows)
                else:
                    graph.replay()
                # The next pass is staged where this one was.
                self._wait()
            self._wait()

    def _wait(self) -> None:
        self._done.record()
        self._done.synchronize()

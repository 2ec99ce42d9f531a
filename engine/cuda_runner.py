"""``CudaRunner``: the model on an NVIDIA GPU, every decode step one replayed graph.

Owns the streams, the graphs and the two sets of step buffers. A step is one copy of its plan to the
device, a graph, and one copy of its results on a stream of its own; nothing waits for the device
but :meth:`collect`, which is how two steps at most are in flight. State between steps stays on the
device. Three engine threads share a runner, each with streams and buffers of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch

from shoal.kernels.attention import Workspace
from shoal.kernels.pages import TILE_TOKENS

from .codec import Codec, encode_codes
from .cuda.buckets import PREFILL_SIZES, bucket_of, buckets_up_to
from .cuda.host_pages import HostPages, usual_bytes
from .cuda.kv_pool import KvDtype, KvPool, page_bytes
from .cuda.prefill import Prefill, PrefillPass
from .cuda.sharing import Sharing
from .cuda.slot_state import SlotState
from .cuda.staging import BUFFERS, StagedPlan, StepStaging
from .cuda.step import DecodeStep
from .cuda.vocoder import Vocoder
from .cuda.weights import CudaWeights
from .model.config import DualARConfig
from .runner import (
    Float32Array,
    Int16Array,
    Int32Array,
    PrefillChunk,
    RunnerSpec,
    StepPlan,
    StepResult,
    VocodeBatch,
)

PREFILL_ROWS = 512
"""Columns that one prefill graph computes at most in bf16, of one context or of several; a longer
chunk takes several. Only turns that begin together fill one: voices come in shorter chunks, because
a step beside one of 512 takes twice as long as alone."""
NARROW_PREFILL_ROWS = 256
"""The same in FP8, where a pass of twice the columns takes twice the time."""
SHARING_ROWS = 16
"""Steps of fewer rows have no graph that attends to a shared prefix once: it would not pay."""
PCM_BATCH_FRAMES = (1, 2, 4, 8)
PAGE_TOKENS = 64
_MEMORY_SHARE = 0.8
"""Of the memory that is free once the weights are loaded, what pages may take."""


class CudaRunner:
    """See :class:`shoal.engine.runner.Runner` for the methods' contracts.

    Before :meth:`warm_up` steps and prefills launch their kernels one by one.
    """

    def __init__(
        self,
        config: DualARConfig,
        weights: CudaWeights,
        codec: Codec,
        *,
        slots: int,
        pages: int | None = None,
        kv_dtype: KvDtype = "bf16",
        host_bytes: int | None = 0,
        device: torch.device,
        pdl: bool = True,
        prefill_rows: int | None = None,
        sharing: bool = True,
        buckets: Sequence[int] | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> None:
        """``pages``: what fits the device and a full context for every slot, when not given.
        ``kv_dtype``: what the slow stack's keys and values are kept in.
        ``host_bytes``: pinned memory for copies of pages, taken by :meth:`warm_up`; what suits
        device and machine when None.
        ``prefill_rows``: columns of a prefill graph at most (None: PREFILL_ROWS or
        NARROW_PREFILL_ROWS); decode waits for the longest kernel of one. ``sharing``: attend once
        to a prefix that many rows have in common. ``buckets``: numbers of rows to capture steps
        for, ascending to ``slots``; the usual ones when not given.
        """
        self._say = progress or (lambda _line: None)
        # What is left of the codec in float32 multiplies in TF32, and cuDNN looks for the fastest
        # convolution of each captured shape.
        torch.set_float32_matmul_precision("high")
        torch.backends.cudnn.allow_tf32 = True
        torch.backends.cudnn.benchmark = True
        self._device = device
        self._codec = codec
        slow = config.slow
        if prefill_rows is None:
            wide = isinstance(weights.prefill.layers[0].qkv, torch.Tensor)
            prefill_rows = PREFILL_ROWS if wide else NARROW_PREFILL_ROWS
        max_pages = -(-config.max_seq_len // PAGE_TOKENS)
        shape = (slow.kv_heads, PAGE_TOKENS, slow.head_dim)
        each = page_bytes(slow.layers, *shape, kv_dtype)
        if pages is None:
            free, _ = torch.cuda.mem_get_info(device)
            pages = min(slots * max_pages, int(free * _MEMORY_SHARE) // each)
        pool = KvPool.empty(slow.layers, pages, *shape, device, kv_dtype)
        if host_bytes is None:
            host_bytes = usual_bytes(pages * each)
        self._host_pages = HostPages(pool, host_bytes, device)
        self._spec = RunnerSpec(
            codebooks=config.codebooks,
            frame_samples=codec.frame_samples,
            sample_rate=codec.sample_rate,
            max_slots=slots,
            page_tokens=PAGE_TOKENS,
            pages=pages,
            max_positions=config.max_seq_len,
            end_token=weights.end_token,
            pcm_batch_frames=PCM_BATCH_FRAMES,
            page_bytes=each,
            prefill_tiles=prefill_rows // TILE_TOKENS,
            prefill_tile_columns=TILE_TOKENS,
            host_pages=self._host_pages.planned,
        )
        state = SlotState(slots, config.codebooks, max_pages, pages, device)
        self._buckets = buckets_up_to(slots) if buckets is None else tuple(buckets)
        finder = Sharing(slots + 1, PAGE_TOKENS) if sharing and slots >= SHARING_ROWS else None
        self._staging = StepStaging(state, slots, device, finder)
        work = Workspace.empty(slots, weights.slow.layers[0].heads, device)
        self._steps = {
            rows: DecodeStep(weights, pool, state, self._staging, work, rows, device, pdl)
            for rows in self._buckets
        }
        self._sharing = finder is not None
        self._graphs: dict[tuple[int, bool], torch.cuda.CUDAGraph] = {}
        _, highest = torch.cuda.Stream.priority_range()
        self._decode_stream = torch.cuda.Stream(device, priority=highest)
        self._copy_stream = torch.cuda.Stream(device, priority=highest)
        self._computed = [torch.cuda.Event() for _ in range(BUFFERS)]
        self._copied = [torch.cuda.Event(blocking=True) for _ in range(BUFFERS)]
        self._in_flight: dict[int, tuple[StepPlan, StagedPlan]] = {}
        self._prefill_pass = PrefillPass(
            weights,
            weights.prefill,
            pool,
            buckets_up_to(prefill_rows, PREFILL_SIZES),
            max_pages,
            device,
        )
        self._prefill = Prefill(self._prefill_pass, pool, device)
        self._vocoder = Vocoder(codec, slots, self._buckets, PCM_BATCH_FRAMES, device)

    @property
    def spec(self) -> RunnerSpec:
        return self._spec

    @torch.inference_mode()
    def warm_up(self) -> None:
        self._host_pages.allocate(self._say)
        self._spec = replace(self._spec, host_pages=self._host_pages.count)
        pool = torch.cuda.graph_pool_handle()
        for rows in reversed(self._buckets):
            self._say(f"capturing the step of {rows} rows")
            self._capture(rows, False, pool)
            if self._sharing and rows >= SHARING_ROWS:
                self._capture(rows, True, pool)
        self._say("capturing the codec")
        self._vocoder.capture()
        self._say("capturing prefill")
        self._prefill.capture()
        torch.cuda.synchronize()

    def _capture(self, rows: int, shared: bool, pool: tuple[int, int]) -> None:
        step = self._steps[rows]
        with torch.cuda.stream(self._decode_stream):
            for _ in range(2):
                step.run(shared=shared)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(
            graph, pool=pool, stream=self._decode_stream, capture_error_mode="thread_local"
        ):
            step.run(shared=shared)
        with torch.cuda.stream(self._decode_stream):
            graph.replay()  # the first launch uploads it
        self._graphs[rows, shared] = graph

    def launch(self, plan: StepPlan) -> None:
        if len(self._in_flight) >= BUFFERS:
            raise ValueError(f"step {plan.step - BUFFERS} was not collected")
        bucket = bucket_of(len(plan.slots), self._buckets)
        staged = self._staging.pack(plan, bucket)
        computed = self._computed[staged.buffer]
        with torch.inference_mode():
            with torch.cuda.stream(self._decode_stream):
                self._staging.send(staged)
                shared = staged.shared and bucket >= SHARING_ROWS
                graph = self._graphs.get((bucket, shared))
                if graph is None:
                    self._steps[bucket].run(shared=shared)
                else:
                    graph.replay()
                computed.record()
            with torch.cuda.stream(self._copy_stream):
                self._copy_stream.wait_event(computed)
                self._staging.fetch(staged)
                self._copied[staged.buffer].record()
        self._in_flight[plan.step] = (plan, staged)

    def collect(self, step: int) -> StepResult:
        plan, staged = self._in_flight.pop(step)
        self._copied[staged.buffer].synchronize()
        columns, ended, generations = self._staging.read(staged)
        return StepResult(step, plan.slots, generations, columns, ended)

    def prefill(self, *chunks: PrefillChunk) -> None:
        self._prefill.run(chunks)

    def save_pages(self, pages: Sequence[int], host_pages: Sequence[int]) -> None:
        self._host_pages.save(pages, host_pages)

    def load_pages(self, host_pages: Sequence[int], pages: Sequence[int]) -> None:
        self._host_pages.load(host_pages, pages)

    def vocode(self, batch: VocodeBatch) -> Int16Array:
        return self._vocoder.run(batch)

    def encode(self, samples: Float32Array) -> Int32Array:
        codes = encode_codes(self._codec, torch.from_numpy(np.ascontiguousarray(samples)))
        return codes.to(torch.int32).cpu().numpy()

    def close(self) -> None:
        torch.cuda.synchronize(self._device)

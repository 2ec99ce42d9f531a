"""The runner on a CPU: one worker thread stands in for a device's stream.

Owns the weights, the paged KV pool, the decode state and the codec. Decode steps run on the
worker thread in launch order; ``prefill``, ``vocode`` and ``encode`` run on their callers'
threads, beside it: a prefill writes only pages that no step in flight reads. Knows nothing of
streams, text or scheduling.

A row's codes are the same bits alone and among any neighbours: every operation is row by row or
sequence by sequence, except matrix products, whose rows are the same bits for any number of rows
from two on (checked in ``warm_up``; where that fails, all slots are computed in every step). Nor do
they depend on how a prompt was cut into prefill chunks.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import SimpleQueue

import numpy as np
import torch
from torch import Tensor

from .checkpoint import CheckpointError
from .codec import Codec, CodecError, StreamDecoder, encode_codes, load_codec
from .model.compile import compile_module, packs_linear, rows_are_independent
from .model.config import DualARConfig, read_config
from .model.decode_state import DecodeState
from .model.dual_ar import DualAR
from .model.step import DecodeStep
from .model.weights import load_weights
from .runner import (
    Float32Array,
    Int16Array,
    Int32Array,
    Join,
    PrefillChunk,
    RunnerSpec,
    SlotSampling,
    StepPlan,
    StepResult,
    VocodeBatch,
)
from .tokenizer import load_tokenizer

PREFILL_ROWS = 16
"""Prompt positions computed in one go. Always this many, beginning at a multiple of it: so a
position's keys and values are the same bits however the prompt was cut into chunks."""
STEPS_IN_FLIGHT = 2
PCM_BATCH_FRAMES = (1, 2, 4, 8, 16)


class CpuRunner:
    """See :class:`shoal.engine.runner.Runner` for the methods' contracts."""

    def __init__(
        self,
        config: DualARConfig,
        model: DualAR,
        codec: Codec,
        *,
        slots: int,
        pages: int,
        page_tokens: int = 64,
        host_bytes: int = 0,
    ) -> None:
        """Starts the worker thread; :meth:`close` ends it. ``page_tokens``: a multiple of 16.
        ``host_bytes``: memory for copies of pages, which is used as they come."""
        if page_tokens % PREFILL_ROWS:
            raise ValueError(f"page_tokens must be a multiple of {PREFILL_ROWS}")
        self._model = model
        self._codec = codec
        self._decoder = StreamDecoder(codec, slots)
        stack = config.slow
        page_bytes = 8 * stack.layers * stack.kv_heads * page_tokens * stack.head_dim
        self._spec = RunnerSpec(
            codebooks=config.codebooks,
            frame_samples=codec.frame_samples,
            sample_rate=codec.sample_rate,
            max_slots=slots,
            page_tokens=page_tokens,
            pages=pages,
            max_positions=config.max_seq_len,
            end_token=model.end_token,
            pcm_batch_frames=PCM_BATCH_FRAMES,
            page_bytes=page_bytes,
            host_pages=host_bytes // page_bytes,
        )
        self._group = stack.heads // stack.kv_heads
        # One page more than is handed out: rows that belong to nobody are written there.
        self._pools = [
            torch.zeros(2 * stack.kv_heads, (pages + 1) * page_tokens, stack.head_dim)
            for _ in range(stack.layers)
        ]
        self._host_pages = torch.empty(
            self._spec.host_pages, stack.layers, 2 * stack.kv_heads, page_tokens, stack.head_dim
        )
        self._prefill = compile_module(model)
        self._state = DecodeState(
            compile_module(DecodeStep(model, slots)),
            self._pools,
            slots=slots,
            width=1 + config.codebooks,
            page_tokens=page_tokens,
            end_token=model.end_token,
        )
        self._plans: SimpleQueue[StepPlan | None] = SimpleQueue()
        self._results: SimpleQueue[StepResult | BaseException] = SimpleQueue()
        self._launched = 0
        self._collected = 0
        self._worker = threading.Thread(target=self._work, name="decode-steps", daemon=True)
        self._worker.start()

    @classmethod
    def load(
        cls,
        model_dir: Path,
        *,
        slots: int = 8,
        pages: int | None = None,
        page_tokens: int = 64,
        host_bytes: int = 0,
        progress: Callable[[str], None] | None = None,
    ) -> CpuRunner:
        """Read a checkpoint folder; ``progress`` gets a line per file. Raises
        :class:`.checkpoint.CheckpointError`.

        ``pages`` defaults to a full context for every slot. Sets torch to one thread, for the
        whole process: steps, codec and prefill run beside each other on threads of their own.
        """
        torch.set_num_threads(1)
        config = read_config(model_dir)
        tokenizer = load_tokenizer(model_dir)
        model = DualAR(
            config,
            load_weights(model_dir, config, progress=progress),
            config.semantic_ids(tokenizer.semantic),
            tokenizer.end_token,
            packed=packs_linear(),
        )
        try:
            codec = load_codec(model_dir, progress=progress or (lambda _line: None))
        except CodecError as error:
            raise CheckpointError(str(error)) from error
        if codec.codebooks != config.codebooks:
            raise CheckpointError(
                f"{model_dir}: the codec has {codec.codebooks} codebooks, the model "
                f"{config.codebooks}"
            )
        if pages is None:
            pages = slots * -(-config.max_seq_len // page_tokens)
        return cls(
            config,
            model,
            codec,
            slots=slots,
            pages=pages,
            page_tokens=page_tokens,
            host_bytes=host_bytes,
        )

    @property
    def spec(self) -> RunnerSpec:
        return self._spec

    @property
    def kv_pools(self) -> tuple[Tensor, ...]:
        """Per layer float32 [2 * kv_heads, positions, head_dim]: keys, then values."""
        return tuple(self._pools)

    # Decode ---------------------------------------------------------------------------------------

    def launch(self, plan: StepPlan) -> None:
        if plan.step != self._launched:
            raise ValueError(f"step {plan.step} launched, {self._launched} is next")
        if self._launched - self._collected >= STEPS_IN_FLIGHT:
            raise ValueError(f"step {plan.step - STEPS_IN_FLIGHT} was not collected")
        self._launched += 1
        self._plans.put(plan)

    def collect(self, step: int) -> StepResult:
        if step != self._collected or step >= self._launched:
            raise ValueError(f"step {step} collected, {self._collected} of {self._launched} next")
        result = self._results.get()
        if isinstance(result, BaseException):
            self._results.put(result)  # the worker is gone: whoever asks again must not wait
            raise result
        self._collected += 1
        return result

    def _work(self) -> None:
        """Worker thread: a failed step is handed to ``collect``, and ends the thread."""
        with torch.inference_mode():
            while (plan := self._plans.get()) is not None:
                try:
                    self._results.put(self._state.run(plan))
                except Exception as error:  # handed over; whoever collects decides
                    self._results.put(error)
                    return

    # Prefill --------------------------------------------------------------------------------------

    def prefill(self, *chunks: PrefillChunk) -> None:
        for chunk in chunks:
            self._prefill_chunk(chunk)

    def _prefill_chunk(self, chunk: PrefillChunk) -> None:
        size = self._spec.page_tokens
        end = chunk.position + len(chunk.columns)
        if len(chunk.table) * size < end:
            raise ValueError(f"{len(chunk.table)} pages do not hold {end} positions")
        with torch.inference_mode():
            if chunk.copy_page is not None:
                self._copy_page(*chunk.copy_page)
            columns = torch.from_numpy(np.ascontiguousarray(chunk.columns))
            table = torch.tensor(chunk.table)
            begin = chunk.position
            while begin < end:
                stop = min(end, (begin // PREFILL_ROWS + 1) * PREFILL_ROWS)
                rows = columns[begin - chunk.position : stop - chunk.position]
                self._prefill_block(rows, begin, table[: begin // size + 1])
                begin = stop

    def _prefill_block(self, columns: Tensor, begin: int, table: Tensor) -> None:
        """``columns`` at ``begin`` .., all in one block of ``PREFILL_ROWS`` positions.

        The block's other rows are computed from nothing and land on the spare page. What lies in
        the block's positions after the last column is masked, so it need only be finite.
        """
        size, first = self._spec.page_tokens, begin // PREFILL_ROWS * PREFILL_ROWS
        length = first + PREFILL_ROWS
        before, after = begin - first, length - begin - len(columns)
        positions = torch.arange(first, length)
        places = table[-1] * size + positions % size
        spare = self._spec.pages * size + torch.arange(PREFILL_ROWS)
        live = (positions >= begin) & (positions < begin + len(columns))
        mask = torch.zeros(PREFILL_ROWS, 1, length)
        mask.masked_fill_(torch.arange(length) > positions.view(-1, 1, 1), -np.inf)
        self._prefill.slow_stack(
            torch.nn.functional.pad(self._prefill.embed(columns), [0, 0, before, after]),
            positions.clamp(max=self._spec.max_positions - 1),
            self._pools,
            size,
            torch.where(live, places, spare),
            [table],
            [length],
            [PREFILL_ROWS],
            mask.expand(PREFILL_ROWS, self._group, length).reshape(-1, length),
        )

    def _copy_page(self, source: int, target: int) -> None:
        for pool in self._pools:
            pool[:, self._places(target)] = pool[:, self._places(source)]

    def _places(self, page: int) -> slice:
        size = self._spec.page_tokens
        return slice(page * size, (page + 1) * size)

    def save_pages(self, pages: Sequence[int], host_pages: Sequence[int]) -> None:
        for page, host_page in zip(pages, host_pages, strict=True):
            for pool, kept in zip(self._pools, self._host_pages[host_page], strict=True):
                kept.copy_(pool[:, self._places(page)])

    def load_pages(self, host_pages: Sequence[int], pages: Sequence[int]) -> None:
        for host_page, page in zip(host_pages, pages, strict=True):
            for pool, kept in zip(self._pools, self._host_pages[host_page], strict=True):
                pool[:, self._places(page)].copy_(kept)

    # Codec ----------------------------------------------------------------------------------------

    def vocode(self, batch: VocodeBatch) -> Int16Array:
        with torch.inference_mode():
            codes = torch.from_numpy(np.ascontiguousarray(batch.codes))
            sound = self._decoder.decode(batch.slots, codes, torch.from_numpy(batch.reset))
            return (sound.clamp(-1.0, 1.0) * 32767.0).round().to(torch.int16).numpy()

    def encode(self, samples: Float32Array) -> Int32Array:
        with torch.inference_mode():
            sound = torch.from_numpy(np.ascontiguousarray(samples))
            return encode_codes(self._codec, sound).numpy()

    # Life -----------------------------------------------------------------------------------------

    def warm_up(self) -> None:
        """Compile for every number of rows, and check what the rows' independence rests on."""
        slots, spare = self._spec.max_slots, self._spec.pages
        sampling = SlotSampling(temperature=0.7, top_p=0.9, top_k=30, seed=0)
        column = np.zeros(1 + self._spec.codebooks, np.int32)
        with torch.inference_mode():
            self._state.rows_vary = rows_are_independent(self._model, max(slots, 2))
            for _ in range(2):
                for rows in (1, PREFILL_ROWS):
                    columns = torch.zeros(rows, len(column), dtype=torch.int32)
                    self._prefill_block(columns, 0, torch.tensor([spare]))
                for rows in range(1, slots + 1):
                    joins = tuple(Join(s, 0, 0, 0, column, (spare,), sampling) for s in range(rows))
                    self._state.run(StepPlan(step=0, slots=tuple(range(rows)), joins=joins))

        for frames in PCM_BATCH_FRAMES:
            codes = np.zeros((1, frames, self._spec.codebooks), np.int32)
            self.vocode(VocodeBatch((0,), codes, np.ones(1, np.bool_)))

    def close(self) -> None:
        self._plans.put(None)
        self._worker.join()

"""The codec on the device: graphs by number of rows and of frames, on a stream of their own.

Owns the pinned buffers of codes and sound and the captured graphs. Used by the codec's thread
alone, which waits here for its samples; decode's stream is never waited for.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ..codec import Codec, StreamDecoder
from ..runner import Int16Array, VocodeBatch
from .buckets import bucket_of


class Vocoder:
    """``rows`` and ``frames``: the sizes that are captured, ascending."""

    def __init__(
        self,
        codec: Codec,
        slots: int,
        rows: Sequence[int],
        frames: Sequence[int],
        device: torch.device,
    ) -> None:
        self._decoder = StreamDecoder(codec, slots + 1)
        self._dummy = slots
        self._frames = tuple(frames)
        self._rows = tuple(rows)
        self._frame_samples = codec.frame_samples
        self._stream = torch.cuda.Stream(device)
        self._done = torch.cuda.Event(blocking=True)
        most_rows, most_frames = self._rows[-1], self._frames[-1]

        def pair(*shape: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
            host = torch.zeros(*shape, dtype=dtype, pin_memory=True)
            return host, torch.zeros(*shape, dtype=dtype, device=device)

        self._host_slots, self._slots = pair(most_rows, dtype=torch.int64)
        self._host_reset, self._reset = pair(most_rows, dtype=torch.bool)
        self._host_codes, self._codes = pair(
            most_rows * most_frames * codec.codebooks, dtype=torch.int32
        )
        self._host_pcm, self._pcm = pair(
            most_rows * most_frames * codec.frame_samples, dtype=torch.int16
        )
        self._codebooks = codec.codebooks
        self._graphs: dict[tuple[int, int], torch.cuda.CUDAGraph] = {}

    @torch.inference_mode()
    def capture(self) -> None:
        """Capture every size; before any other thread uses the device."""
        self._host_slots.fill_(self._dummy)
        self._slots.fill_(self._dummy)
        pool = torch.cuda.graph_pool_handle()
        for rows in reversed(self._rows):
            for frames in reversed(self._frames):
                with torch.cuda.stream(self._stream):
                    for _ in range(2):
                        self._body(rows, frames)
                torch.cuda.synchronize()
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(
                    graph, pool=pool, stream=self._stream, capture_error_mode="thread_local"
                ):
                    self._body(rows, frames)
                self._graphs[rows, frames] = graph

    def _body(self, rows: int, frames: int) -> None:
        codes = self._codes[: rows * frames * self._codebooks].view(rows, frames, -1)
        pcm = self._pcm[: rows * frames * self._frame_samples].view(rows, -1)
        self._decoder.pcm_at(self._slots[:rows], codes, self._reset[:rows], pcm)

    @torch.inference_mode()
    def run(self, batch: VocodeBatch) -> Int16Array:
        """PCM int16 [rows, frames * frame_samples]."""
        count, frames = batch.codes.shape[:2]
        rows = bucket_of(count, self._rows)
        self._host_slots[:count] = torch.from_numpy(np.asarray(batch.slots, np.int64))
        self._host_slots[count:rows] = self._dummy
        self._host_reset[:count] = torch.from_numpy(batch.reset)
        used = count * frames * self._codebooks
        flat = torch.from_numpy(np.ascontiguousarray(batch.codes, np.int32)).view(-1)
        self._host_codes[:used] = flat
        samples = count * frames * self._frame_samples
        with torch.cuda.stream(self._stream):
            self._slots[:rows].copy_(self._host_slots[:rows], non_blocking=True)
            self._reset[:rows].copy_(self._host_reset[:rows], non_blocking=True)
            self._codes[:used].copy_(self._host_codes[:used], non_blocking=True)
            self._graphs[rows, frames].replay()
            self._host_pcm[:samples].copy_(self._pcm[:samples], non_blocking=True)
            self._done.record()
        self._done.synchronize()
        return self._host_pcm[:samples].numpy().reshape(count, -1).copy()

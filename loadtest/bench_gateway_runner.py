"""``CostlessRunner``: a runner whose device does nothing but take time, for benches of the rest.

A step ends ``step_s(rows)`` after the one before it, sound takes as long as its frames; both are
slept through with the interpreter let go of, as a wait for a GPU is. Every row draws noise, and
ends after a number of frames that its slot's generation decides. Used by the engine's three
threads, as any runner.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shoal.engine.checkpoint import VoiceConfig
from shoal.engine.loading import LoadedModel
from shoal.engine.random_model import S2_PRO, byte_tokenizer
from shoal.engine.runner import (
    Float32Array,
    Int16Array,
    Int32Array,
    PrefillChunk,
    RunnerSpec,
    StepPlan,
    StepResult,
    VocodeBatch,
)

RATE = 44_100
FRAME_SAMPLES = 2048
_PAGE_TOKENS = 64
_PAGES_A_SLOT = 48
_TILE_COLUMNS = 32
_PCM_BATCH_FRAMES = (1, 2, 4, 8)
_NOISE_FRAMES = 512


@dataclass(frozen=True, slots=True)
class Device:
    """How long the device takes, as one H200 does: a step ``step_base_s + rows * step_row_s``,
    sound ``vocode_base_s + rows * frames * vocode_frame_s``."""

    step_base_s: float = 0.0027
    step_row_s: float = 0.000052
    prefill_s: float = 0.004
    """Of a pass of one tile, behind a voice of 512 columns."""
    prefill_tile_s: float = 0.00018
    """Of each further tile of 32 columns. Measured with one context of up to eight tiles; that
    several contexts, and more tiles, take the same is an assumption."""
    prefill_tiles: int = 16
    """In a pass. 1: one sentence after another."""
    vocode_base_s: float = 0.00045
    vocode_frame_s: float = 0.00005
    frames: int = 110
    """Of an utterance, about."""

    def step_s(self, rows: int) -> float:
        return self.step_base_s + rows * self.step_row_s


class CostlessRunner:
    """See the module, and :class:`shoal.engine.runner.Runner`."""

    def __init__(self, slots: int, device: Device) -> None:
        self.spec = RunnerSpec(
            codebooks=S2_PRO.codebooks,
            frame_samples=FRAME_SAMPLES,
            sample_rate=RATE,
            max_slots=slots,
            page_tokens=_PAGE_TOKENS,
            pages=slots * _PAGES_A_SLOT,
            max_positions=_PAGES_A_SLOT * _PAGE_TOKENS,
            end_token=S2_PRO.end_token or 0,
            pcm_batch_frames=_PCM_BATCH_FRAMES,
            prefill_tiles=device.prefill_tiles,
            prefill_tile_columns=_TILE_COLUMNS,
        )
        self._device = device
        self._generations = np.zeros(slots, np.int32)
        self._left = np.zeros(slots, np.int32)
        self._flying: deque[tuple[StepPlan, float, Int32Array, tuple[int, ...]]] = deque()
        self._free_s = 0.0
        draw = np.random.default_rng(0)
        speech = draw.normal(0.0, 3000.0, _NOISE_FRAMES * FRAME_SAMPLES)
        self._noise = np.clip(speech, -30_000, 30_000).astype(np.int16)
        self._columns = draw.integers(0, 4096, (slots, 1 + S2_PRO.codebooks), dtype=np.int32)
        self._columns[:, 0] += S2_PRO.semantic_begin or 0

    def warm_up(self) -> None:
        """Nothing to do."""

    def launch(self, plan: StepPlan) -> None:
        for join in plan.joins:
            self._generations[join.slot] = join.generation
            self._left[join.slot] = self._device.frames * (80 + (join.generation * 13) % 40) // 100
        rows = np.array(plan.slots)
        self._left[rows] -= 1
        self._free_s = max(self._free_s, time.monotonic()) + self._device.step_s(len(rows))
        generations = tuple(self._generations[rows].tolist())
        self._flying.append((plan, self._free_s, self._left[rows], generations))

    def collect(self, step: int) -> StepResult:
        plan, done_s, left, generations = self._flying.popleft()
        assert plan.step == step
        _sleep_until(done_s)
        columns = self._columns[: len(plan.slots)].copy()
        return StepResult(step, plan.slots, generations, columns, left < 0)

    def prefill(self, *chunks: PrefillChunk) -> None:
        tiles = sum(-(-len(chunk.columns) // _TILE_COLUMNS) for chunk in chunks)
        time.sleep(self._device.prefill_s + (tiles - 1) * self._device.prefill_tile_s)

    def save_pages(self, pages: Sequence[int], host_pages: Sequence[int]) -> None:
        raise NotImplementedError  # it has no pages in the host's memory

    def load_pages(self, host_pages: Sequence[int], pages: Sequence[int]) -> None:
        raise NotImplementedError

    def vocode(self, batch: VocodeBatch) -> Int16Array:
        rows, frames = batch.codes.shape[:2]
        device = self._device
        sound_s = device.vocode_base_s + rows * frames * device.vocode_frame_s
        done_s = time.monotonic() + sound_s
        size = frames * FRAME_SAMPLES
        pcm = np.empty((rows, size), np.int16)
        for row in range(rows):
            at = (row * 7919) % (len(self._noise) - size)
            pcm[row] = self._noise[at : at + size]
        _sleep_until(done_s)
        return pcm

    def encode(self, samples: Float32Array) -> Int32Array:
        raise NotImplementedError("this runner knows no recordings")

    def close(self) -> None:
        """Nothing to release."""


def costless_model(slots: int, device: Device) -> LoadedModel:
    """A model of S2 Pro's sizes on a :class:`CostlessRunner`."""
    return LoadedModel(
        name="costless",
        config=S2_PRO,
        voice=VoiceConfig("none", 0.7, 0.7, 30, None, _PAGES_A_SLOT * _PAGE_TOKENS),
        tokenizer=byte_tokenizer(S2_PRO),
        runner=CostlessRunner(slots, device),
        device="none",
        note="",
        codec_fingerprint="costless",
    )


def _sleep_until(when_s: float) -> None:
    left_s = when_s - time.monotonic()
    if left_s > 0:
        time.sleep(left_s)

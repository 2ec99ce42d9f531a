"""The seam between scheduling and the device: what a runner does, and the frozen messages it takes.

Everything above this file is the same code on a CPU and on a GPU. A runner owns weights, KV
pages, per-slot device state and the codec's state; it knows nothing of streams, text, time or
queues. Thread rules are per method, because a runner is shared by three engine threads and
promises to order the work itself (events on a GPU, a worker queue on a CPU).

Positions and pages. A slot's context is a list of columns ``[1 + codebooks]`` at positions
0, 1, 2...; position ``p`` lives in page ``table[p // page_tokens]`` at offset
``p % page_tokens``. Pages are allocated and reference-counted by the scheduler alone. Pages of a
shared prefix appear in many tables and are never written through them.

The first step of a segment feeds the prompt's last column (the one that opens the assistant's
turn), so prefill only ever writes KV and the step is the single place that samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

Int32Array = npt.NDArray[np.int32]
Int16Array = npt.NDArray[np.int16]
Float32Array = npt.NDArray[np.float32]
BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class RunnerSpec:
    """Sizes fixed when the runner was built."""

    codebooks: int
    frame_samples: int
    sample_rate: int
    max_slots: int
    page_tokens: int
    pages: int
    """Pages that the scheduler may hand out: 0 .. pages - 1."""
    max_positions: int
    end_token: int
    """The slow token that ends a segment (im_end). Its frame carries no sound."""
    pcm_batch_frames: tuple[int, ...]
    """Frame counts per slot that ``vocode`` is fast at (CUDA graphs), ascending; a CPU takes any
    up to the last."""
    page_bytes: int = 0
    """What a page's keys and values take; 0 where nobody counts."""
    prefill_tiles: int = 1
    """What one call of ``prefill`` should be given at most, if of several contexts: each takes
    whole tiles. 1: contexts gain nothing from one another."""
    prefill_tile_columns: int = 1
    host_pages: int = 0
    """Pages of the host's memory that the scheduler may copy to and from: 0 .. host_pages - 1."""


@dataclass(frozen=True, slots=True)
class SlotSampling:
    """Resolved sampling of one slot. ``temperature`` 0 is greedy."""

    temperature: float
    top_p: float
    top_k: int
    seed: int


@dataclass(frozen=True, slots=True, eq=False)
class Join:
    """(Re)start a slot at this step: the first step of a segment.

    ``column`` int32 [1 + codebooks] is fed at ``position``; KV of all positions before it is in
    ``table`` (page ids in order, at least enough for ``position`` itself). ``draw`` is the
    frame counter that keys the generator: it counts over all segments of a stream, so a stream's
    draws never repeat. The RAS window starts empty and the first frame is drawn without it.
    """

    slot: int
    generation: int
    position: int
    draw: int
    column: Int32Array
    table: tuple[int, ...]
    sampling: SlotSampling


@dataclass(frozen=True, slots=True)
class PageGrant:
    """Append ``page`` to the table of ``slot``, before this step."""

    slot: int
    page: int


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One decode step. ``slots`` are the rows that run; every other slot is untouched.

    ``step`` counts from 0 without gaps; results live in buffer ``step % 2``, so ``collect(n)``
    must have returned before ``launch(n + 2)``.
    """

    step: int
    slots: tuple[int, ...]
    joins: tuple[Join, ...] = ()
    grants: tuple[PageGrant, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class StepResult:
    """What a step drew, rows in the order of ``StepPlan.slots``.

    ``columns`` int32 [rows, 1 + codebooks]: the slow token, then the codes. ``ended`` bool [rows]:
    the slow token is ``end_token``, and the row's codes are not sound. A row that ended in an
    earlier step the host had not seen yet reports ``ended`` again and changed nothing.
    ``generations`` are those the rows ran with.
    """

    step: int
    slots: tuple[int, ...]
    generations: tuple[int, ...]
    columns: Int32Array
    ended: BoolArray


@dataclass(frozen=True, slots=True, eq=False)
class PrefillChunk:
    """Write KV of ``columns`` int32 [L, 1 + codebooks] at ``position`` .. ``position + L - 1``.

    ``table`` covers ``position + L`` positions. Pages before ``position`` are read, not written;
    ``copy_page`` (source, target) is copied first: how a prefix whose last page is partly filled
    is continued without touching the shared original.
    """

    columns: Int32Array
    position: int
    table: tuple[int, ...]
    copy_page: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class VocodeBatch:
    """Code frames to turn into sound, in stream order per slot.

    ``codes`` int32 [rows, frames, codebooks]; ``reset`` bool [rows]: begin from silence (a new
    stream), instead of from this slot's codec state.
    """

    slots: tuple[int, ...]
    codes: Int32Array
    reset: BoolArray


class Runner(Protocol):
    """A model on a device."""

    @property
    def spec(self) -> RunnerSpec: ...

    def warm_up(self) -> None:
        """Allocate, compile and capture everything; after it no step allocates. Before threads."""
        ...

    def launch(self, plan: StepPlan) -> None:
        """Enqueue a step and return. Decode thread. Blocks only to keep two steps in flight."""
        ...

    def collect(self, step: int) -> StepResult:
        """Wait for a launched step's results, oldest first. Decode thread."""
        ...

    def prefill(self, *chunks: PrefillChunk) -> None:
        """Write KV. Prefill thread. On return, steps launched later see it (no host wait).

        Chunks of different contexts, none of which reads what another writes; or of one context, in
        order. Each leaves the same bits in any company. After an error any of them may be written.
        """
        ...

    def save_pages(self, pages: Sequence[int], host_pages: Sequence[int]) -> None:
        """Copy pages, one to one, into pages of the host's memory; returns when they are there.

        Prefill thread. Whole pages, of whatever kind their bits are. Nobody writes ``pages``
        meanwhile; steps may read them.
        """
        ...

    def load_pages(self, host_pages: Sequence[int], pages: Sequence[int]) -> None:
        """The way back, into any pages. Prefill thread. On return, steps launched later see it.

        After an error, of this or of the save, any of the targets may be written.
        """
        ...

    def vocode(self, batch: VocodeBatch) -> Int16Array:
        """Decode frames to PCM int16 [rows, frames * frame_samples]. Codec thread; blocks."""
        ...

    def encode(self, samples: Float32Array) -> Int32Array:
        """Mono float32 at ``sample_rate`` to codes int32 [frames, codebooks]. Voice thread."""
        ...

    def close(self) -> None:
        """Release the device. After the engine's threads were joined."""
        ...

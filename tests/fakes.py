"""Named stand-ins: a clock that tests turn by hand, and a runner that checks its callers.

``ScriptedRunner`` has no model. It knows what every position of its KV pages holds, computes each
row's codes from everything the row's table leads to, and raises ``ContractError`` for every
breach of :mod:`shoal.engine.runner` that it can see. A step's work is done as late as the contract
allows - when it is collected - so that a page which is reused too early changes somebody's codes.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from shoal.engine.runner import (
    Float32Array,
    Int16Array,
    Int32Array,
    Join,
    PrefillChunk,
    RunnerSpec,
    StepPlan,
    StepResult,
    VocodeBatch,
)
from tests.pages import Pages, check, mix

END = 7
CODES = 1 << 20
NEVER = 1 << 30


class ManualClock:
    """Seconds that pass only when told to."""

    def __init__(self, now: float = 100.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def tick(self, seconds: float) -> None:
        self.now += seconds


def spec(
    *,
    slots: int = 4,
    pages: int = 64,
    page_tokens: int = 8,
    max_positions: int = 256,
    codebooks: int = 3,
    host_pages: int = 0,
) -> RunnerSpec:
    """Frames of 50 ms, 40 samples each."""
    return RunnerSpec(
        codebooks=codebooks,
        frame_samples=40,
        sample_rate=800,
        max_slots=slots,
        page_tokens=page_tokens,
        pages=pages,
        max_positions=max_positions,
        end_token=END,
        pcm_batch_frames=(1, 2, 4, 8, 16),
        host_pages=host_pages,
    )


def opener(frames: int, codebooks: int = 3) -> Int32Array:
    """The column that makes a scripted turn speak ``frames`` frames."""
    column = np.zeros(1 + codebooks, np.int32)
    column[0], column[1] = 3, min(frames, NEVER)
    return column


@dataclass
class _Row:
    """A slot as the device sees it."""

    join: Join
    table: list[int]
    position: int
    draw: int
    column: Int32Array
    left: int
    ended: bool = False


@dataclass
class _Launched:
    plan: StepPlan
    rows: list[_Row]
    generations: tuple[int, ...]
    reads: list[frozenset[int]]
    writes: list[int]


@dataclass
class Log:
    """What was asked of the runner."""

    steps: list[tuple[int, ...]] = field(default_factory=list[tuple[int, ...]])
    joins: list[Join] = field(default_factory=list[Join])
    prefilled: list[PrefillChunk] = field(default_factory=list[PrefillChunk])
    passes: list[int] = field(default_factory=list[int])
    """How many chunks each call of ``prefill`` brought."""
    copied: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])
    vocoded: list[VocodeBatch] = field(default_factory=list[VocodeBatch])


class ScriptedRunner:
    """See the module. ``protected`` pages may be read by steps and never written by them.

    ``frames_of`` says how many frames the turn that a join begins has; :func:`opener` by default.
    """

    def __init__(
        self,
        sizes: RunnerSpec | None = None,
        frames_of: Callable[[Join], int] = lambda join: int(join.column[1]),
    ) -> None:
        self._spec = sizes or spec()
        self._frames_of = frames_of
        self.pages = Pages(self._spec)
        self._rows: dict[int, _Row] = {}
        self._flying: deque[_Launched] = deque()
        self._launched = 0
        self._lock = threading.Lock()
        self.log = Log()
        self.protected: frozenset[int] = frozenset()
        self.fail_prefill = False
        self.fail_copies = False
        self.fail_vocode = False
        self.fail_encode = False
        self.closed = False
        # Codec state by slot: the sum of the codes decoded since the last reset.
        self._codec = np.zeros(self._spec.max_slots, np.int64)
        self._codec_owner: dict[int, bool] = {}

    @property
    def spec(self) -> RunnerSpec:
        return self._spec

    @property
    def in_flight(self) -> int:
        return len(self._flying)

    def warm_up(self) -> None:
        """Nothing to do."""

    # Steps ------------------------------------------------------------------------------------

    def launch(self, plan: StepPlan) -> None:
        with self._lock:
            self._launch(plan)

    def _launch(self, plan: StepPlan) -> None:
        check(plan.step == self._launched, f"step {plan.step} after {self._launched - 1}")
        check(len(self._flying) < 2, f"step {plan.step} launched with two steps in flight")
        check(len(set(plan.slots)) == len(plan.slots) > 0, f"slots {plan.slots}")
        self._launched += 1
        self.log.steps.append(plan.slots)
        for join in plan.joins:
            self._join(join, plan)
        for grant in plan.grants:
            check(grant.slot in plan.slots, f"grant for slot {grant.slot} outside the step")
            self._page(grant.page)
            self._rows[grant.slot].table.append(grant.page)
        reads: list[frozenset[int]] = []
        writes: list[int] = []
        rows: list[_Row] = []
        for slot in plan.slots:
            check(0 <= slot < self._spec.max_slots, f"slot {slot}")
            row = self._rows.get(slot)
            assert row is not None, f"slot {slot} runs and was never joined"
            position = row.position
            check(position < self._spec.max_positions, f"position {position}")
            last = position // self._spec.page_tokens
            check(last < len(row.table), f"slot {slot}: no page for position {position}")
            row.position += 1
            rows.append(row)
            reads.append(frozenset(row.table[: last + 1]))
            writes.append(row.table[last])
        launched = _Launched(plan, rows, tuple(r.join.generation for r in rows), reads, writes)
        # Earlier steps finish first; within a step, and against them, nobody writes what another
        # row reads.
        for page, row in zip(writes, rows, strict=True):
            check(page not in self.protected, f"step {plan.step} writes shared page {page}")
            for other in (*self._flying, launched):
                for read, reader in zip(other.reads, other.rows, strict=True):
                    alone = reader is row or page not in read or reader.ended
                    check(alone, f"page {page} is written by one row and read by another")
        self._flying.append(launched)

    def _join(self, join: Join, plan: StepPlan) -> None:
        check(join.slot in plan.slots, f"join of slot {join.slot} outside the step")
        check(join.column.shape == (1 + self._spec.codebooks,), f"column {join.column.shape}")
        before = self._rows.get(join.slot)
        if before is not None:
            newer = join.generation > before.join.generation
            check(newer, f"slot {join.slot}: generation {join.generation} again")
        check(len(set(join.table)) == len(join.table), "a page twice in one table")
        for page in join.table:
            self._page(page)
        self.log.joins.append(join)
        self._rows[join.slot] = _Row(
            join, list(join.table), join.position, join.draw, join.column, self._frames_of(join)
        )

    def collect(self, step: int) -> StepResult:
        with self._lock:
            check(bool(self._flying), f"step {step} collected and none is in flight")
            launched = self._flying.popleft()
            plan = launched.plan
            check(plan.step == step, f"step {step} collected before step {plan.step}")
            columns = np.zeros((len(plan.slots), 1 + self._spec.codebooks), np.int32)
            ended = np.zeros(len(plan.slots), np.bool_)
            for index, row in enumerate(launched.rows):
                columns[index], ended[index] = self._step(row)
            return StepResult(step, plan.slots, launched.generations, columns, ended)

    def _step(self, row: _Row) -> tuple[Int32Array, bool]:
        if row.ended:
            return _end_column(self._spec.codebooks), True
        # Not ``row.position``: a later step may be launched already.
        position = row.join.position + row.draw - row.join.draw
        self.pages.write(row.table, position, row.column)
        digest = self.pages.digest(tuple(row.table), position + 1)
        column = frame_of(digest, row.join.sampling.seed, row.draw, self._spec.codebooks)
        row.draw += 1
        if row.left == 0:
            row.ended = True
            return _end_column(self._spec.codebooks), True
        row.left -= 1
        row.column = column
        return column, False

    # Pages ------------------------------------------------------------------------------------

    def prefill(self, *chunks: PrefillChunk) -> None:
        with self._lock:
            if self.fail_prefill:
                raise RuntimeError("scripted prefill failure")
            self.log.passes.append(len(chunks))
            for chunk in chunks:
                first = chunk.position // self._spec.page_tokens
                written = {*chunk.table[first:], *(chunk.copy_page or ())[1:]}
                for other in chunks:
                    apart = other is chunk or written.isdisjoint(other.table)
                    check(apart, f"chunks of one pass share pages {written}")
            for chunk in chunks:
                self._prefill(chunk)

    def _prefill(self, chunk: PrefillChunk) -> None:
        self.log.prefilled.append(chunk)
        count, size = len(chunk.columns), self._spec.page_tokens
        end = chunk.position + count
        check(end <= self._spec.max_positions, f"prefill to {end}")
        check(len(chunk.table) * size >= end, f"{len(chunk.table)} pages for {end} positions")
        if chunk.copy_page is not None:
            source, target = chunk.copy_page
            check(source != target and target in chunk.table, f"copy {chunk.copy_page}")
            check(chunk.position // size == chunk.table.index(target), "copy to a later page")
            self.pages.copy(source, target)
        for position in range(chunk.position, end):
            page = chunk.table[position // size]
            self._writable(page)
            self.pages.write(chunk.table, position, chunk.columns[position - chunk.position])
        self.pages.digest(chunk.table, end)

    def save_pages(self, pages: Sequence[int], host_pages: Sequence[int]) -> None:
        with self._lock:
            if self.fail_copies:
                raise RuntimeError("scripted failure of a save")
            written = {page for launched in self._flying for page in launched.writes}
            check(written.isdisjoint(pages), f"of pages {pages} some are written in a step")
            self.pages.save(pages, host_pages)
            self.log.copied.append(("saved", len(pages)))

    def load_pages(self, host_pages: Sequence[int], pages: Sequence[int]) -> None:
        with self._lock:
            if self.fail_copies:
                raise RuntimeError("scripted failure of a load")
            for page in pages:
                self._writable(page)
            self.pages.load(host_pages, pages)
            self.log.copied.append(("loaded", len(pages)))

    def _page(self, page: int) -> None:
        check(0 <= page < self._spec.pages, f"page {page}")

    def _writable(self, page: int) -> None:
        self._page(page)
        check(page not in self.protected, f"shared page {page} is written")
        for launched in self._flying:
            for row, read in zip(launched.rows, launched.reads, strict=True):
                check(row.ended or page not in read, f"page {page} is in a step in flight")

    # Sound ------------------------------------------------------------------------------------

    def vocode(self, batch: VocodeBatch) -> Int16Array:
        with self._lock:
            if self.fail_vocode:
                raise RuntimeError("scripted codec failure")
            self.log.vocoded.append(batch)
            rows, frames, codebooks = batch.codes.shape
            check(codebooks == self._spec.codebooks, f"codes {batch.codes.shape}")
            check(len(batch.slots) == rows == len(set(batch.slots)), f"slots {batch.slots}")
            check(frames in range(1, self._spec.pcm_batch_frames[-1] + 1), f"{frames} frames")
            pcm = np.zeros((rows, frames, self._spec.frame_samples), np.int16)
            for row, slot in enumerate(batch.slots):
                if batch.reset[row]:
                    self._codec[slot] = 0
                for frame in range(frames):
                    # Sound depends on every code so far: a mixed-up codec state is heard.
                    mixed = 31 * int(self._codec[slot]) + int(batch.codes[row, frame].sum()) + 1
                    self._codec[slot] = mixed % 32003
                    pcm[row, frame] = self._codec[slot]
            return pcm.reshape(rows, frames * self._spec.frame_samples)

    def encode(self, samples: Float32Array) -> Int32Array:
        if self.fail_encode:
            raise RuntimeError("scripted encoder failure")
        frames = max(1, len(samples) // self._spec.frame_samples)
        level = int(1000 * float(np.abs(samples).mean())) if len(samples) else 0
        codes = np.arange(frames * self._spec.codebooks, dtype=np.int32) + level
        return (codes % 16).reshape(frames, self._spec.codebooks).astype(np.int32)

    def close(self) -> None:
        self.closed = True


def _end_column(codebooks: int) -> Int32Array:
    return np.array([END, *[0] * codebooks], np.int32)


def frame_of(digest: int, seed: int, draw: int, codebooks: int) -> Int32Array:
    """The column that a scripted row draws: a function of context, seed and draw alone."""
    value = digest
    for part in (seed, draw):
        value = mix(value, part)
        value ^= value >> 29
    codes = [((value * (2 * book + 3)) >> 11) % CODES for book in range(codebooks)]
    return np.array([100 + codes[0], *codes], np.int32)


def heard(codes: npt.NDArray[np.int32]) -> npt.NDArray[np.int16]:
    """The samples, one a frame, that ``vocode`` makes of int32 [frames, codebooks] from silence."""
    state, out = 0, list[int]()
    for frame in codes:
        state = (31 * state + int(frame.sum()) + 1) % 32003
        out.append(state)
    return np.array(out, np.int16)

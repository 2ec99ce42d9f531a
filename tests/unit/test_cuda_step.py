"""The device's decode step in Triton's interpreter: the built-in voice says what the CPU says.

Also: a row that ended changes nothing, and what the host packs is what the device reads.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from shoal.engine.config import BUILTIN_VOICE
from shoal.engine.cpu_runner import CpuRunner
from shoal.engine.cuda.buckets import bucket_of, buckets_up_to
from shoal.engine.cuda.interpreted import InterpretedRunner, write_rows
from shoal.engine.cuda.kv_pool import KvDtype, KvPool
from shoal.engine.cuda.prefill import in_passes
from shoal.engine.cuda.product import Dtype
from shoal.engine.cuda.sharing import Sharing
from shoal.engine.cuda.slot_state import SlotState
from shoal.engine.cuda.staging import StepStaging
from shoal.engine.cuda.weights import device_weights
from shoal.engine.model.config import read_config
from shoal.engine.model.weights import load_weights
from shoal.engine.prompt import PromptBuilder
from shoal.engine.runner import (
    Join,
    PageGrant,
    PrefillChunk,
    SlotSampling,
    StepPlan,
)
from shoal.engine.tokenizer import load_tokenizer
from shoal.kernels.advance import advance, advance_reference
from shoal.kernels.join import apply_joins, apply_joins_reference
from shoal.kernels.kv import Fp8Pages, dequantise_heads

CPU = torch.device("cpu")
PAGES = 8
PAGE_TOKENS = 64
CODEBOOKS = 8
LONG = (5, 3)
SAMPLING = SlotSampling(temperature=0.7, top_p=0.9, top_k=30, seed=5)

if torch.cuda.is_available():
    pytest.skip("interpreted where there is no GPU", allow_module_level=True)


def join(slot: int, column: np.ndarray, position: int, table: tuple[int, ...]) -> Join:
    return Join(slot, 3, position, 11, column.astype(np.int32), table, SAMPLING)


def slot_state(slots: int = 3) -> SlotState:
    return SlotState(slots, CODEBOOKS, max_pages=4, scratch_page=PAGES, device=CPU)


def test_buckets_hold_every_number_of_rows() -> None:
    assert buckets_up_to(20) == (1, 2, 4, 8, 16, 20)
    assert [bucket_of(n, buckets_up_to(20)) for n in (1, 3, 16, 17, 20)] == [1, 4, 16, 20, 20]
    with pytest.raises(ValueError, match="21 rows, at most 20"):
        bucket_of(21, buckets_up_to(20))


def test_a_join_and_a_grant_reach_the_slot() -> None:
    state = slot_state()
    staging = StepStaging(state, 3, CPU)
    column = np.arange(100, 101 + CODEBOOKS)
    staging.send(staging.pack(StepPlan(0, (1,), (join(1, column, 70, (4, 2)),)), 2))
    assert state.columns[1].tolist() == column.tolist()
    assert state.positions[1] == 70
    assert state.tables[1].tolist() == [4, 2, PAGES, PAGES]
    assert staging.rows[:2].tolist() == [1, state.dummy]
    sampling = state.sampling()
    assert sampling.temperature[1] == np.float32(0.7)
    assert (sampling.top_k[1], sampling.seed_low[1], sampling.draw[1]) == (30, 5, 11)
    staging.send(staging.pack(StepPlan(1, (1,), (), (PageGrant(1, 6),)), 1))
    assert state.tables[1].tolist() == [4, 2, 6, PAGES]


def test_rows_with_a_prefix_in_common_reach_the_device_as_groups() -> None:
    state = SlotState(4, CODEBOOKS, max_pages=4, scratch_page=PAGES, device=CPU)
    staging = StepStaging(state, 4, CPU, Sharing(5, PAGE_TOKENS, least_saved=1))
    column = np.zeros(1 + CODEBOOKS)
    joins = tuple(join(slot, column, 70, (7, slot)) for slot in (0, 1, 3))
    apart = staging.pack(StepPlan(0, (0,), (joins[0],)), 1)
    assert not apart.shared
    staging.send(apart)
    staged = staging.pack(StepPlan(1, (3, 1, 0), joins[1:], (PageGrant(0, 2),)), 4)
    staging.send(staged)
    assert staged.shared
    assert staging.groups[0, :4].tolist() == [0, 1, 2, -1]
    assert staging.prefix.tolist() == [[PAGE_TOKENS, 1]] * 3 + [[0, 0]]
    assert staging.rows.tolist() == [3, 1, 0, state.dummy]
    assert state.tables[:, :3].tolist()[:4] == [[7, 0, 2], [7, 1, 8], [8, 8, 8], [7, 3, 8]]
    assert not staging.pack(StepPlan(2, (3, 1)), 2).shared


def test_a_plan_that_cannot_run_is_refused() -> None:
    staging = StepStaging(slot_state(), 2, CPU)
    column = np.zeros(1 + CODEBOOKS)
    with pytest.raises(ValueError, match="does not fit a bucket of 1"):
        staging.pack(StepPlan(0, (0, 1)), 1)
    with pytest.raises(ValueError, match="5 pages, 4 at most"):
        staging.pack(StepPlan(0, (0,), (join(0, column, 0, (0, 1, 2, 3, 4)),)), 1)
    with pytest.raises(ValueError, match="joins and gets a page"):
        staging.pack(StepPlan(0, (0,), (join(0, column, 0, (0,)),), (PageGrant(0, 1),)), 1)


def test_the_join_kernel_does_what_its_reference_does() -> None:
    generator = torch.Generator().manual_seed(0)
    state, tables = torch.zeros(4, 29, dtype=torch.int32), torch.zeros(4, 200, dtype=torch.int32)
    records = torch.randint(0, 99, (2 * 230 + 4,), generator=generator, dtype=torch.int32)
    records[0], records[230] = 2, 0
    records[460:] = torch.tensor([205, 7, 799, 8])
    expected = (state.clone(), tables.clone())
    apply_joins_reference(records, *expected, 2, 2)
    apply_joins(records, state, tables, 2, 2)
    assert torch.equal(state, expected[0])
    assert torch.equal(tables, expected[1])


def test_the_advance_kernel_does_what_its_reference_does() -> None:
    fields = slot_state(4).fields
    state = torch.arange(5 * 40, dtype=torch.int32).view(5, 40)[:, : slot_state().width].clone()
    state[:, fields.done] = torch.tensor([0, 0, 1, 0, 0], dtype=torch.int32)
    state[:, fields.first] = torch.tensor([1, 0, 0, 0, 1], dtype=torch.int32)
    slots = torch.tensor([3, 0, 2, 1], dtype=torch.int32)
    drawn = torch.arange(4 * (1 + CODEBOOKS), dtype=torch.int32).view(4, -1) + 500
    end_token = int(drawn[3, 0])
    results = torch.zeros(2, 4, CODEBOOKS + 3, dtype=torch.int32)
    buffer = torch.ones(1, dtype=torch.int32)
    expected, expected_results = state.clone(), results.clone()
    advance_reference(expected, fields, slots, drawn, end_token, expected_results, buffer)
    advance(state, fields, slots, drawn, end_token, results, buffer)
    assert torch.equal(results, expected_results)
    assert torch.equal(state, expected)
    assert results[1, :, -2].tolist() == [0, 0, 1, 1]


KINDS: tuple[tuple[str, Dtype, KvDtype], ...] = (
    ("bf16", "bf16", "bf16"),
    ("fp8", "fp8", "bf16"),
    ("fp8 with fp8 keys", "fp8", "fp8"),
)


def wide(pool: KvPool) -> list[torch.Tensor]:
    """Keys and values, [layers, pages, kv heads, page, dim], as what they stand for."""
    layers = [pool.layer(index) for index in range(len(pool.keys))]
    return [
        torch.stack([dequantise_heads(p) if isinstance(p, Fp8Pages) else p for p in part])
        for part in zip(*layers, strict=True)
    ]


@dataclass
class Voice:
    """The built-in voice on both runners, prefilled with a short sentence, and ``long`` in pages
    ``LONG``."""

    runners: dict[str, InterpretedRunner]
    first: Join
    columns: list[list[int]]
    long: np.ndarray


@pytest.fixture(scope="module")
def voice() -> Voice:
    config = read_config(BUILTIN_VOICE)
    tokenizer = load_tokenizer(BUILTIN_VOICE)
    semantic = config.semantic_ids(tokenizer.semantic)
    prompt = PromptBuilder(tokenizer, config.codebooks, semantic)
    columns = np.concatenate([prompt.prefix(), prompt.user_turn("Hi.")])
    first = join(0, columns[-1], len(columns) - 1, (0, 1, 2))
    runner = CpuRunner.load(BUILTIN_VOICE, slots=2, pages=PAGES, page_tokens=PAGE_TOKENS)
    try:
        runner.prefill(PrefillChunk(columns[:-1], 0, first.table))
        long = prompt.user_turn("The birch canoe slid on the smooth planks. " * 2)[:70]
        assert len(long) == 70
        runner.prefill(PrefillChunk(long, 0, LONG))
        runner.launch(StepPlan(0, (0,), (first,)))
        drawn = [runner.collect(0).columns[0].tolist()]
        slow = config.slow
        runners: dict[str, InterpretedRunner] = {}
        for name, dtype, kv_dtype in KINDS:
            weights = device_weights(
                config,
                load_weights(BUILTIN_VOICE, config),
                semantic,
                tokenizer.end_token,
                dtype=dtype,
                device=CPU,
            )
            made = InterpretedRunner(
                config,
                weights,
                slots=2,
                pages=PAGES,
                page_tokens=PAGE_TOKENS,
                kv_dtype=kv_dtype,
            )
            for layer, kept in enumerate(runner.kv_pools):
                pages = kept.view(2, slow.kv_heads, -1, PAGE_TOKENS, slow.head_dim)
                for mine, theirs in zip(made.pool.layer(layer), pages[:, :, :PAGES], strict=True):
                    write_rows(mine, tuple(range(PAGES)), theirs.flatten(1, 2).transpose(0, 1))
            runners[name] = made
    finally:
        runner.close()
    return Voice(runners, first, drawn, long)


@pytest.mark.parametrize(
    ("kind", "close"), [("bf16", 0.02), ("fp8", 0.12), ("fp8 with fp8 keys", 0.12)]
)
def test_a_prefill_writes_the_cpu_s_kv_and_nothing_else(
    voice: Voice, kind: str, close: float
) -> None:
    """A chunk of 3 columns that spans two pages, in a pass of 4 rows."""
    pool = voice.runners[kind].pool
    table, start, count = LONG, PAGE_TOKENS - 2, 3
    kept, first = [part.clone() for part in pool.parts], wide(pool)
    for part in pool.parts:
        part[:, table[0], :, start:] = float("nan")
        part[:, table[1], :, : start + count - PAGE_TOKENS] = float("nan")
    chunk = PrefillChunk(voice.long[start : start + count], start, table)
    voice.runners[kind].prefill(chunk)
    for before, after in zip(first, wide(pool), strict=True):
        changed = torch.zeros(before.shape[1:4:2], dtype=torch.bool)
        changed[table[0], start:] = True
        changed[table[1], : start + count - PAGE_TOKENS] = True
        at = changed[None, :, None].expand(before.shape[:4])
        assert torch.equal(before[~at], after[~at])
        error = (after[at].float() - before[at].float()).norm() / before[at].float().norm()
        assert error < close
    for part, before in zip(pool.parts, kept, strict=True):
        part.copy_(before)


def test_chunks_are_cut_where_a_pass_is_full() -> None:
    columns = np.arange(400, dtype=np.int32)[:, None]
    chunks = [
        PrefillChunk(columns[:40], 7, (1,)),
        PrefillChunk(columns[40:60], 0, (2,)),
        PrefillChunk(columns[60:60], 0, (9,)),
        PrefillChunk(columns[60:260], 3, (3,)),
    ]
    passes = list(in_passes(chunks, 128))
    shape = [[(part.position, len(part.columns), part.table) for part in one] for one in passes]
    assert shape == [
        [(7, 40, (1,)), (0, 20, (2,)), (3, 32, (3,))],
        [(35, 128, (3,))],
        [(163, 40, (3,))],
    ]
    got = np.concatenate([part.columns for one in passes for part in one])
    assert np.array_equal(got, columns[:260])


def test_a_prefill_that_does_not_fit_is_refused(voice: Voice) -> None:
    prefill = voice.runners["bf16"].prefill_pass
    columns = np.repeat(voice.long[:1], 257, 0)
    with pytest.raises(ValueError, match="257 rows, at most 256"):
        prefill.send([PrefillChunk(columns, 0, (0,))])
    with pytest.raises(ValueError, match="9 pages, 8 at most"):
        prefill.send([PrefillChunk(columns[:1], 0, tuple(range(9)))])


@pytest.mark.parametrize("kind", [name for name, _, _ in KINDS])
def test_a_step_draws_what_the_cpu_draws(voice: Voice, kind: str) -> None:
    runner = voice.runners[kind]
    runner.launch(StepPlan(0, (0,), (voice.first,)))
    result = runner.collect(0)
    assert result.columns.tolist() == voice.columns
    assert not result.ended.any()
    assert result.generations == (3,)

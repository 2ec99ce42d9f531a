"""The CUDA runner with FP8 keys and values: the bits, the isolation and the copies of bf16 ones."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA GPU", allow_module_level=True)

from shoal.engine.config import BUILTIN_VOICE
from shoal.engine.cuda.kv_pool import KvPool
from shoal.engine.cuda.prefill import Prefill, PrefillPass
from shoal.engine.cuda.sharing import Sharing
from shoal.engine.model.config import read_config
from shoal.engine.runner import PrefillChunk
from tests.steps import GPU, PAGE, Driver, builtin_runner, builtin_weights, code_columns

BUCKETS = (1, 24)
SLOTS = BUCKETS[-1]
VOICE = tuple(range(SLOTS * 6, SLOTS * 6 + 10))
PAGES = SLOTS * 6 + len(VOICE)
FRAMES = 24
TEXT = "The birch canoe slid on the smooth planks."


@pytest.fixture(scope="module")
def driver() -> Iterator[Driver]:
    runner = builtin_runner("fp8", buckets=BUCKETS, pages=PAGES, kv_dtype="fp8")
    yield Driver(runner)
    runner.close()


def test_a_stream_draws_the_same_alone_among_strangers_and_on_a_shared_voice(
    driver: Driver,
) -> None:
    driver.voice(VOICE, seed=1)
    text = [TEXT if not slot else f"Neighbour number {slot}." for slot in range(SLOTS)]
    alone = driver.run((0,), (driver.start_on(VOICE, 0, TEXT, 5),), FRAMES)
    everyone = tuple(range(SLOTS))
    for sharers in ((0,), everyone):
        joins = [
            driver.start_on(VOICE, slot, text[slot], 5 + slot)
            if slot in sharers
            else driver.start(slot, text[slot], 5 + slot)
            for slot in everyone
        ]
        finder = Sharing(SLOTS, PAGE)
        for join in joins:
            finder.join(join)
        assert bool(finder.groups(np.array(everyone, np.int32))) == (len(sharers) > 1)
        among = driver.run(everyone, joins, FRAMES)
        assert np.array_equal(among[:, 0], alone[:, 0]), len(sharers)


def test_a_recorded_step_is_what_its_kernels_compute_one_by_one(driver: Driver) -> None:
    runner = builtin_runner(
        "fp8", buckets=BUCKETS, pages=PAGES, pdl=False, captured=False, kv_dtype="fp8"
    )
    single = Driver(runner)
    slots = tuple(range(SLOTS))
    joins = [[d.start(slot, TEXT, 40 + slot) for slot in slots] for d in (driver, single)]
    drawn = driver.run(slots, joins[0], 8), single.run(slots, joins[1], 8)
    assert np.array_equal(*drawn)
    runner.close()


def test_a_page_that_is_continued_is_copied_with_its_scales(driver: Driver) -> None:
    """A stream behind half a page that another owns draws what it draws behind its own."""
    columns = np.concatenate([driver.prompt.prefix(), driver.prompt.user_turn(TEXT)])
    join = driver.start(0, TEXT, 5)
    drawn = driver.run((0,), (join,), 8)
    half = len(columns) // 2
    page = driver.own_pages(1)[0]
    driver.runner.prefill(PrefillChunk(columns[:half], 0, (page,)))
    driver.runner.prefill(PrefillChunk(columns[half:-1], half, join.table, (page, join.table[0])))
    again = driver.run((0,), (join,), 8)
    # In bf16 a prompt that is cut elsewhere may round otherwise; the first frame tells enough.
    assert np.array_equal(drawn[0, 0, :1], again[0, 0, :1])


def test_a_recorded_prefill_writes_what_single_launches_write() -> None:
    """Values and scales; in FP8's own products also however it is cut."""
    weights = builtin_weights("fp8")
    config = weights.slow.config
    shape = (config.kv_heads, PAGE, config.head_dim)
    columns = code_columns(read_config(BUILTIN_VOICE), weights.semantic_begin, 400, 3)
    pools = [KvPool.empty(config.layers, 10, *shape, GPU, "fp8") for _ in range(3)]
    recorded, single, cut = (
        Prefill(PrefillPass(weights, weights.slow, pool, (16, 64, 256), 10, GPU), pool, GPU)
        for pool in pools
    )
    recorded.capture()
    table = (3, 9, 1, 0, 7, 2, 8)
    for start, count in ((0, 400), (30, 16), (64, 300)):
        chunk = PrefillChunk(columns[start : start + count], start, table)
        recorded.run([chunk])
        single.run([chunk])
        for at in range(start, start + count, 13):
            cut.run([PrefillChunk(columns[at : min(at + 13, start + count)], at, table)])
        for parts in zip(*(pool.parts for pool in pools), strict=True):
            first, *others = (part[:, :10].contiguous().view(torch.uint8) for part in parts)
            assert first.any()
            assert all(torch.equal(first, other) for other in others), (start, count)

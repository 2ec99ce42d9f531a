"""The CUDA runner with FP8 keys and values: the bits, the isolation and the copies of bf16 ones."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA GPU", allow_module_level=True)

from tests.steps import Driver, builtin_runner, builtin_weights, prefilled

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
    alone = driver.run((0,), (driver.start_on(VOICE, 0, TEXT, 5),), FRAMES)
    everyone = tuple(range(SLOTS))
    for sharers in ((0,), everyone):
        joins = driver.company(VOICE, TEXT, everyone, sharers)
        assert driver.shares(joins) == (len(sharers) > 1)
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
    drawn, again = driver.behind_half_a_page(TEXT, 8)
    assert np.array_equal(drawn, again)


def test_a_recorded_prefill_writes_what_single_launches_write() -> None:
    """Values and scales; and however it is cut."""
    weights = builtin_weights("fp8")
    spans = ((0, 400), (30, 16), (64, 300))
    after = prefilled(weights, "fp8", spans)
    for span, (recorded, single, cut) in zip(spans, after, strict=True):
        assert all(part.any() for part in recorded)
        assert all(map(torch.equal, single, recorded)), span
        assert all(map(torch.equal, cut, recorded)), span

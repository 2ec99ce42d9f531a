"""Steps of 64 streams at S2 Pro's size while everything else goes on: no waiting, no allocating,
and no stall when a voice is prefilled or another thread keeps the interpreter busy."""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA GPU", allow_module_level=True)

from shoal.engine.random_model import S2_PRO
from shoal.engine.runner import Join, PrefillChunk, SlotSampling, VocodeBatch
from shoal.realtime.server import SWITCH_INTERVAL_S
from tests.steps import PAGE, Driver, code_columns, s2_runner

ROWS = 64
SLOTS = tuple(range(ROWS))
CONTEXT = 512
VOICE = 2000
VOICE_PAGES = -(-VOICE // PAGE)
CHUNK = 256
EACH = 24
"""Pages of a slot: a context of 1,536."""
FRAME_S = 2048 / 44_100
STEPS = 100


@pytest.fixture(scope="module")
def steps() -> Iterator[Driver]:
    runner = s2_runner(buckets=(ROWS,), pages=ROWS * EACH + VOICE_PAGES)
    driver = Driver(runner, EACH)
    driver.run(SLOTS, joins(driver), 8)
    yield driver
    runner.close()


def joins(driver: Driver) -> Sequence[Join]:
    """Every slot at a context of ``CONTEXT``, on pages of its own."""
    column = code_columns(S2_PRO, S2_PRO.semantic_begin or 0, 1, 0)[0]
    sampling = SlotSampling(temperature=0.7, top_p=0.7, top_k=30, seed=1)
    return [Join(slot, 1, CONTEXT, 0, column, driver.own_pages(slot), sampling) for slot in SLOTS]


@contextmanager
def beside(work: Callable[[], None]) -> Iterator[None]:
    """Another thread that does ``work`` over and over; what it raises is raised here."""
    done = threading.Event()
    raised: list[BaseException] = []

    def body() -> None:
        try:
            while not done.is_set():
                work()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=body)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
    if raised:
        raise raised[0]


def voice_prefill(driver: Driver) -> Callable[[], None]:
    """Prefills 2,000 columns in chunks, as the prefill thread does."""
    columns = code_columns(S2_PRO, S2_PRO.semantic_begin or 0, VOICE, 1)
    table = tuple(range(ROWS * EACH, ROWS * EACH + VOICE_PAGES))

    def work() -> None:
        for at in range(0, VOICE, CHUNK):
            driver.runner.prefill(PrefillChunk(columns[at : at + CHUNK], at, table))

    return work


def codec_work(driver: Driver) -> Callable[[], None]:
    codes = np.random.default_rng(0).integers(0, 1000, (ROWS, 4, S2_PRO.codebooks), dtype=np.int32)
    batch = VocodeBatch(SLOTS, codes, np.zeros(ROWS, np.bool_))

    def work() -> None:
        driver.runner.vocode(batch)

    return work


def percentile(times: Sequence[float], share: float) -> float:
    return float(np.percentile(np.array(times), 100 * share))


def test_steady_steps_neither_wait_nor_allocate(steps: Driver) -> None:
    """Nor do the prefill and the codec beside them, once warm."""
    prefill, codec = voice_prefill(steps), codec_work(steps)
    prefill()
    codec()
    steps.run(SLOTS, (), 4)
    device = torch.cuda.memory_stats()["allocation.all.allocated"]
    pinned = torch.cuda.host_memory_stats()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        with beside(prefill), beside(codec):
            steps.run(SLOTS, (), STEPS)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == device
    after = torch.cuda.host_memory_stats()
    for key in ("num_host_alloc", "allocations.allocated", "active_requests.allocated"):
        if key in pinned:
            assert after[key] == pinned[key], key


@pytest.mark.usefixtures("card_to_itself")
def test_a_voice_of_2000_columns_is_prefilled_without_a_stall(steps: Driver) -> None:
    steps.run(SLOTS, joins(steps), STEPS)
    quiet = steps.times_s[2:]
    with beside(voice_prefill(steps)):
        steps.run(SLOTS, joins(steps), STEPS)
    busy = steps.times_s[2:]
    assert max(busy) < FRAME_S
    assert percentile(busy, 0.99) < 2 * percentile(quiet, 0.99), (
        percentile(quiet, 0.99),
        percentile(busy, 0.99),
    )


@pytest.mark.usefixtures("card_to_itself")
def test_the_host_s_share_of_a_step_is_small(steps: Driver) -> None:
    steps.run(SLOTS, joins(steps), STEPS)
    assert percentile(steps.busy_s[2:], 0.99) < 1e-3


@pytest.mark.usefixtures("card_to_itself")
def test_a_busy_interpreter_does_not_move_a_step(steps: Driver) -> None:
    steps.run(SLOTS, joins(steps), STEPS)
    quiet = percentile(steps.times_s[2:], 0.99)

    def noise() -> None:
        sum(range(10_000))

    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    try:
        with beside(noise):
            steps.run(SLOTS, joins(steps), STEPS)
    finally:
        sys.setswitchinterval(before)
    assert percentile(steps.times_s[2:], 0.99) < 1.25 * quiet + 1e-3

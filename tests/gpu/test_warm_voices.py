"""KV in pinned memory on a GPU: it comes back to other pages with the bits that it had, and a turn
on it goes on as on the original, while others speak."""

from __future__ import annotations

import sys
import threading
import time

import numpy as np
import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA GPU", allow_module_level=True)

from shoal.engine.cuda.host_pages import HostPages
from shoal.engine.cuda.kv_pool import KvDtype, KvPool, page_bytes
from tests.steps import GPU, PAGE, Driver, builtin_runner

KINDS: tuple[KvDtype, ...] = ("bf16", "fp8")
SHAPE = (8, PAGE, 128)
LAYERS = 36
TEXT = "A sentence behind a voice."
FRAMES = 12


def noise(pool: KvPool, seed: int) -> None:
    """Every bit of the pool is drawn, those that are no numbers too."""
    draw = torch.Generator(GPU).manual_seed(seed)
    for part in pool.parts:
        part.view(torch.uint8).random_(0, 256, generator=draw)


def bits(pool: KvPool, pages: list[int]) -> list[torch.Tensor]:
    return [part.view(torch.uint8)[:, pages].cpu() for part in pool.parts]


@pytest.mark.parametrize("dtype", KINDS)
def test_pages_of_s2_pro_s_size_come_back_bit_for_bit_to_other_pages(dtype: KvDtype) -> None:
    pool = KvPool.empty(LAYERS, 12, *SHAPE, GPU, dtype)
    host = HostPages(pool, 9 * page_bytes(LAYERS, *SHAPE, dtype), GPU)
    host.allocate(lambda _line: None)
    assert host.count == host.planned >= 5
    noise(pool, 1)
    torch.cuda.synchronize()
    before = bits(pool, [3, 0, 7, 11])
    host.save([3, 0, 7, 11], [4, 1, 0, 2])
    noise(pool, 2)
    torch.cuda.synchronize()
    others = [page for page in range(13) if page not in (2, 3, 5, 10)]
    beside = bits(pool, others)
    host.load([4, 1, 0, 2], [10, 3, 2, 5])
    for old, new in zip(before, bits(pool, [10, 3, 2, 5]), strict=True):
        assert torch.equal(old, new)
    for old, new in zip(beside, bits(pool, others), strict=True):
        assert torch.equal(old, new)


def test_copies_allocate_nothing() -> None:
    pool = KvPool.empty(LAYERS, 4, *SHAPE, GPU, "fp8")
    host = HostPages(pool, 4 * page_bytes(LAYERS, *SHAPE, "fp8"), GPU)
    host.allocate(lambda _line: None)
    host.save([0], [0])
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    host.save([1, 2], [0, 1])
    host.load([0, 1], [3, 0])
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before


@pytest.mark.parametrize("kv_dtype", KINDS)
def test_a_turn_on_a_copied_voice_says_what_it_said_on_the_original(kv_dtype: KvDtype) -> None:
    runner = builtin_runner("bf16", buckets=(1, 2), pages=40, kv_dtype=kv_dtype, host_bytes=1 << 24)
    assert runner.spec.host_pages >= 8
    driver = Driver(runner)
    original, copy = (20, 21, 22), (32, 30, 31)
    driver.voice(original, seed=7)
    said = driver.run((0,), (driver.start_on(original, 0, TEXT, 5),), FRAMES)
    elsewhere = driver.run((0,), (driver.start_on((26, 27, 28), 0, TEXT, 5),), FRAMES)
    assert not np.array_equal(said, elsewhere), "the voice makes no difference"

    # Somebody speaks all the while, as on any other day.
    neighbour = driver.start(1, "Somebody else speaks.", 9)
    alone = driver.run((1,), (neighbour,), 40)

    def to_and_fro() -> None:
        runner.save_pages(original, (6, 2, 4))
        driver.voice(original, seed=8)
        runner.load_pages((6, 2, 4), copy)

    neighbour = driver.start(1, "Somebody else speaks.", 9)
    thread = threading.Thread(target=to_and_fro)
    thread.start()
    beside = driver.run((1,), (neighbour,), 40)
    thread.join()
    assert np.array_equal(alone, beside)
    again = driver.run((0,), (driver.start_on(copy, 0, TEXT, 5),), FRAMES)
    assert np.array_equal(said, again)


@pytest.mark.usefixtures("card_to_itself")
def test_steps_go_on_beside_copies_of_s2_pro_s_pages(capsys: pytest.CaptureFixture[str]) -> None:
    """A step's own copies wait for one piece of a page at most. The figures are printed."""
    driver = Driver(builtin_runner("bf16", buckets=(1,), pages=40))
    pool = KvPool.empty(LAYERS, 9, *SHAPE, GPU)
    host = HostPages(pool, 1 << 27, GPU)
    host.allocate(lambda _line: None)
    pages = range(8)
    over = threading.Event()
    took_s: dict[str, list[float]] = {"save": [], "load": []}

    def copy() -> None:
        while not over.is_set():
            for name, act in (("save", host.save), ("load", host.load)):
                began = time.perf_counter()
                act(pages, pages)
                took_s[name].append(time.perf_counter() - began)

    def steps_s() -> list[float]:
        driver.run((0,), (driver.start(0, TEXT, 5),), 200)
        return sorted(driver.times_s)

    steps_s()
    alone = steps_s()
    thread = threading.Thread(target=copy)
    thread.start()
    try:
        beside = steps_s()
    finally:
        over.set()
        thread.join()
    lines: list[str] = []
    for name, took in took_s.items():
        lines.append(f"{name} 8 pages, 75.5 MB: best {1000 * min(took):.2f} ms of {len(took)}")
    for name, took in (("alone", alone), ("beside copies", beside)):
        lines.append(
            f"step {name}: p50 {1000 * took[len(took) // 2]:.3f} ms, "
            f"p99 {1000 * took[int(0.99 * len(took))]:.3f} ms, most {1000 * took[-1]:.3f} ms"
        )
    with capsys.disabled():
        sys.stdout.write("\n" + "\n".join(lines) + "\n")
    # Copies without a pause; a voice is one now and then.
    assert beside[len(beside) // 2] < 2 * alone[len(alone) // 2] + 0.0005

"""The host's pages of KV: how many fit, and copies there and back of every part. On a CPU."""

from __future__ import annotations

import pytest
import torch

from shoal.engine.cuda.host_pages import HOST_BYTES, SLAB_BYTES, HostPages, slab_sizes, usual_bytes
from shoal.engine.cuda.kv_pool import KvDtype, KvPool, page_bytes
from shoal.engine.host_memory import host_memory_bytes

CPU = torch.device("cpu")
SHAPE = (3, 32, 64)
EACH = page_bytes(2, *SHAPE)


def filled(dtype: KvDtype, seed: int) -> KvPool:
    pool = KvPool.empty(2, 6, *SHAPE, CPU, dtype)
    overwrite(pool, seed)
    return pool


def overwrite(pool: KvPool, seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    for part in pool.parts:
        part.view(torch.uint8).random_(0, 256, generator=draw)


def bits(pool: KvPool, pages: list[int]) -> list[torch.Tensor]:
    return [part[:, pages].contiguous().view(torch.uint8) for part in pool.parts]


@pytest.mark.parametrize(
    ("limit", "page"), [(4 << 30, 9_437_184), (5 << 30, 4_866_048), (200 << 20, 9_437_184), (1, 2)]
)
def test_pieces_stay_within_the_limit_and_waste_little_of_it(limit: int, page: int) -> None:
    slabs = slab_sizes(limit, page)
    # The allocator rounds each up to a power of two.
    taken = sum(1 << (pages * page - 1).bit_length() for pages in slabs)
    assert taken <= limit
    assert all(pages * page <= SLAB_BYTES for pages in slabs)
    assert sum(slabs) >= 0.8 * limit // page


def test_no_more_is_pinned_than_the_device_has_nor_than_the_machine_can_spare() -> None:
    assert usual_bytes(1 << 20) == 1 << 20
    assert usual_bytes(1 << 50) <= min(HOST_BYTES, host_memory_bytes() // 4)


def test_less_than_a_page_is_none() -> None:
    host = HostPages(filled("bf16", 1), EACH - 1, CPU)
    lines: list[str] = []
    host.allocate(lines.append)
    assert (host.planned, host.count, lines) == (0, 0, [])


@pytest.mark.parametrize("dtype", ["bf16", "fp8"])
def test_pages_come_back_bit_for_bit_to_other_pages_and_nothing_else_changes(
    dtype: KvDtype,
) -> None:
    pool = filled(dtype, 1)
    host = HostPages(pool, 8 * EACH, CPU)
    lines: list[str] = []
    host.allocate(lines.append)
    host.allocate(lines.append)
    assert len(lines) == 1 and host.count == host.planned >= 4
    before = bits(pool, [4, 0, 1])
    host.save([4, 0, 1], [3, 0, 2])
    overwrite(pool, 2)
    others = [0, 3, 4, 6]
    beside = bits(pool, others)
    host.load([3, 0, 2], [1, 5, 2])
    for old, new in zip(before, bits(pool, [1, 5, 2]), strict=True):
        assert torch.equal(old, new)
    for old, new in zip(beside, bits(pool, others), strict=True):
        assert torch.equal(old, new)


def test_memory_that_cannot_be_had_is_told_and_less_is_used() -> None:
    host = HostPages(filled("bf16", 1), 64 * EACH, CPU)

    def scarce(size: int, _pinned: bool) -> torch.Tensor:
        if host.count:
            raise RuntimeError("out of memory")
        return torch.empty(size, dtype=torch.uint8)

    lines: list[str] = []
    host.allocate(lines.append, scarce)
    assert 0 < host.count < host.planned
    assert len(lines) == 2 and "could be pinned" in lines[1]

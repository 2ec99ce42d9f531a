"""The pool of pages: what it takes, and that a page is copied whole."""

from __future__ import annotations

import pytest
import torch

from shoal.engine.cuda.kv_pool import KvDtype, KvPool, page_bytes
from shoal.kernels.kv import Fp8Pages

CPU = torch.device("cpu")
SHAPE = (3, 32, 128)
KINDS: tuple[KvDtype, ...] = ("bf16", "fp8")


def pool_of(dtype: KvDtype) -> KvPool:
    return KvPool.empty(2, 5, *SHAPE, CPU, dtype)


@pytest.mark.parametrize("dtype", KINDS)
def test_a_page_takes_what_is_said(dtype: KvDtype) -> None:
    pool = pool_of(dtype)
    held = sum(part.numel() * part.element_size() for part in pool.parts)
    assert held == 6 * page_bytes(2, *SHAPE, dtype)
    assert pool.scratch_page == 5


def test_fp8_pages_are_little_more_than_half_of_bf16_ones() -> None:
    """S2 Pro's: 147,456 bytes a token in bf16, 76,032 in FP8."""
    sizes = [page_bytes(36, 8, 64, 128, dtype) // 64 for dtype in KINDS]
    assert sizes == [147_456, 76_032]


@pytest.mark.parametrize("dtype", KINDS)
def test_a_page_is_copied_with_its_scales_and_nothing_else_is(dtype: KvDtype) -> None:
    pool = pool_of(dtype)
    for seed, part in enumerate(pool.parts):
        draw = torch.Generator().manual_seed(seed)
        part.copy_(torch.randn(part.shape, generator=draw))
    before = [part.float() for part in pool.parts]
    pool.copy_page(1, 4)
    others = [0, 1, 2, 3, 5]
    for old, part in zip(before, pool.parts, strict=True):
        new = part.float()
        assert torch.equal(new[:, 4], old[:, 1])
        assert torch.equal(new[:, others], old[:, others])


def test_a_layer_of_an_fp8_pool_is_its_values_with_its_scales() -> None:
    pool = pool_of("fp8")
    assert pool.key_scales is not None
    assert pool.value_scales is not None
    keys, values = pool.layer(1)
    assert isinstance(keys, Fp8Pages)
    assert isinstance(values, Fp8Pages)
    ours = (keys.values, keys.scales, values.values, values.scales)
    theirs = (pool.keys, pool.key_scales, pool.values, pool.value_scales)
    for part, whole in zip(ours, theirs, strict=True):
        assert part.data_ptr() == whole[1].data_ptr()
        assert part.shape == whole.shape[1:]
    assert isinstance(pool_of("bf16").layer(0)[0], torch.Tensor)

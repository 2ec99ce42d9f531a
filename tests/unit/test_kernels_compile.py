"""Every kernel, compiled for a GPU that is not there: the instructions are the ones meant, the
registers do not spill, and shared memory fits."""

from __future__ import annotations

import pytest

from tests.compiling import Compiling
from tests.offline import BLACKWELL, HOPPER, SHARED_LIMIT, Compiled

MAY_SPILL = {"codec": 128, "attention": 8}
"""Bytes. Of the codec's tiles and the fast stack's attention, the quickest when timed spill."""


COMPILING_S = 800
pytestmark = pytest.mark.timeout(COMPILING_S + 60)


@pytest.fixture(scope="module")
def hopper(compiling: dict[int, Compiling]) -> list[Compiled]:
    return compiling[HOPPER].compiled(COMPILING_S)


@pytest.fixture(scope="module")
def blackwell(compiling: dict[int, Compiling]) -> list[Compiled]:
    return compiling[BLACKWELL].compiled(COMPILING_S)


def of(kernels: list[Compiled], prefix: str) -> list[Compiled]:
    found = [kernel for kernel in kernels if kernel.case.startswith(prefix)]
    assert found, prefix
    return found


def test_nothing_spills_and_shared_memory_fits(
    hopper: list[Compiled], blackwell: list[Compiled]
) -> None:
    for architecture, kernels in ((HOPPER, hopper), (BLACKWELL, blackwell)):
        for kernel in kernels:
            limit = MAY_SPILL.get(kernel.case.split("-")[0], 0)
            assert kernel.stack_bytes <= limit, kernel
            assert kernel.shared_bytes <= SHARED_LIMIT[architecture], kernel


def test_fp8_products_use_the_matrix_unit_and_the_copy_engine(hopper: list[Compiled]) -> None:
    for kernel in of(hopper, "gemm"):
        assert kernel.instructions["wgmma_fp8"] >= 4, kernel
        moved_by = "cp_async" if kernel.case == "gemm-copies" else "tma"
        assert kernel.instructions[moved_by] >= 4, kernel


def test_bf16_products_use_the_matrix_unit_and_the_copy_engine(hopper: list[Compiled]) -> None:
    for kernel in of(hopper, "wide"):
        assert kernel.instructions["wgmma_bf16"] >= 4, kernel
        assert kernel.instructions["tma"] >= 4, kernel


def test_launches_that_overlap_wait_before_they_read(hopper: list[Compiled]) -> None:
    for case in ("gemm-6144", "rows-norm"):
        for kernel in of(hopper, case):
            assert kernel.instructions["dependent_launch"] == 2, kernel
    for kernel in of(hopper, "attention-cascade"):
        # A kernel none of whose programs waited would let the one after it start too early.
        assert kernel.instructions["dependent_launch"] >= 2, kernel
    assert "dependent_launch" not in of(hopper, "gemm-rows-64")[0].instructions


def test_attention_uses_the_matrix_unit_and_counts_arrivals_in_order(
    hopper: list[Compiled],
) -> None:
    by_kernel = {
        kernel.kernel: kernel for kernel in of(hopper, "attention-") if "kv8" not in kernel.case
    }
    for name in ("decode_kernel", "prefix_kernel", "extend_kernel"):
        assert by_kernel[name].instructions["wgmma_bf16"] >= 4, by_kernel[name]
    # The release and acquire of the count orders the stretches' stores before the last one's loads.
    assert by_kernel["decode_kernel"].instructions["acq_rel"] == 1


def test_fp8_keys_and_values_are_widened_by_the_device_s_instruction(
    hopper: list[Compiled],
) -> None:
    by_kernel = {kernel.kernel: kernel for kernel in of(hopper, "attention-kv8")}
    for name in ("decode_kernel", "prefix_kernel", "extend_kernel"):
        found = by_kernel[name].instructions
        assert found["widened"] >= 16, by_kernel[name]
        assert found["wgmma_f16"] >= 4, by_kernel[name]
        assert "wgmma_bf16" not in found, by_kernel[name]
        # Words are widened whole. Taken apart byte by byte there would be 190 and more.
        assert found.get("shuffled", 0) <= 32, by_kernel[name]


def test_the_codec_multiplies_on_the_matrix_unit_and_overlaps_its_launches(
    hopper: list[Compiled],
) -> None:
    for kernel in of(hopper, "codec"):
        assert kernel.instructions["dependent_launch"] == 2, kernel
        if kernel.kernel == "conv_kernel":
            assert kernel.instructions["wgmma"] >= 4, kernel
            assert kernel.instructions["tma"] >= 2, kernel
    # As with attention: the count of arrivals orders the stores of all parts before their sum.
    for name in ("codec-w2-64", "codec-wide 768-1", "codec-first-64"):
        assert of(hopper, name)[0].instructions["acq_rel"] == 1


def test_mxfp8_is_native_on_blackwell_and_emulated_on_hopper(
    hopper: list[Compiled], blackwell: list[Compiled]
) -> None:
    for case in ("mx-gemm", "mx-prefill", "mx-extend", "mx-decode"):
        for kernel in of(blackwell, case):
            assert kernel.instructions["mma_block_scaled"] >= 4, kernel
        for kernel in of(hopper, case):
            assert "mma_block_scaled" not in kernel.instructions, kernel

"""What is chosen when nobody says."""

from __future__ import annotations

import pytest

from shoal.engine.loading import CPU_SLOTS, usual_slots


@pytest.mark.parametrize(
    ("gpu_gib", "slots"), [(None, CPU_SLOTS), (16, 64), (24, 64), (80, 256), (139, 256)]
)
def test_a_large_gpu_carries_more_streams(gpu_gib: int | None, slots: int) -> None:
    assert usual_slots(None if gpu_gib is None else gpu_gib << 30) == slots

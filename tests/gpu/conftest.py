"""What the tests of this tier ask of the machine besides a GPU."""

from __future__ import annotations

import os

import pytest


@pytest.fixture
def card_to_itself() -> None:
    """For tests that time the GPU: skipped where pytest-xdist runs other tests beside them."""
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if workers > 1:
        pytest.skip(f"times the GPU, which {workers} workers share: run it without -n")

"""Fixtures that several modules of this tier share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
import torch

if TYPE_CHECKING:
    from tests.turns import Steps


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Networks as small as the tests' lose by more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def steps() -> Iterator[Steps]:
    """The built-in voice on a warm CPU runner."""
    from tests.turns import builtin_runner, stepping  # most modules need no model

    with stepping(builtin_runner()) as driven:
        yield driven


@pytest.fixture
def tiny() -> Iterator[Steps]:
    """``s2_tiny`` on a warm CPU runner."""
    from tests.turns import stepping, tiny_runner

    with stepping(tiny_runner()) as driven:
        yield driven

"""Fixtures that several modules of this tier share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
import torch

if TYPE_CHECKING:
    from tests.compiling import Compiling
    from tests.turns import Steps


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Networks as small as the tests' lose by more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def compiling(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[int, Compiling]]:
    """Every kernel, on its way to both architectures side by side."""
    from tests.compiling import Compiling
    from tests.offline import BLACKWELL, HOPPER

    started = {
        each: Compiling(each, tmp_path_factory.mktemp(f"sm_{each}")) for each in (HOPPER, BLACKWELL)
    }
    yield started
    for each in started.values():
        each.stop()


@pytest.fixture(scope="session")
def compiling_ahead(request: pytest.FixtureRequest) -> None:
    """Begins it where tests that need it are to come: by interpreted ones, which take long and
    leave all processors but one alone."""
    names = (getattr(item, "fixturenames", ()) for item in request.session.items)
    if any("compiling" in found for found in names):
        request.getfixturevalue("compiling")


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

"""Tiers, the GPU, and a run that cannot pass by running nothing.

A test's tier is the folder it lies in, so nobody has to remember a marker. Where CI is set, a
skipped unit or e2e test counts as a failure: what CI does not run is not shown.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
import torch

TESTS = Path(__file__).parent
TIERS = ("unit", "e2e", "gpu")
HAS_GPU = torch.cuda.is_available()
IN_CI = bool(os.environ.get("CI"))

if not HAS_GPU:
    # Kernels run in Triton's interpreter; it must know before the first kernel is imported.
    os.environ.setdefault("TRITON_INTERPRET", "1")

# The machine that runs CI is shared and slow: a property fails for what it finds, not for time.
hypothesis.settings.register_profile("shoal", deadline=None, derandomize=IN_CI)
hypothesis.settings.load_profile("shoal")

_passed = pytest.StashKey[int]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--at-least",
        type=int,
        default=0,
        metavar="N",
        help="fail when fewer than N tests passed",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_passed] = 0


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        tier = item.path.relative_to(TESTS).parts[0]
        if tier not in TIERS:
            raise pytest.UsageError(f"{item.path} lies in none of the tiers {', '.join(TIERS)}")
        item.add_marker(tier)
        if tier == "gpu" and not HAS_GPU:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA GPU"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report = yield
    if report.when == "call" and report.passed:
        item.config.stash[_passed] += 1
    expected = item.get_closest_marker("gpu") is not None or hasattr(report, "wasxfail")
    if report.skipped and IN_CI and not expected:
        report.outcome = "failed"
        report.longrepr = f"skipped, which CI does not allow: {report.longrepr}"
    return report


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    wanted = session.config.getoption("--at-least")
    passed = session.config.stash[_passed]
    if passed < wanted and exitstatus == pytest.ExitCode.OK:
        reporter = session.config.pluginmanager.get_plugin("terminalreporter")
        reporter.write_line(f"only {passed} tests passed, at least {wanted} must", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture
def cuda() -> torch.device:
    """The GPU; a test that asks for it is skipped where there is none."""
    if not HAS_GPU:
        pytest.skip("needs a CUDA GPU")
    return torch.device("cuda")

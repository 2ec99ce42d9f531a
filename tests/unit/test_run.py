"""A run of the tests cannot pass by running too few of them, or by skipping."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]


def pytest_run(folder: Path, *flags: str, ci: bool) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", *flags, "unit"],
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", **({"CI": "true"} if ci else {})},
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.returncode, done.stdout + done.stderr


def suite(folder: Path, source: str) -> Path:
    """A tests folder with our conftest and one module."""
    (folder / "unit").mkdir()
    (folder / "conftest.py").write_bytes((TESTS / "conftest.py").read_bytes())
    (folder / "unit" / "test_one.py").write_text(source)
    markers = "markers =\n    unit: u\n    e2e: e\n    gpu: g\n"
    (folder / "pytest.ini").write_text(f"[pytest]\naddopts = --strict-markers\n{markers}")
    return folder


def test_too_few_passed_tests_fail_the_run(tmp_path: Path) -> None:
    folder = suite(tmp_path, "def test_a(): pass\ndef test_b(): pass\n")
    assert pytest_run(folder, "--at-least", "2", ci=True)[0] == 0
    code, printed = pytest_run(folder, "--at-least", "3", ci=True)
    assert code == 1
    assert "only 2 tests passed, at least 3 must" in printed


def test_a_skip_is_a_failure_in_ci_and_nowhere_else(tmp_path: Path) -> None:
    folder = suite(
        tmp_path,
        "import pytest\n"
        "def test_a(): pytest.skip('no time')\n"
        "@pytest.mark.skip(reason='no mood')\n"
        "def test_b(): pass\n",
    )
    assert pytest_run(folder, ci=False)[0] == 0
    code, printed = pytest_run(folder, ci=True)
    assert code == 1
    assert "2 failed" in printed or "2 errors" in printed or "1 failed, 1 error" in printed


def test_a_run_without_tests_fails(tmp_path: Path) -> None:
    assert pytest_run(suite(tmp_path, ""), ci=True)[0] == 5


def test_a_failing_test_fails_the_run(tmp_path: Path) -> None:
    assert pytest_run(suite(tmp_path, "def test_a(): assert False\n"), ci=True)[0] == 1

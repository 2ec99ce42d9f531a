"""What somebody is told who lacks a package: a line that installs it where it is lacked."""

from __future__ import annotations

import platform
import shlex
import subprocess
import sys
from importlib import metadata

import pytest

from shoal.realtime.doctor import packages
from shoal.realtime.installing import pip_install

SHOAL = "from shoal.realtime.cli import main"
CLUSTER = "from shoal.deploy.__main__ import main"
RECOGNISER = "from shoal.loadtest.asr_wer import Recogniser as main"


def told_without(module: str, main: str, *words: object) -> subprocess.CompletedProcess[str]:
    """What a process says that cannot import ``module``."""
    code = f"import sys; sys.modules[{module!r}] = None; {main}; sys.exit(main(*{words!r}))"
    return subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=60
    )


@pytest.mark.parametrize(
    ("module", "main", "words", "extra"),
    [
        ("httpx2", SHOAL, ["mcp"], "mcp"),
        ("opentelemetry.sdk.trace", SHOAL, ["serve", "--engine", "fake", "--traces"], "otel"),
        ("hdrh.histogram", SHOAL, ["load", "run", "ws://h:1", "--closed", "1"], ""),
        ("yaml", CLUSTER, ["up"], "cluster"),
    ],
    ids=lambda value: value if isinstance(value, str) and "import" not in value else "",
)
def test_the_line_installs_what_lacks_into_the_environment_that_runs(
    module: str, main: str, words: list[str], extra: str
) -> None:
    done = told_without(module, main, words)
    said, _, line = done.stderr.partition(f"no {module} here: ")
    assert (said, done.returncode) == ("shoal: ", 1)
    requirement = f"shoal[{extra}]" if extra else "shoal"
    assert shlex.split(line) == [sys.executable, "-m", "pip", "install", requirement]
    offered = metadata.metadata("shoal").get_all("Provides-Extra") or []
    assert not extra or extra in offered


def test_the_recogniser_says_so_too() -> None:
    told = told_without("faster_whisper", RECOGNISER).stderr
    line = told.strip().splitlines()[-1].partition("faster_whisper is not installed: ")[2]
    assert shlex.split(line) == [sys.executable, "-m", "pip", "install", "shoal[asr]"]
    assert "asr" in (metadata.metadata("shoal").get_all("Provides-Extra") or [])


def test_a_requirement_is_quoted_for_a_shell() -> None:
    words = [sys.executable, "-m", "pip", "install", "shoal[mcp]", "torch>=2.8"]
    line = pip_install(*words[4:])
    assert line.endswith(" 'shoal[mcp]' 'torch>=2.8'") and shlex.split(line) == words


def test_the_doctors_lines_are_for_a_shell_too() -> None:
    here = f"platform_system == '{platform.system()}'"
    requirements = ["numpy>=1", f"no-such-package>=3.4; {here}", "nor-this; extra == 'a'"]
    lacking, present = packages(requirements)
    assert present.ok and not lacking.ok
    words = [sys.executable, "-m", "pip", "install", "no-such-package>=3.4"]
    assert shlex.split(lacking.fix) == words

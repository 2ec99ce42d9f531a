"""The stand-in server as its own process, and ``shoal load`` to judge it."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import IO

from shoal.loadtest.command import add_arguments, run


def judged(*words: str) -> int:
    """The exit code of ``shoal load`` with these words."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return run(parser.parse_args(words))


@contextmanager
def standing_in(*flags: str) -> Generator[str]:
    """Gives its WebSocket address."""
    command = [sys.executable, "-P", "-m", "shoal.loadtest.lying_server", *flags]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    output: IO[str] | None = process.stdout
    assert output is not None
    try:
        yield output.readline().split()[0]
    finally:
        process.terminate()
        process.wait(10)
        output.close()

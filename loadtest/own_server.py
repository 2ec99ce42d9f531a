"""Starts a ``shoal serve`` of its own on a free port, and ends it. For demo, bench and tests."""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager

START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 30.0
"""Longer than a server waits for turns to end, of its own accord."""
_POLL_S = 0.05


class NoServer(Exception):
    """The server did not come up; the message ends with its last words."""


@contextmanager
def own_server(*flags: str, timeout_s: float = START_TIMEOUT_S) -> Generator[str, None, None]:
    """Yield the ``http://`` address of a server that is ready for a first turn.

    :raises NoServer: it exited, or was not ready in time.
    """
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-P", "-m", "shoal.realtime", "serve", "--host", "127.0.0.1"]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            [*command, "--port", str(port), *flags], stdout=log, stderr=subprocess.STDOUT
        )
        try:
            _await_ready(process, url, timeout_s)
        except NoServer as failure:
            _end(process)
            log.seek(0)
            words = log.read().decode(errors="replace").strip().splitlines()[-8:]
            raise NoServer("\n".join((str(failure), *words))) from None
        try:
            yield url
        finally:
            _end(process)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def is_ready(url: str) -> bool:
    """Whether a server answers there and says that it is warm."""
    try:
        with urllib.request.urlopen(f"{url}/v1/health", timeout=2) as answer:
            return bool(answer.status == 200)
    except (OSError, urllib.error.URLError):
        return False


def _await_ready(process: subprocess.Popen[bytes], url: str, timeout_s: float) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not is_ready(url):
        if process.poll() is not None:
            raise NoServer(f"the server exited with {process.returncode}:")
        if time.monotonic() > deadline_s:
            raise NoServer(f"the server was not ready after {timeout_s:.0f} s:")
        time.sleep(_POLL_S)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()

"""The offline device at every kernel, as a process of its own beside the tests."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from subprocess import Popen

from tests import offline
from tests.offline import Compiled


class Compiling:
    """One architecture's. ``folder`` is for what it says and for Triton's cache."""

    def __init__(self, architecture: int, folder: Path) -> None:
        self._out, self._errors = folder / "out", folder / "errors"
        environment = os.environ | {
            "TRITON_INTERPRET": "0",
            "TRITON_CACHE_DIR": str(folder / "cache"),
            "PYTHONPATH": str(Path(__file__).parents[1] / ".typings"),
        }
        command = [sys.executable, "-P", offline.__file__, str(architecture)]
        with self._out.open("w") as out, self._errors.open("w") as errors:
            self._process = Popen(command, stdout=out, stderr=errors, env=environment)

    def compiled(self, within_s: float) -> list[Compiled]:
        """What it made of them."""
        code = self._process.wait(within_s)
        assert code == 0, self._errors.read_text()[-4000:]
        return [Compiled(**json.loads(line)) for line in self._out.read_text().splitlines()]

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()

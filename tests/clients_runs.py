"""Runs a script of ``tests/clients``: in an environment of its own, and says what it heard."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PYTHON = ROOT / ".clients" / "bin" / "python"
SCRIPTS = ROOT / "tests" / "clients"
LIMIT_S = 120.0


def run_client(script: str, *arguments: str) -> dict[str, Any]:
    return _report([str(PYTHON), str(SCRIPTS / f"{script}.py"), *arguments], ROOT)


def run_javascript(script: str, *arguments: str) -> dict[str, Any]:
    """Node reads the script from its input, in the folder where the SDK is installed."""
    command = [str(PYTHON.with_name("node")), "--input-type=module", "-", *arguments]
    source = (SCRIPTS / "js" / f"{script}.mjs").read_text("utf-8")
    return _report(command, ROOT / ".clients" / "js", source)


def _report(command: list[str], folder: Path, source: str | None = None) -> dict[str, Any]:
    done = subprocess.run(
        command, cwd=folder, input=source, capture_output=True, text=True, timeout=LIMIT_S
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])

"""What machine the load tester itself ran on, as far as the system tells."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from typing import Any


def describe_machine() -> dict[str, Any]:
    """For the result file: no names of hosts or users."""
    return {
        "cpu": _cpu_model(),
        "cpus": os.cpu_count(),
        "system": platform.system(),
        "python": platform.python_version(),
        "tool": _version(),
    }


def _cpu_model() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as info:
            for line in info:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.machine()


def _version() -> str:
    try:
        return f"shoal {metadata.version('shoal')}"
    except metadata.PackageNotFoundError:
        return "shoal"

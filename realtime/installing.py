"""How to install what is missing: the line for the environment that runs, not for a shell's pip.

Any thread.
"""

from __future__ import annotations

import shlex
import sys


def pip_install(*requirements: str) -> str:
    """What to type, ready for a POSIX shell."""
    return shlex.join([sys.executable, "-m", "pip", "install", *requirements])


def missing_module(error: ModuleNotFoundError, requirement: str) -> str:
    """One line for the user who lacks a module that ``requirement`` brings."""
    return f"no {error.name} here: {pip_install(requirement)}"

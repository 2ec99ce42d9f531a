"""JSON files that somebody names on the command line: read whole, or refused in one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast


def read_object(path: Path, refused: type[Exception], otherwise: str) -> dict[str, Any]:
    """The object in a file. Raises ``refused``: missing, not JSON, or no object, then ``otherwise``
    says what it is not."""
    try:
        found: object = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as problem:
        raise refused(f"{path}: {problem}") from problem
    if not isinstance(found, dict):
        raise refused(f"{path}: {otherwise}")
    return cast("dict[str, Any]", found)

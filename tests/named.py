"""Tests that a page or a table names: whether they exist."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from pathlib import Path

E2E = Path(__file__).parent / "e2e"


def missing_tests(named: Iterable[tuple[str, str]], folder: Path = E2E) -> list[str]:
    """Those of ``(file, function)`` that ``folder`` does not have."""
    found: dict[str, set[str]] = {}
    gone: list[str] = []
    for file, name in named:
        if file not in found:
            tree = ast.parse((folder / file).read_text(encoding="utf-8"))
            functions = (ast.FunctionDef, ast.AsyncFunctionDef)
            found[file] = {node.name for node in ast.walk(tree) if isinstance(node, functions)}
        if name not in found[file]:
            gone.append(f"{file}::{name}")
    return gone

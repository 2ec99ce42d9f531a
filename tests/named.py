"""Tests that a page or a table names: whether they exist, and whether all are in the table."""

from __future__ import annotations

import ast
import re
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


def numbered_tests(page: str) -> dict[int, tuple[str, str]]:
    """What a page lists as ``1. `file.py::function```."""
    lines = re.findall(r"^(\d+)\. `(\w+\.py)::(\w+)`$", page, re.MULTILINE)
    return {int(number): (file, name) for number, file, name in lines}


def table_cells(table: str) -> list[str]:
    """The cells of a table in Markdown, without its head and its first column."""
    rows = [line for line in table.splitlines() if line.startswith("|")][2:]
    return [cell.strip() for row in rows for cell in row.strip("|").split("|")[1:]]


def check_table(table: str, named: dict[int, tuple[str, str]]) -> None:
    """Every cell is "-" or has the number of a test, and every test is in a cell."""
    used: set[int] = set()
    for cell in table_cells(table):
        numbers = {int(number) for number in re.findall(r"\((\d+)\)", cell)}
        assert numbers or cell == "-", cell
        used |= numbers
    assert used == set(named) == set(range(1, len(named) + 1))

"""docs/dialects.md: every entry of its table names a test, and every test that it names exists."""

from __future__ import annotations

import re
from pathlib import Path

from tests.named import missing_tests

TESTS = Path(__file__).parents[1]
PAGE = (TESTS.parent / "docs" / "dialects.md").read_text(encoding="utf-8")
TABLE = PAGE.partition("## What each of them does")[2].partition("## The tests")[0]
NAMED = {
    int(number): (file, name)
    for number, file, name in re.findall(r"^(\d+)\. `(\w+\.py)::(\w+)`$", PAGE, re.MULTILINE)
}


def cells() -> list[str]:
    rows = [line for line in TABLE.splitlines() if line.startswith("|")][2:]
    return [cell.strip() for row in rows for cell in row.strip("|").split("|")[1:]]


def test_every_entry_has_a_test_and_every_test_an_entry() -> None:
    assert len(cells()) > 60
    used: set[int] = set()
    for cell in cells():
        numbers = {int(number) for number in re.findall(r"\((\d+)\)", cell)}
        assert numbers or cell == "-", cell
        used |= numbers
    assert used == set(NAMED) == set(range(1, len(NAMED) + 1))


def test_every_test_that_is_named_exists() -> None:
    assert missing_tests(NAMED.values()) == []

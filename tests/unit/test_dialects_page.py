"""docs/dialects.md: every entry of its table names a test, and every test that it names exists."""

from __future__ import annotations

from pathlib import Path

from tests.named import check_table, missing_tests, numbered_tests, table_cells

PAGE = (Path(__file__).parents[2] / "docs" / "dialects.md").read_text(encoding="utf-8")
TABLE = PAGE.partition("## What each of them does")[2].partition("## The tests")[0]
NAMED = numbered_tests(PAGE)


def test_every_entry_has_a_test_and_every_test_an_entry() -> None:
    assert len(table_cells(TABLE)) > 60
    check_table(TABLE, NAMED)


def test_every_test_that_is_named_exists() -> None:
    assert missing_tests(NAMED.values()) == []

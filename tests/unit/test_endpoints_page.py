"""docs/endpoints.md: every entry of its table names a test that exists, and no path is left out."""

from __future__ import annotations

import re
from pathlib import Path

from starlette.routing import Route, WebSocketRoute

from shoal.realtime import status
from shoal.realtime.dialects import fish_live
from shoal.realtime.rest import models, openapi, references, tokens, tts, wallet
from tests.named import check_table, missing_tests, numbered_tests, table_cells

PAGE = (Path(__file__).parents[2] / "docs" / "endpoints.md").read_text(encoding="utf-8")
TABLE = PAGE.partition("## What each of them calls")[2].partition("The raw WebSocket")[0]
NAMED = numbered_tests(PAGE)
MODULES = (status, fish_live, tts, models, references, wallet, tokens, openapi)
COLUMNS = 9


def test_every_entry_has_a_test_and_every_test_an_entry() -> None:
    assert len(table_cells(TABLE)) > 15 * COLUMNS
    assert len(table_cells(TABLE)) % COLUMNS == 0
    check_table(TABLE, NAMED)


def test_every_row_and_every_column_has_a_test() -> None:
    cells = table_cells(TABLE)
    rows = [cells[first : first + COLUMNS] for first in range(0, len(cells), COLUMNS)]
    assert all(set(row) != {"-"} for row in rows)
    assert all(set(column) != {"-"} for column in zip(*rows, strict=True))


def test_every_test_that_is_named_exists() -> None:
    assert missing_tests(NAMED.values()) == []


def test_every_path_of_the_api_is_in_the_table() -> None:
    """The cover of a voice is an address inside of its entity."""
    routes = [route for module in MODULES for route in module.routes()]
    paths = {route.path for route in routes if isinstance(route, Route | WebSocketRoute)}
    named = re.sub(r"\{\w+\}", "{}", TABLE.replace("self/", "{}/"))
    for path in paths:
        shown = re.sub(r"\{\w+\}", "{}", path).removesuffix("/cover")
        shown = re.sub(r"^/v1/references/\w+$", "/v1/references/", shown)
        assert shown in named, path

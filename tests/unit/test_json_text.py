"""JSON with recordings in it: what comes out is what the plain parser says, and how much may."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.proto.json_text import (
    LONG_BYTES,
    MAX_JSON_BYTES,
    MAX_JSON_MARKUP,
    PIECE_BYTES,
    TooMuchJson,
    loads,
    whole,
)

LONG = "QUJD+/-_" * (LONG_BYTES // 4)
SLASHES = "/" * (3 * PIECE_BYTES)


@pytest.mark.parametrize(
    "value",
    [
        {"audio": LONG},
        {"a": [LONG, LONG + "==", {"b": LONG}], "c": "short", "d": 1.5, "e": None},
        [LONG],
        LONG,
        {LONG: LONG},
        {"text": f'said "{LONG}" and left'},
        {"text": f'"{LONG}"'},
        {"text": f"\\{LONG}\\"},
        {"text": f', "{LONG}'},
        {"text": LONG + "é\U0001f600 \n", "audio": LONG},
        {"text": f"[{LONG}]"},
        {"audio": SLASHES},
        {"audio": "A" + SLASHES + "B", "more": "x/" * LONG_BYTES},
        {"audio": LONG * 10, "text": "{[,]}" * 50_000},
    ],
)
def test_a_long_string_is_what_it_was(value: object) -> None:
    for text in (
        json.dumps(value),
        json.dumps(value, ensure_ascii=False),
        json.dumps(value, indent=1),
        json.dumps(value, separators=(",", ":")),
        re.sub(r"(?<!\\)/", r"\\/", json.dumps(value)),
    ):
        assert loads(text.encode()) == value


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists))
def test_any_value_is_what_the_plain_parser_says(value: object) -> None:
    assert loads(json.dumps({"x": value}).encode()) == {"x": value}


@pytest.mark.parametrize(
    "text",
    [
        f'{{"a"{LONG}"b"}}',
        f'"{LONG}',
        f'{LONG}"',
        f'{{"a": "{LONG}\\"}}',
        f'{{"a": "{LONG}\n"}}',
        f'{{"a": "{LONG}"{LONG}"{LONG}"}}',
    ],
)
def test_what_is_no_json_is_none_with_a_recording_in_it(text: str) -> None:
    with pytest.raises(ValueError):
        loads(text.encode())


@pytest.mark.parametrize("text", ["[" * 60_000, "1" * 5000, ""])
def test_what_is_no_json_is_not_too_much_of_it(text: str) -> None:
    with pytest.raises(ValueError) as error:
        loads(text.encode())
    assert not isinstance(error.value, TooMuchJson)


@pytest.mark.parametrize(
    "text",
    [
        "[" + "1," * MAX_JSON_MARKUP + "1]",
        f'{{"audio": "{LONG}", "x": [' + "0," * MAX_JSON_MARKUP + "0]}",
        "[" + '"",' * MAX_JSON_MARKUP + "0]",
        '"' * 3 * MAX_JSON_MARKUP,
        " " * (MAX_JSON_MARKUP + 2) + "{}",
        '{"text": "' + "é" * MAX_JSON_BYTES + '"}',
    ],
)
def test_json_has_a_limit_beside_its_recordings(text: str) -> None:
    with pytest.raises(TooMuchJson):
        loads(text.encode())


def test_several_long_strings_are_not_taken_for_each_other() -> None:
    values = {str(n): chr(65 + n) * (LONG_BYTES + n + 1) for n in range(20)}
    assert loads(json.dumps(values).encode()) == values


def test_nobody_can_name_a_string_that_was_lifted_out() -> None:
    value: dict[str, Any] = {"audio": LONG, "0": "0", "text": ["1", "", "mark0"]}
    assert loads(json.dumps(value).encode()) == value


@given(st.text(st.characters()))
def test_text_is_whole(text: str) -> None:
    assert whole(text) == text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def test_a_recording_whose_slashes_are_escaped_counts_as_one() -> None:
    audio = "A" + "/" * (MAX_JSON_BYTES // 2)
    text = json.dumps({"audio": audio}).replace("/", "\\/")
    assert len(text) > MAX_JSON_BYTES and loads(text.encode()) == {"audio": audio}

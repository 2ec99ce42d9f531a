"""What any text becomes in a header."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.realtime.answers import header_text


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("s2-pro", "s2-pro"),
        ("a\r\nx-b: c", "a x-b: c"),
        (" déjà\0vu \x7f", "déjà vu"),
        ("модель 2", "?????? 2"),
        ("\ud800", ""),
        ("\n", ""),
    ],
)
def test_a_header_is_one_line_of_latin_1(text: str, value: str) -> None:
    assert header_text(text) == value


@given(st.text(st.characters()))
def test_no_text_makes_a_header_that_is_none(text: str) -> None:
    value = header_text(text)
    assert value == value.strip() and value.isprintable() and "  " not in value
    assert header_text(value.encode("latin-1").decode("latin-1")) == value

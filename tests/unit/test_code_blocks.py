"""Code between fences is taken out, however the text comes; all else stays as it is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.engine.code_blocks import CodeBlocks
from shoal.engine.spans import Trail
from tests.feeds import segments


def without(*pieces: str) -> str:
    blocks = CodeBlocks(Trail())
    return "".join([*map(blocks.without, pieces), blocks.boundary()])


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("Run it:\n```python\nprint(1)\n```\nDone.", "Run it:\nDone."),
        ("One.\n  ```\n  ls\n  ```  \nTwo.", "One.\n  Two."),
        ("One.\n~~~\n```\n~~~\nTwo.", "One.\nTwo."),
        ("One.\n````md\n```\nx\n```\n````\nTwo.", "One.\nTwo."),
        ("```\nnever ended\nx", ""),
        ("Ends in a fence.\n```js", "Ends in a fence.\n"),
        ("Use `pip`, or ```this``` here.", "Use `pip`, or ```this``` here."),
        ("```inline``` at a line's start", "```inline``` at a line's start"),
        ("`x` first\n~5 minutes\n~~gone~~", "`x` first\n~5 minutes\n~~gone~~"),
        ("text ``` no fence\nmore", "text ``` no fence\nmore"),
        ("A\n```\nx\n```\nB\n```\ny\n```\nC", "A\nB\nC"),
        ("```" + "x" * 200 + "\nsaid", "```" + "x" * 200 + "\nsaid"),
    ],
)
def test_code_is_taken_out_and_nothing_else(text: str, left: str) -> None:
    assert without(text) == left
    assert without(*text) == left


@given(
    st.lists(st.sampled_from(["```", "`", "~~~", "~", "\n", "\n", " ", "a", "py"]), max_size=40),
    st.integers(1, 7),
)
def test_what_is_left_does_not_depend_on_the_pieces(parts: list[str], size: int) -> None:
    text = "".join(parts)
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    assert without(*pieces) == without(text)


def test_a_boundary_ends_no_block_but_begins_a_line() -> None:
    blocks = CodeBlocks(Trail())
    assert blocks.without("Look: ") + blocks.boundary() == "Look: "
    assert blocks.without("```") + blocks.boundary() == ""
    assert blocks.without("code") + blocks.boundary() == ""
    assert blocks.without("```") + blocks.boundary() == ""
    assert blocks.without("Said.") == "Said."


def test_a_held_line_is_bounded() -> None:
    blocks = CodeBlocks(Trail())
    assert blocks.without("```\n") == ""
    for _ in range(1000):
        assert blocks.without("x" * 1000) == ""
    assert blocks.without("\n```\nSaid.") == "Said."


def test_segments_have_no_code_in_them() -> None:
    text = "Here it is.\n```python\nx = 1. It was 2.\n```\nThat is all. Good."
    assert "".join(f"{s} " for s in segments(text)) == "Here it is. That is all. Good. "

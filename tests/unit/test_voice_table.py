"""Verdicts on a voice's figures."""

from __future__ import annotations

import pytest

from shoal.loadtest.voice_table import Row, table


@pytest.mark.parametrize(
    ("value", "verdict"), [(3.0, "aim"), (3.1, "good"), (4.5, "good"), (4.6, "missed")]
)
def test_less_is_better_up_to_a_target_and_an_aim(value: float, verdict: str) -> None:
    assert Row("codec WER", value, "%", at_most=4.5, aim=3.0).verdict == verdict


@pytest.mark.parametrize(
    ("value", "verdict"), [(0.88, "aim"), (0.8, "good"), (0.79, "missed"), (None, "not measured")]
)
def test_more_is_better_where_that_is_wanted(value: float | None, verdict: str) -> None:
    assert Row("cosine", value, "", at_least=0.8, aim=0.88).verdict == verdict


def test_a_figure_that_nobody_judges_is_only_told() -> None:
    assert Row("cosine through the codec", 0.1, "").verdict == ""


def test_the_table_shows_each_figure_beside_what_it_should_be() -> None:
    rows = [
        Row("all files", 29.6004, "MB", at_most=30.0, note="of eight"),
        Row("cosine", None, "", at_least=0.8, note="no encoder"),
        Row("runaways", 0.0, "", at_most=0.0),
    ]
    assert table(rows).splitlines() == [
        "| what | measured | target | aim | |",
        "|---|---|---|---|---|",
        "| all files | 29.6 MB | <= 30.0 MB |  | good |",
        "| cosine | - | >= 0.8 |  | not measured |",
        "| runaways | 0 | <= 0 |  | good |",
        "all files: of eight",
        "cosine: no encoder",
    ]

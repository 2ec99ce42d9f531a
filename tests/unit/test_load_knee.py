"""The search for the highest level that keeps the SLO, against servers with a known knee."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.loadtest.measure.knee import KneeSearch


def run(search: KneeSearch, knee: float) -> list[float]:
    while (level := search.next_level()) is not None:
        search.record(level, level <= knee)
        assert len(search.tried) < 60
    return [tried.level for tried in search.tried]


def test_doubles_until_it_breaks_then_halves_the_interval() -> None:
    search = KneeSearch(4, 1000)
    assert run(search, 21) == [4, 8, 16, 32, 24, 20, 22]
    assert search.best == 20


def test_a_start_that_breaks_is_halved() -> None:
    search = KneeSearch(16, 1000)
    assert run(search, 5) == [16, 8, 4, 6, 5]
    assert search.best == 5


def test_a_server_that_keeps_nothing_has_no_answer() -> None:
    search = KneeSearch(8, 1000)
    assert run(search, 0) == [8, 4, 2, 1]
    assert search.best is None


def test_it_never_goes_beyond_the_highest_level() -> None:
    search = KneeSearch(100, 250)
    assert run(search, 1e9) == [100, 200, 250]
    assert search.best == 250


def test_rates_need_not_be_whole() -> None:
    search = KneeSearch(1.0, 100.0, resolution=0.05, whole=False)
    run(search, 3.3)
    assert search.best is not None
    assert 3.3 / 1.06 <= search.best <= 3.3


def test_a_hopeless_rate_is_given_up() -> None:
    search = KneeSearch(1.0, 100.0, whole=False)
    assert len(run(search, 0.0)) <= 8


def test_a_level_above_a_broken_one_is_not_believed() -> None:
    search = KneeSearch(4, 100)
    search.record(4, True)
    search.record(8, False)
    search.record(16, True)
    assert search.best == 4


@given(st.integers(1, 64), st.integers(1, 500), st.floats(0.01, 0.5))
def test_the_answer_is_within_the_resolution_of_the_knee(
    start: int, knee: int, resolution: float
) -> None:
    search = KneeSearch(start, 512, resolution)
    levels = run(search, knee)
    assert len(levels) == len(set(levels))
    assert search.best is not None
    assert search.best <= knee
    assert knee - search.best <= max(1, resolution * search.best)


@pytest.mark.parametrize(("start", "highest"), [(0, 10), (-1, 10), (11, 10)])
def test_a_search_that_cannot_begin_is_refused(start: float, highest: float) -> None:
    with pytest.raises(ValueError, match="must start above 0"):
        KneeSearch(start, highest)

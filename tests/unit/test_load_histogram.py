"""Percentiles, merging and travelling of the histograms."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.loadtest.measure.histogram import Histogram


def of(*seconds: float) -> Histogram:
    histogram = Histogram()
    for value in seconds:
        histogram.record(value)
    return histogram


def test_nothing_recorded_has_no_percentiles() -> None:
    assert of().percentile(50) is None
    assert of().mean is None
    assert of().percentile_curve() == []


def test_percentiles_of_a_hundred_values() -> None:
    histogram = of(*(i / 1000 for i in range(1, 101)))
    assert histogram.percentile(50) == pytest.approx(0.050, rel=1e-3)
    assert histogram.percentile(95) == pytest.approx(0.095, rel=1e-3)
    assert histogram.percentile(99.9) == pytest.approx(0.100, rel=1e-3)
    assert histogram.percentile(100) == pytest.approx(0.100, rel=1e-3)
    assert histogram.mean == pytest.approx(0.0505, rel=1e-3)


@given(st.floats(1e-6, 3000))
def test_any_duration_is_kept_within_a_thousandth(seconds: float) -> None:
    found = of(seconds).percentile(100)
    assert found == pytest.approx(seconds, rel=1.1e-3, abs=1e-6)


def test_what_is_out_of_range_goes_to_the_edge() -> None:
    assert of(-1.0).percentile(100) == 0.0
    assert of(1e6).percentile(100) == pytest.approx(3600.0, rel=1e-3)


def test_merged_percentiles_are_those_of_all_samples_not_an_average() -> None:
    many, few = of(*[0.010] * 99), of(1.0)
    many.add(few)
    assert many.count == 100
    assert many.percentile(50) == pytest.approx(0.010, rel=1e-3)
    assert many.percentile(100) == pytest.approx(1.0, rel=1e-3)


def test_it_travels_as_text_and_between_processes() -> None:
    histogram = of(0.1, 0.2, 0.4)
    for copy in (
        Histogram.decode(histogram.encode().decode("ascii")),
        pickle.loads(pickle.dumps(histogram)),
    ):
        assert copy.count == 3
        assert copy.percentile(100) == histogram.percentile(100)
        copy.record(0.8)
        assert (copy.count, histogram.count) == (4, 3)


def test_the_curve_ends_where_the_samples_end() -> None:
    curve = of(*(i / 1000 for i in range(1, 101))).percentile_curve(10)
    assert curve[0][0] == 0.0
    assert curve[-1][0] == pytest.approx(99.0)
    values = [seconds for _, seconds in curve]
    assert values == sorted(values)

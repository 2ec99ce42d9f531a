"""Stages from two readings of a server's metrics."""

from __future__ import annotations

import pytest

from shoal.loadtest.measure.prometheus import growth, parse, stages

BEFORE = """
# HELP wait_seconds Waiting.
# TYPE wait_seconds histogram
wait_seconds_bucket{le="0.01"} 5
wait_seconds_bucket{le="0.1"} 10
wait_seconds_bucket{le="+Inf"} 10
wait_seconds_sum 0.5
wait_seconds_count 10
turns_total{ending="stop"} 7
turns_total{ending="error"} 1
streams 3
this is junk
"""
AFTER = """
wait_seconds_bucket{le="0.01"} 15
wait_seconds_bucket{le="0.1"} 30
wait_seconds_bucket{le="+Inf"} 30
wait_seconds_sum 1.5
wait_seconds_count 30
stage_seconds_sum{stage="codec",gpu="0"} 0.4
stage_seconds_count{stage="codec",gpu="0"} 4
idle_seconds_sum 0
idle_seconds_count 0
turns_total{ending="stop"} 27
turns_total{ending="error"} 1
streams 9 1700000000000
"""


def test_lines_become_values_by_name_and_labels() -> None:
    found = parse(AFTER)
    assert found["streams", ()] == 9
    assert found["stage_seconds_sum", (("gpu", "0"), ("stage", "codec"))] == 0.4
    assert found["wait_seconds_bucket", (("le", "+Inf"),)] == 30


def test_only_what_happened_between_the_readings_counts() -> None:
    codec, wait = stages(parse(BEFORE), parse(AFTER))
    assert (codec.name, codec.count, codec.mean_s) == ("stage 0,codec", 4, pytest.approx(0.1))
    assert codec.p50_s is None
    assert (wait.name, wait.count, wait.mean_s) == ("wait", 20, pytest.approx(0.05))
    # 10 of 20 in the first bucket: the median is its edge; 95 % lies 9/10 into the second
    assert wait.p50_s == pytest.approx(0.01)
    assert wait.p95_s == pytest.approx(0.01 + 0.9 * 0.09)


def test_a_quantile_beyond_the_last_edge_is_not_invented() -> None:
    text = 'x_seconds_bucket{le="1"} 1\nx_seconds_bucket{le="+Inf"} 10\n'
    (stage,) = stages({}, parse(text + "x_seconds_sum 90\nx_seconds_count 10\n"))
    assert stage.p95_s is None


def test_counters_grow_over_all_labels() -> None:
    assert growth(parse(BEFORE), parse(AFTER)) == {"turns_total": 20}


def test_labels_may_hold_quotes_and_commas() -> None:
    found = parse('a_total{path="/x,y",q="say \\"hi\\""} 2\n')
    assert found["a_total", (("path", "/x,y"), ("q", 'say \\"hi\\"'))] == 2


def test_a_histogram_of_what_may_be_negative_is_read_from_its_lowest_edge() -> None:
    text = 'lead_seconds_bucket{le="-1"} 0\nlead_seconds_bucket{le="0"} 10\n'
    text += 'lead_seconds_bucket{le="+Inf"} 10\nlead_seconds_sum -5\nlead_seconds_count 10\n'
    (stage,) = stages({}, parse(text))
    assert stage.mean_s == pytest.approx(-0.5)
    assert stage.p50_s == pytest.approx(-0.5)

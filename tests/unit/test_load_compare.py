"""Comparing two results: what is worse, what is missing, what is not alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shoal.loadtest.report import compare
from tests.results import result, run


def regressions(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    found = compare.compare(old, new, compare.DEFAULT_THRESHOLDS)
    return [change.metric for change in found.regressions]


def test_the_same_result_is_no_regression() -> None:
    assert regressions(result(), result()) == []


@pytest.mark.parametrize(
    ("figures", "regressed"),
    [
        ({"ttfa_p95": 0.0879}, []),
        ({"ttfa_p95": 0.0881}, ["ttfa.p95"]),
        ({"ttfa_p50": 0.0551}, ["ttfa.p50"]),
        ({"ttfa_p95": 0.020}, []),
        ({"frames_per_s": 951.0}, []),
        ({"frames_per_s": 949.0}, ["frames_per_s"]),
        ({"frames_per_s": 2000.0}, []),
        ({"stalled": 1}, ["stalled_share.0ms"]),
        ({"failed": 1}, ["failed_share"]),
        ({"goodput": 0.99}, ["goodput"]),
        ({"wrong_rate": 1}, ["fault_share.wrong_sample_rate"]),
    ],
)
def test_a_change_for_the_worse_beyond_its_threshold_regresses(
    figures: dict[str, float], regressed: list[str]
) -> None:
    assert regressions(result(), result(run(**figures))) == regressed


def test_a_tiny_value_may_move_within_the_slack() -> None:
    assert regressions(result(run(ttfa_p95=0.004)), result(run(ttfa_p95=0.0085))) == []


def test_a_run_that_is_gone_is_missing() -> None:
    old = result(run("closed@1"), run("closed@16"))
    assert compare.compare(old, result(run("closed@1")), ()).missing == ("closed@16",)


def test_other_conditions_are_named() -> None:
    found = compare.compare(result(), result(rate=44100, kind="cpu"), ())
    assert found.unlike == ("target.rate: 24000 and 44100", "machine kinds: h200 and cpu")


def test_the_text_marks_what_is_worse() -> None:
    found = compare.compare(result(), result(run(ttfa_p95=0.2)), compare.DEFAULT_THRESHOLDS)
    worse = [line for line in compare.as_text(found).splitlines() if line.startswith("WORSE")]
    assert len(worse) == 1 and "ttfa.p95" in worse[0] and "+150.0%" in worse[0]


def test_thresholds_come_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "t.toml"
    path.write_text(
        '[[threshold]]\nmetric = "min_lead.0ms"\nworse = "lower"\nslack = 0.05\n'
        '[[threshold]]\nmetric = "ttfa.p95"\nworse = "higher"\nshare = 0.5\n'
    )
    assert compare.read_thresholds(path) == (
        compare.Threshold("min_lead.0ms", compare.Worse.LOWER, 0.0, 0.05),
        compare.Threshold("ttfa.p95", compare.Worse.HIGHER, 0.5, 0.0),
    )


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[[threshold]]\nmetric = 'x'\n",
        "[[threshold]]\nmetric = 'x'\nworse = 'sideways'\n",
        "[[threshold]]\nmetric = 'x'\nworse = 'lower'\nshar = 1\n",
        "not toml",
    ],
)
def test_bad_thresholds_are_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "t.toml"
    path.write_text(content)
    with pytest.raises(compare.BadThresholds):
        compare.read_thresholds(path)

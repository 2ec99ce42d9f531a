"""Which files a gate can judge, and what it takes from each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shoal.loadtest.report.figures import Source, gather, read
from shoal.loadtest.report.result import NotAResult

RESULTS = Path(__file__).parents[2] / "loadtest" / "results"


def written(folder: Path, content: Any) -> Path:
    path = folder / "x.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


STEP = {
    "device": "NVIDIA H200",
    "torch": "2.11",
    "read_tb_s": 4.5,
    "fp8+pdl": {"rows": [{"batch": 64, "frames_per_s": 10312, "step_ms": 6.2, "allocations": 0}]},
    "bf16": {"rows": [{"batch": 64, "frames_per_s": 7800, "step_ms": 8.0, "allocations": 2}]},
}
PRECISION = {
    "candidate": {"tokens": 800, "sure_and_wrong": 1, "agreement": 0.87},
    "findings": [{"passed": True, "text": ""}, {"passed": False, "text": ""}],
}


def test_a_step_bench_has_a_row_for_each_precision_and_batch(tmp_path: Path) -> None:
    found = read(written(tmp_path, STEP))
    assert found.machine == "NVIDIA H200"
    assert set(found.rows) == {"step fp8+pdl@64", "step bf16@64"}
    assert found.rows["step fp8+pdl@64"]["frames_per_s"] == 10312
    assert found.rows["step bf16@64"]["allocations"] == 2


def test_a_token_gate_tells_its_findings_and_how_much_it_judged(tmp_path: Path) -> None:
    found = read(written(tmp_path, PRECISION)).rows["tokens"]
    assert found == {"tokens": 800, "sure_and_wrong": 1, "failed_findings": 1, "agreement": 0.87}


def load(**changes: Any) -> dict[str, Any]:
    totals = {
        "percentiles": {"ttfa": {"count": 9, "p50": 0.05}},
        "frames_per_s": 100.0,
        "audio_s_per_s": 5.0,
        "goodput": 1.0,
        "good_turns_per_s": 1.0,
        "turns": changes.pop("turns", 9),
        "failed": 0,
        "refused": 0,
        "stalled_turns": {"0ms": 0},
        "min_lead_s": {},
        "faults": {},
    }
    one = {"name": "closed@4", "complete": True, "client": [{"reasons": []}], "totals": totals}
    return {
        "format": "shoal-load", "version": 1, "kind": "cpu-2", "created": "now",
        "runs": [{**one, **changes}],
    }  # fmt: skip


def test_a_load_test_has_a_row_for_each_level(tmp_path: Path) -> None:
    found = read(written(tmp_path, load()))
    assert (found.machine, found.made, found.doubts) == ("cpu-2", "now", ())
    assert found.rows["closed@4"]["ttfa.p50"] == 0.05
    assert found.rows["closed@4"]["stalled_share.0ms"] == 0.0


@pytest.mark.parametrize(
    ("changes", "doubt"),
    [
        ({"complete": False}, "closed@4 was interrupted"),
        (
            {"client": [{"reasons": []}, {"reasons": ["late"]}]},
            "closed@4: the client was saturated",
        ),
        ({"turns": 0}, "closed@4: no turn was measured"),
    ],
)
def test_what_spoils_a_level_is_a_doubt(
    changes: dict[str, Any], doubt: str, tmp_path: Path
) -> None:
    found = read(written(tmp_path, load(**changes)))
    assert (*found.doubts, *found.strained) == (doubt,)


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[]",
        {},
        {"device": "x"},
        {**STEP, "fp8+pdl": {"rows": [{"batch": 64}]}},
        {**STEP, "fp8+pdl": {"rows": 3}},
        {"fp8": STEP["fp8+pdl"]},
        {**PRECISION, "candidate": {}},
        {"format": "shoal-load", "version": 99},
    ],
)
def test_anything_else_is_refused(content: Any, tmp_path: Path) -> None:
    with pytest.raises(NotAResult, match=r"x\.json"):
        read(written(tmp_path, content))
    with pytest.raises(NotAResult):
        read(tmp_path / "missing.json")


def test_a_level_run_twice_is_refused(tmp_path: Path) -> None:
    twice = load()
    twice["runs"] *= 2
    with pytest.raises(NotAResult, match="twice"):
        read(written(tmp_path, twice))
    one = Source("a", "h200", "", {"closed@1": {}})
    with pytest.raises(NotAResult, match="b: closed@1 is in another file too"):
        gather([one, Source("b", "h200", "", {"closed@1": {}})])


def test_the_recorded_runs_can_be_read() -> None:
    for name in ("closed", "step", "conversations"):
        for path in RESULTS.glob(f"*-h200-{name}.json"):
            assert read(path).rows

"""Comparison, baselines and the token gate: what fails, what passes, and what is not judged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shoal.loadtest.report import baseline, compare, tokens

SETTINGS = {"load": {}, "speech": {}, "slo": {}, "frame_s": 0.05, "timing": {}}


def run(name: str = "closed@16", **figures: float) -> dict[str, Any]:
    p95 = figures.get("ttfa_p95", 0.080)
    return {
        "name": name,
        "totals": {
            "percentiles": {
                "ttfa": {"count": 100, "p50": figures.get("ttfa_p50", 0.05), "p95": p95}
            },
            "frames_per_s": figures.get("frames_per_s", 1000.0),
            "audio_s_per_s": 50.0,
            "goodput": figures.get("goodput", 1.0),
            "good_turns_per_s": 5.0,
            "turns": 100,
            "failed": figures.get("failed", 0),
            "refused": 0,
            "stalled_turns": {"0ms": figures.get("stalled", 0), "100ms": 0},
            "min_lead_s": {"0ms": 0.1},
            "faults": {"wrong_sample_rate": figures.get("wrong_rate", 0)},
        },
    }


def result(*runs: dict[str, Any], kind: str = "h200", rate: int = 24000) -> dict[str, Any]:
    return {
        "created": "2026-01-01T00:00:00+00:00",
        "kind": kind,
        "machine": {"cpu": "x"},
        "target": {"format": "pcm", "rate": rate},
        "settings": SETTINGS,
        "runs": list(runs or (run(),)),
    }


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


def recorded(*runs: dict[str, Any]) -> dict[str, Any]:
    return baseline.record(result(*runs), None, "h200", "")


def failures(found: dict[str, Any], held: dict[str, Any]) -> list[str]:
    return [finding.text for finding in baseline.check(found, held) if not finding.passed]


def test_a_result_passes_its_own_baseline() -> None:
    assert failures(result(), recorded()) == []


@pytest.mark.parametrize(
    ("figures", "fails"),
    [
        ({"frames_per_s": 951.0}, False),
        ({"frames_per_s": 949.0}, True),
        ({"ttfa_p95": 0.0839}, False),
        ({"ttfa_p95": 0.0841}, True),
        ({"stalled": 1}, True),
        ({"failed": 1}, True),
    ],
)
def test_five_percent_is_the_limit_and_stalls_have_none(
    figures: dict[str, float], fails: bool
) -> None:
    assert bool(failures(result(run(**figures)), recorded())) is fails


def test_a_level_of_the_baseline_that_was_not_run_fails() -> None:
    held = recorded(run("closed@1"), run("closed@64"))
    assert failures(result(run("closed@1")), held) == ["closed@64: not in the result"]


def test_another_kind_of_machine_is_not_comparable() -> None:
    assert "kind cpu" in failures(result(kind="cpu"), recorded())[0]
    with pytest.raises(baseline.BadBaseline, match="not h200"):
        baseline.record(result(kind="cpu"), None, "h200", "")


def test_lowering_a_baseline_needs_a_justification() -> None:
    slower = result(run(frames_per_s=900.0))
    with pytest.raises(baseline.BadBaseline, match="frames_per_s"):
        baseline.record(slower, recorded(), "h200", "  ")
    lowered = baseline.record(slower, recorded(), "h200", "exact sampling costs a tenth")
    assert failures(slower, lowered) == []
    assert lowered["previous"]["closed@16"]["frames_per_s"] == 1000.0


def test_a_lowered_baseline_that_lost_its_justification_fails_whatever_the_result() -> None:
    lowered = baseline.record(result(run(frames_per_s=900.0)), recorded(), "h200", "reason")
    lowered["justification"] = ""
    assert "without a justification: closed@16 frames_per_s" in failures(result(), lowered)[0]


def test_a_better_result_raises_the_baseline_without_words() -> None:
    better = baseline.record(result(run(frames_per_s=2000.0)), recorded(), "h200", "")
    assert "closed@16 frames_per_s" in failures(result(), better)[0]


def test_levels_that_were_not_run_again_stay_in_the_baseline() -> None:
    held = recorded(run("closed@1"), run("closed@64"))
    renewed = baseline.record(result(run("closed@1", frames_per_s=1100.0)), held, "h200", "")
    assert set(renewed["metrics"]) == {"closed@1", "closed@64"}


def ratio(**bounds: float) -> dict[str, Any]:
    one = {"metric": "frames_per_s", "of": "closed@16", "to": "closed@1", **bounds}
    return {"kind": "h200", "justification": "", "ratios": [one]}


@pytest.mark.parametrize(
    ("bounds", "fails"),
    [
        ({"at_least": 3.9}, False),
        ({"at_least": 4.1}, True),
        ({"at_most": 3.9}, True),
        ({"at_least": 3.0, "at_most": 5.0}, False),
        ({}, True),
    ],
)
def test_ratios_within_one_run_are_gates_too(bounds: dict[str, float], fails: bool) -> None:
    found = result(run("closed@1", frames_per_s=250.0), run("closed@16"))
    assert bool(failures(found, ratio(**bounds))) is fails


def test_a_ratio_of_what_was_not_run_fails() -> None:
    assert "not in the result" in failures(result(run("closed@16")), ratio(at_least=1))[0]


@pytest.mark.parametrize(
    "content",
    ["[]", "{", '{"kind":"x","justification":""}', '{"metrics":{"a":{}},"justification":""}'],
)
def test_what_is_no_baseline_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "b.json"
    path.write_text(content)
    with pytest.raises(baseline.BadBaseline):
        baseline.read(path)


FRAMES = [[n * 10 + k for k in range(10)] for n in range(6)]


def token_failures(candidate: dict[str, Any], frames: int = 5) -> list[str]:
    found = tokens.check({"p": FRAMES}, candidate, frames)
    return [finding.text for finding in found if not finding.passed]


def test_equal_first_frames_pass_whatever_follows() -> None:
    assert token_failures({"p": [*FRAMES[:5], [0] * 10]}) == []


def test_the_first_difference_is_named() -> None:
    other = [list(frame) for frame in FRAMES]
    other[4][7] += 1
    assert token_failures({"p": other}) == ["p: frame 4 differs first in codebook 7"]
    assert token_failures({"p": other}, frames=4) == []


@pytest.mark.parametrize(
    ("candidate", "reason"),
    [
        ({}, "not in the candidate"),
        ({"p": FRAMES[:4]}, "ends after frame 4"),
        ({"p": [*FRAMES[:4], FRAMES[4][:9]]}, "differs first in codebook 9"),
    ],
)
def test_what_is_missing_fails(candidate: dict[str, Any], reason: str) -> None:
    assert reason in token_failures(candidate)[0]


def test_a_reference_that_is_too_short_or_empty_passes_nothing() -> None:
    assert "has 6 frames, not 7" in token_failures({"p": FRAMES}, frames=7)[0]
    assert not tokens.check({}, {"p": FRAMES}, 5)[0].passed


def test_token_files_are_read_or_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"precision": "bf16", "prompts": {"p": FRAMES}}))
    assert tokens.read(path) == {"p": FRAMES}
    for content in ("[]", "{}", '{"prompts":{"p":[["x"]]}}', '{"prompts":3}'):
        path.write_text(content)
        with pytest.raises(tokens.BadTokens):
            tokens.read(path)


@pytest.mark.parametrize(
    ("behind", "passed"),
    [
        ([[0.0, 0.4], [2.9, 0.0]], True),
        ([[0.0, 3.1], [0.0, 0.0]], False),
        ([[0.0, 0.0], [0.0, 0.0], [9.0, 0.0]], True),
        ([[float("nan"), 0.0]], False),
        ([], False),
    ],
)
def test_tokens_within_a_tolerance_of_the_reference_pass(
    behind: list[list[float]], passed: bool
) -> None:
    """Only the first two frames are asked for."""
    assert [f.passed for f in tokens.check_behind({"p": FRAMES}, {"p": behind}, 2, 3.0)] == [passed]


def test_a_prompt_without_logits_fails() -> None:
    assert not tokens.check_behind({"p": FRAMES}, {}, 5, 3.0)[0].passed
    assert not tokens.check_behind({}, {}, 5, 3.0)[0].passed


def test_logits_are_read_beside_the_codes(tmp_path: Path) -> None:
    path = tmp_path / "candidate.json"
    path.write_text(json.dumps({"prompts": {"p": FRAMES}, "behind": {"p": [[0, 1.5]]}}))
    assert tokens.read_behind(path) == {"p": [[0.0, 1.5]]}
    path.write_text(json.dumps({"prompts": {"p": FRAMES}}))
    assert tokens.read_behind(path) is None
    for bad in ('{"behind": 3}', '{"behind": {"p": [["x"]]}}', "[]", "{"):
        path.write_text(bad)
        with pytest.raises(tokens.BadTokens):
            tokens.read_behind(path)

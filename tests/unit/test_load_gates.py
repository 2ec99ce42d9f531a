"""Baselines: what fails, what passes, and what is not judged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shoal.loadtest.report import baseline
from shoal.loadtest.report.figures import Source
from shoal.loadtest.report.result import metrics
from tests.results import run


def source(*runs: dict[str, Any], kind: str = "h200", **doubt: Any) -> Source:
    rows = {one["name"]: metrics(one) for one in (runs or (run(),))}
    return Source("load.json", kind, "2026-01-01", rows, **doubt)


def steps(c64: float = 10000.0, allocations: float = 0.0, device: str = "NVIDIA H200") -> Source:
    rows = {
        f"step fp8@{batch}": {"frames_per_s": rate, "step_ms": 1.0, "allocations": allocations}
        for batch, rate in ((1, 290.0), (16, 3900.0), (64, c64))
    }
    return Source("step.json", device, "2.11", rows)


def token_gate(failed: float = 0.0, tokens: float = 800.0) -> Source:
    figures = {"tokens": tokens, "sure_and_wrong": 0.0, "failed_findings": failed, "agreement": 0.9}
    return Source("precision.json", "", "", {"tokens": figures})


def recorded(*sources: Source, **how: Any) -> dict[str, Any]:
    return baseline.record(sources or (source(),), None, "h200", "", **how)


def failures(found: Source | list[Source], held: dict[str, Any]) -> list[str]:
    sources = found if isinstance(found, list) else [found]
    return [finding.text for finding in baseline.check(sources, held) if not finding.passed]


def test_a_result_passes_its_own_baseline() -> None:
    everything = [source(), steps(), token_gate()]
    assert failures(everything, recorded(*everything)) == []


@pytest.mark.parametrize(
    ("figures", "fails"),
    [
        ({"frames_per_s": 951.0}, False),
        ({"frames_per_s": 949.0}, True),
        ({"ttfa_p95": 0.0839}, False),
        ({"ttfa_p95": 0.0841}, True),
        ({"stalled": 1}, True),
        ({"failed": 1}, True),
        ({"wrong_rate": 1}, True),
    ],
)
def test_five_percent_is_the_limit_and_stalls_have_none(
    figures: dict[str, float], fails: bool
) -> None:
    assert bool(failures(source(run(**figures)), recorded())) is fails


@pytest.mark.parametrize(("c64", "failed"), [(9600.0, []), (9400.0, ["step fp8@64 frames_per_s"])])
def test_decode_steps_may_lose_four_percent_and_not_six(c64: float, failed: list[str]) -> None:
    found = failures(steps(c64), recorded(steps()))
    assert [text.partition(":")[0] for text in found] == failed


def test_an_allocation_in_a_steady_step_fails() -> None:
    assert len(failures(steps(allocations=1.0), recorded(steps()))) == 3


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (token_gate(failed=1.0), "failed_findings"),
        (token_gate(tokens=40.0), "tokens tokens: 800 -> 40"),
    ],
)
def test_the_token_gate_is_held_and_cannot_shrink(found: Source, reason: str) -> None:
    assert any(reason in text for text in failures(found, recorded(token_gate())))


def test_a_row_or_figure_of_the_baseline_that_is_missing_fails() -> None:
    held = recorded(source(run("closed@1"), run("closed@64")), steps(), token_gate())
    assert failures([source(run("closed@1")), steps()], held) == [
        "closed@64: not in the result",
        "tokens: not in the result",
    ]
    mute = run()
    del mute["totals"]["percentiles"]["ttfa"]
    assert "closed@16 ttfa.p50: not in the result" in failures(source(mute), recorded())


@pytest.mark.parametrize(("c64", "fails"), [(9400.0, False), (9000.0, False), (8999.0, True)])
def test_a_justification_excuses_one_figure_down_to_its_value_and_is_told(
    c64: float, fails: bool
) -> None:
    why = {"accepts": 9000, "why": "exact sampling costs a tenth"}
    held = {**recorded(steps()), "justified": {"step fp8@64 frames_per_s": why}}
    assert bool(failures(steps(c64), held)) is fails
    assert "exact sampling costs a tenth" in baseline.as_text(baseline.check([steps(c64)], held))
    slower_at_16 = steps()
    slower_at_16.rows["step fp8@16"]["frames_per_s"] = 3000.0
    assert failures(slower_at_16, held), "it speaks for no other row"


def test_a_justification_that_is_not_needed_changes_nothing() -> None:
    why = {"accepts": 9000, "why": "no longer true"}
    held = {**recorded(steps()), "justified": {"step fp8@64 frames_per_s": why}}
    assert "no longer true" not in baseline.as_text(baseline.check([steps()], held))


@pytest.mark.parametrize("excuse", [{}, {"why": "x"}, {"accepts": 1, "why": " "}, {"accepts": "1"}])
def test_a_justification_says_down_to_what_and_why(excuse: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "b.json"
    path.write_text(json.dumps({**recorded(steps()), "justified": {"x": excuse}}))
    with pytest.raises(baseline.BadBaseline, match="accepts"):
        baseline.read(path)


def test_another_kind_of_machine_is_not_comparable() -> None:
    assert "is of cpu" in failures(source(kind="cpu"), recorded())[0]
    with pytest.raises(baseline.BadBaseline, match="not h200"):
        recorded(source(kind="cpu"))


def test_a_bench_of_another_device_is_not_comparable() -> None:
    other = steps(device="NVIDIA B200")
    assert "B200" in failures(other, recorded(steps()))[0]
    with pytest.raises(baseline.BadBaseline, match="another device"):
        baseline.record([other], recorded(steps()), "h200", "")


@pytest.mark.parametrize("way", ["doubts", "strained"])
def test_half_a_run_or_a_client_at_its_limit_is_no_witness(way: str) -> None:
    doubtful = source(**{way: ("closed@16 was not itself",)})
    assert "was not itself" in failures(doubtful, recorded())[0]
    with pytest.raises(baseline.BadBaseline, match="was not itself"):
        recorded(doubtful)


def test_ratios_bear_a_client_at_its_limit_and_no_half_a_run() -> None:
    held = ratio(metric="ttfa.p50", to_metric="ttfa.p95", to="closed@16", at_most=1.0)
    assert failures(source(strained=("the client was saturated",)), held) == []
    assert failures(source(doubts=("interrupted",)), held) != []


def test_tails_may_be_held_more_loosely_and_frames_may_not(tmp_path: Path) -> None:
    held = recorded(tolerances={"ttfa.p95": 0.2})
    assert failures(source(run(ttfa_p95=0.095)), held) == []
    assert failures(source(run(ttfa_p95=0.097)), held) != []
    with pytest.raises(baseline.BadBaseline, match="tolerance"):
        recorded(tolerances={"frames_per_s": 0.2})
    path = tmp_path / "b.json"
    path.write_text(json.dumps({**held, "tolerances": {"frames_per_s": 0.2}}))
    with pytest.raises(baseline.BadBaseline, match="frames_per_s"):
        baseline.read(path)


def test_lowering_a_baseline_needs_a_justification() -> None:
    slower = source(run(frames_per_s=900.0))
    with pytest.raises(baseline.BadBaseline, match="frames_per_s"):
        baseline.record([slower], recorded(), "h200", "  ")
    lowered = baseline.record([slower], recorded(), "h200", "exact sampling costs a tenth")
    assert failures(slower, lowered) == []
    assert lowered["previous"]["closed@16"]["frames_per_s"] == 1000.0
    assert "costs a tenth" in baseline.as_text(baseline.check([slower], lowered))


def test_a_lowered_baseline_that_lost_its_justification_fails_whatever_the_result() -> None:
    lowered = baseline.record([source(run(frames_per_s=900.0))], recorded(), "h200", "reason")
    lowered["justification"] = ""
    assert "without a justification: closed@16 frames_per_s" in failures(source(), lowered)[0]


def test_a_better_result_raises_the_baseline_without_words() -> None:
    better = baseline.record([source(run(frames_per_s=2000.0))], recorded(), "h200", "")
    assert "closed@16 frames_per_s" in failures(source(), better)[0]


def test_rows_that_were_not_run_again_stay_in_the_baseline() -> None:
    held = recorded(source(run("closed@1"), run("closed@64")))
    faster = source(run("closed@1", frames_per_s=1100.0))
    renewed = baseline.record([faster, steps()], held, "h200", "")
    assert {"closed@1", "closed@64", "step fp8@64"} < set(renewed["metrics"])


def ratio(**bounds: Any) -> dict[str, Any]:
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
    found = source(run("closed@1", frames_per_s=250.0), run("closed@16"))
    assert bool(failures(found, ratio(**bounds))) is fails


def test_a_ratio_may_be_of_two_figures() -> None:
    held = ratio(metric="ttfa.p50", to_metric="ttfa.p95", to="closed@16", at_most=0.7)
    assert failures(source(run(ttfa_p50=0.05, ttfa_p95=0.08)), held) == []
    (text,) = failures(source(run(ttfa_p50=0.06, ttfa_p95=0.08)), held)
    assert text.startswith("ttfa.p50 of closed@16 to ttfa.p95 of closed@16: 0.75")


def test_a_ratio_can_be_justified_too() -> None:
    found = source(run("closed@1", frames_per_s=250.0), run("closed@16"))
    held = ratio(at_least=4.5)
    what = "frames_per_s of closed@16 to closed@1"
    for accepts, fails in ((3.9, False), (4.1, True)):
        held["justified"] = {what: {"accepts": accepts, "why": "a busy machine"}}
        assert bool(failures(found, held)) is fails


def test_a_ratio_of_what_was_not_run_fails() -> None:
    assert "not in the result" in failures(source(run("closed@16")), ratio(at_least=1))[0]


def test_every_committed_baseline_can_be_read() -> None:
    paths = [path for path in baseline.FOLDER.glob("*.json") if "lies" not in path.name]
    assert len(paths) >= 2
    for path in paths:
        held = baseline.read(path)
        assert baseline.path_of(held["kind"]) == path
        assert "without" not in baseline.check([], held)[0].text


def test_the_gpus_baseline_holds_steps_loads_and_tokens() -> None:
    path = baseline.path_of("h200")
    if not path.exists():
        return
    held = baseline.read(path)["metrics"]
    for batch in (1, 16, 64):
        assert held[f"step fp8+pdl@{batch}"]["frames_per_s"] > 0
    assert {"ttfa.p50", "ttfa.p95", "stalled_share.0ms"} <= set(held["closed@64"])
    assert held["tokens"]["failed_findings"] == 0


@pytest.mark.parametrize("kind", ["", "../x", "a/b"])
def test_a_kind_is_a_name(kind: str) -> None:
    with pytest.raises(baseline.BadBaseline):
        baseline.path_of(kind)


@pytest.mark.parametrize(
    "content",
    ["[]", "{", '{"kind":"x","justification":""}', '{"metrics":{"a":{}},"justification":""}'],
)
def test_what_is_no_baseline_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "b.json"
    path.write_text(content)
    with pytest.raises(baseline.BadBaseline):
        baseline.read(path)

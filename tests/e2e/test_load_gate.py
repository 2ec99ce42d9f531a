"""The gates that a CPU can run: ratios within one run, of the tool itself and of the server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shoal.loadtest.report import baseline
from tests.lying import judged, standing_in

LIES = baseline.FOLDER / "stand-in-lies.json"


def judged_at_last(*words: str) -> int:
    """Neighbours may keep the client from judging; then it is asked again."""
    codes = (judged(*words) for _ in range(4))
    return next((code for code in codes if code != 2), 2)


def test_the_tool_serves_many_users_as_it_serves_one(tmp_path: Path) -> None:
    words = ("gate", "--kind", "stand-in", "--out", str(tmp_path))
    with standing_in("--lies", str(LIES)) as url:
        assert judged_at_last(*words, "--run", url) == 0


def test_a_server_that_serves_one_user_after_another_fails_the_gate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Four may connect: sixteen users get no sixteen times the speech of one, and most get none."""
    with standing_in("--lies", str(LIES), "--room", "4") as url:
        words = ("gate", "--kind", "stand-in", "--run", url, "--out", str(tmp_path))
        # Where neighbours keep all processors busy it is no judgement, and never a pass.
        assert judged(*words) in (1, 2)
    told = capsys.readouterr().out
    assert "FAIL  frames_per_s of closed@16 to closed@1" in told
    assert "FAIL  goodput of closed@16 to closed@1" in told


def test_the_server_keeps_its_ratios_on_this_machine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A neighbour's burst may spoil one of the two levels, so it may try again; what is broken
    fails every time."""
    words = ("gate", "--kind", "cpu-2", "--run", "own", "--out", str(tmp_path))
    assert any(judged(*words) == 0 for _ in range(3)), capsys.readouterr().out
    found = json.loads((tmp_path / "result.json").read_text())
    assert [level["name"] for level in found["runs"]] == ["closed@1", "closed@4"]
    assert all(level["totals"]["turns"] for level in found["runs"])


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--kind", "no-such-machine", "--run", "own"), "no-such-machine.json"),
        (("--kind", "cpu-2"), "needs files to judge"),
        (("--kind", "cpu-2", "no-such-file.json"), "no-such-file.json"),
        (("--baseline", str(LIES), "x.json"), "x.json"),
        (("--write", "--baseline", "b.json", str(LIES)), "not a result"),
    ],
)
def test_what_cannot_be_judged_is_said_and_is_no_pass(
    words: tuple[str, ...], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert judged("gate", *words) == 2
    assert reason in capsys.readouterr().err


def test_a_baseline_of_another_kind_is_not_taken(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = baseline.path_of("stand-in")
    step = tmp_path / "step.json"
    rows = [{"batch": 1, "frames_per_s": 1.0, "step_ms": 1.0, "allocations": 0}]
    step.write_text(json.dumps({"device": "GPU", "fp8": {"rows": rows}}))
    assert judged("gate", "--kind", "cpu-2", "--baseline", str(one), str(step)) == 2
    assert "is a baseline of stand-in, not of cpu-2" in capsys.readouterr().err
    assert judged("gate", "--write", "--baseline", str(tmp_path / "b.json"), str(step)) == 2
    assert "--write needs --kind" in capsys.readouterr().err


def test_a_bench_becomes_a_baseline_and_is_held_against_it(tmp_path: Path) -> None:
    def step(frames_per_s: float) -> str:
        path = tmp_path / f"{frames_per_s}.json"
        row = {"batch": 64, "frames_per_s": frames_per_s, "step_ms": 6.0, "allocations": 0}
        path.write_text(json.dumps({"device": "GPU", "fp8": {"rows": [row]}}))
        return str(path)

    here = ("--kind", "some-gpu", "--baseline", str(tmp_path / "some-gpu.json"))
    assert judged("gate", *here, "--write", step(10000)) == 0
    assert judged("gate", *here, step(9600)) == 0
    assert judged("gate", *here, step(9400)) == 1
    assert judged("gate", *here, "--write", step(9300)) == 2
    assert judged("gate", *here, "--write", step(9200), "--justification", "exact sampling") == 0
    assert judged("gate", *here, step(9200)) == 0

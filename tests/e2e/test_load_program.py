"""``shoal load`` from its command line to its files."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from tests.lying import judged, standing_in


def shoal_load(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-m", "shoal.loadtest", *words],
        capture_output=True,
        text=True,
        timeout=90,
    )


def lying(folder: Path, lies: list[dict[str, Any]]) -> AbstractContextManager[str]:
    (folder / "lies.json").write_text(json.dumps(lies))
    return standing_in("--lies", str(folder / "lies.json"))


def saturated(path: Path) -> bool:
    """Whether neighbours kept the client from judging."""
    runs = json.loads(path.read_text())["runs"]
    return any(client["reasons"] for level in runs for client in level["client"])


def say_of_the_client(path: Path, *reasons: str) -> None:
    """In place of what whoever else uses this machine made of it: no gate would believe it."""
    found = json.loads(path.read_text())
    for level in found["runs"]:
        for client in level["client"]:
            client["reasons"] = list(reasons)
    path.write_text(json.dumps(found))


def test_the_command_measures_reports_compares_and_gates(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    honest, worse = tmp_path / "honest", tmp_path / "worse"
    common = (
        "--closed", "2", "--processes", "2", "--window", "1.5", "--warmup", "0.2", "--ramp", "0.2",
        "--cooldown", "0.1", "--sentences", "1-1", "--think", "0.05", "--metrics", "none",
        "--cold-every", "0", "--kind", "stand-in", "--slo-ttfa-ms", "1000", "--keep-worst", "2",
    )  # fmt: skip
    with lying(tmp_path, [{"audio_s": 0.2, "first_delay_s": 0.02}]) as url:
        run_it = ("run", url, *common, "--out", str(honest), "--fail-on-slo")
        done, tries = shoal_load(*run_it), 1
        while done.returncode and saturated(honest / "result.json") and tries < 4:
            done, tries = shoal_load(*run_it), tries + 1
    assert done.returncode == 0, done.stderr
    assert "Highest level tried that kept the SLO: 2 users" in done.stdout
    stalls = {"audio_s": 0.3, "first_delay_s": 0.3, "gaps_s": {"1": 0.3}}
    with lying(tmp_path, [stalls]) as url:
        done = shoal_load("run", url, *common, "--out", str(worse), "--fail-on-slo", "--quiet")
    assert done.returncode == 1
    assert "turns stalled" in done.stdout
    found = json.loads((honest / "result.json").read_text())
    (level,) = found["runs"]
    assert level["processes"] == 2 and level["complete"]
    assert {row[level["columns"].index("user")] for row in level["rows"]} == {0, 1}
    assert all(row[level["columns"].index("ttfa_s")] >= 0.02 for row in level["rows"])
    page = (worse / "report.html").read_text()
    for turn in json.loads((worse / "result.json").read_text())["runs"][0]["worst"]:
        assert turn["stalls"] and turn["wav"] in page
        assert (worse / turn["wav"]).stat().st_size > 44
    a, b = str(honest / "result.json"), str(worse / "result.json")
    baseline = str(tmp_path / "baseline.json")
    record = ("--baseline", baseline, "--kind", "stand-in", "--write")
    for path in (a, b):
        say_of_the_client(Path(path))
    assert judged("compare", a, a) == 0
    assert judged("compare", a, b) == 1
    told = capsys.readouterr().out
    assert "WORSE" in told and "stalled_share.0ms" in told
    assert judged("gate", a, *record) == 0
    assert judged("gate", a, "--baseline", baseline) == 0
    assert judged("gate", b, "--baseline", baseline) == 1
    say_of_the_client(Path(b), "the event loop was late")
    assert judged("gate", b, "--baseline", baseline) == 2, "a client at its limit judges nobody"
    assert "no judgement, run it again" in capsys.readouterr().err
    say_of_the_client(Path(b))
    assert judged("gate", b, *record) == 2
    assert "needs a justification" in capsys.readouterr().err
    assert judged("gate", b, *record, "--justification", "it was told to stall") == 0
    assert judged("gate", b, "--baseline", baseline) == 0
    assert "it was told to stall" in capsys.readouterr().out
    assert judged("report", b, "--out", str(tmp_path / "again.html")) == 0
    again = (tmp_path / "again.html").read_text()
    for turn in json.loads((worse / "result.json").read_text())["runs"][0]["worst"]:
        assert turn["wav"] in again


def test_a_server_that_is_not_there_is_counted_as_such(tmp_path: Path) -> None:
    done = shoal_load(
        "run", "ws://127.0.0.1:9", "--closed", "1", "--window", "0.5", "--warmup", "0",
        "--cooldown", "0", "--metrics", "none", "--cold-every", "0", "--out", str(tmp_path),
    )  # fmt: skip
    assert done.returncode == 2
    assert "nothing was heard from this server" in done.stderr
    assert "x connect: ConnectionRefusedError" in done.stdout
    assert "No level kept" in done.stdout

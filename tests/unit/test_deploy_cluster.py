"""The cluster of one machine: its config, its processes, and the words when something is wrong."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from enum import Enum
from pathlib import Path
from types import SimpleNamespace

import pytest

from shoal.deploy import cluster
from shoal.deploy.__main__ import LAPTOP, main
from shoal.deploy.haproxy import BOUND_PERCENT, VOICE_MAP, Ports, haproxy_environment

SLEEPERS = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'])"


def test_a_config_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(cluster.ClusterError, match=r"none\.yaml: No such file"):
        cluster.read_config(tmp_path / "none.yaml")
    bad = tmp_path / "bad.yaml"
    bad.write_text("a: [")
    with pytest.raises(cluster.ClusterError, match="is no YAML"):
        cluster.read_config(bad)
    bad.write_text("a: 1")
    with pytest.raises(cluster.ClusterError, match="names no applications"):
        cluster.read_config(bad)
    assert cluster.read_config(LAPTOP)["applications"][0]["name"] == "shoal"


def test_without_a_cluster_there_is_nothing_to_ask_or_stop(tmp_path: Path) -> None:
    place = cluster.Place(tmp_path)
    assert not cluster.runs(place) and cluster.members(place) == []
    assert cluster.stop(place) is False
    place.state.write_text("{}")
    assert not cluster.runs(place)


def test_stopping_ends_the_session_of_the_cluster_and_nobody_else(tmp_path: Path) -> None:
    place = cluster.Place(tmp_path)
    ours = subprocess.Popen(
        [sys.executable, "-c", SLEEPERS], stdin=subprocess.PIPE, start_new_session=True
    )
    other = subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True
    )
    try:
        place.state.write_text(json.dumps({"session": ours.pid}))
        assert cluster.runs(place) and ours.pid in cluster.members(place)
        assert other.pid not in cluster.members(place)
        assert cluster.stop(place)
        assert cluster.members(place) == [] and not place.state.exists()
        assert other.poll() is None
    finally:
        for process in (ours, other):
            if process.poll() is None:
                os.kill(process.pid, signal.SIGKILL)
            process.wait(30)
            assert process.stdin is not None
            process.stdin.close()


def test_a_second_cluster_in_the_same_place_is_refused(tmp_path: Path) -> None:
    place = cluster.Place(tmp_path)
    place.state.write_text(json.dumps({"session": os.getsid(0)}))
    with pytest.raises(cluster.ClusterError, match="runs already"):
        cluster.start(place, 1)


def test_the_command_says_what_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["up", "--config", "/none.yaml"]) == 1
    assert capsys.readouterr().err == "shoal: /none.yaml: No such file or directory\n"


def test_the_environment_can_be_sourced_by_a_shell(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["env"]) == 0
    script = capsys.readouterr().out + 'printf %s "$RAY_SERVE_HAPROXY_BALANCE_ALGORITHM"'
    balance = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=10)
    assert balance.stdout.splitlines() == [
        f"hash url,map_regm({VOICE_MAP})",
        "    hash-type consistent",
        f"    hash-balance-factor {BOUND_PERCENT}",
    ]


def test_two_clusters_of_a_machine_share_no_port_and_no_path() -> None:
    one = haproxy_environment(Ports(), run_dir="/tmp/a")
    two = haproxy_environment(Ports(9102, 8405, 31_000), run_dir="/tmp/b")
    for name, value in one.items():
        if "/tmp/a" in value or "PORT" in name:
            assert two[name] != value, name


def test_ray_reads_every_variable_by_that_name() -> None:
    constants = pytest.importorskip("importlib.util").find_spec("ray")
    if constants is None:
        pytest.skip("Ray is not installed")
    assert constants.origin is not None
    source = Path(constants.origin).parent / "serve" / "_private" / "constants.py"
    text = source.read_text()
    core = Path(constants.origin).parent.joinpath("core/src/ray/gcs/gcs_server").read_bytes()
    for name in haproxy_environment():
        if name.startswith("RAY_SERVE_"):
            assert f'"{name}"' in text, name
        else:
            assert name.removeprefix("RAY_").encode() in core, name


class State(Enum):
    RUNNING = "RUNNING"


def test_what_ray_says_of_an_app_becomes_a_status() -> None:
    deployment = SimpleNamespace(message="", replica_states={State.RUNNING: 2, "STARTING": 1})
    app = SimpleNamespace(
        status=SimpleNamespace(value="DEPLOYING"),
        message="on its way",
        deployments={"r": deployment},
    )
    answer = SimpleNamespace(applications={"shoal": app})
    found = cluster.read_status(answer, "shoal")
    assert found == cluster.Status("DEPLOYING", "on its way", {"RUNNING": 2, "STARTING": 1})
    assert found.running == 2
    assert cluster.read_status(answer, "other").app == "NOT_STARTED"

"""Batch workers among replicas on three nodes: who gives way, how soon, and what is there after."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import subprocess
import sys
import tempfile
import time
import wave
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from shoal.engine.fake_tone import tone

pytest.importorskip("ray")

from shoal.deploy import cluster
from shoal.deploy.haproxy import haproxy_environment
from tests.fleet import Contended, Fleet, callers, kill, until

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.filterwarnings("ignore"),  # Ray's driver lives in this process
]

logger = logging.getLogger("cluster")  # figures: -o log_cli=true -o log_cli_level=INFO
NODES = 3
LINES = 16
TEXT = "A line that nobody waits for, and that takes the fake a second or two to say."


class Nodes:
    """``NODES`` of them, with room for one replica or one worker each."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self._nodes: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        place = self.fleet.place
        cluster.start(place, cpus=1)
        environment = haproxy_environment(
            place.ports, threads=1, drain_s=2.0, run_dir=str(place.run_dir)
        )
        for number in range(1, NODES):
            log = place.folder / f"node-{number}.log"
            with log.open("wb") as output:
                node = subprocess.Popen(
                    [
                        *(sys.executable, "-P", "-m", "ray.scripts.scripts", "start", "--block"),
                        f"--address={place.address}",
                        "--num-cpus=1",
                        *("--min-worker-port=0", "--max-worker-port=0"),
                        f"--object-store-memory={100 << 20}",
                        "--include-log-monitor=false",
                        "--disable-usage-stats",
                    ],
                    env={**os.environ, **environment},
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
            self._nodes.append(node)
            limit_s = time.monotonic() + 60  # one after the other: they look for free ports
            while b"Ray runtime started" not in log.read_bytes():
                assert node.poll() is None and time.monotonic() < limit_s, log.read_text()
                time.sleep(0.1)

    def stop(self) -> None:
        for node in self._nodes:
            kill(cluster.session_members(node.pid))
        self.fleet.kill()
        for node in self._nodes:
            kill(cluster.session_members(node.pid))  # what it started meanwhile
            node.wait()

    def config(self) -> dict[str, Any]:
        rules = {"start_s": 2.0, "hold_s": 2.0, "down_every_s": 1.0}
        config = self.fleet.config({"autoscaling_config": self.fleet.scaling(NODES, **rules)})
        config["proxy_location"] = "HeadOnly"
        options = {"num_cpus": 1}
        config["applications"][0]["deployments"][0]["ray_actor_options"] = options
        return config

    def fixed(self, replicas: int) -> dict[str, Any]:
        """The same, with so many replicas whatever the traffic."""
        config = self.config()
        deployment = config["applications"][0]["deployments"][0]
        del deployment["autoscaling_config"]
        deployment["num_replicas"] = replicas
        return config

    def backfill(
        self, source: Path, out: Path, config: dict[str, Any] | None = None
    ) -> AbstractContextManager[subprocess.Popen[str]]:
        return self.fleet.backfill(source, out, config or self.config(), workers=NODES)


def workers_alive() -> int:
    """Processes of workers on this machine."""
    found = 0
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                name = (entry / "cmdline").read_bytes()
                dead = (entry / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
            except OSError:
                continue
            found += name.startswith(b"ray::Speaking") and not dead
    return found


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    with tempfile.TemporaryDirectory(prefix="shoal-") as folder:
        nodes = Nodes(Fleet(Path(folder)))
        try:
            nodes.start()
            cluster.deploy(nodes.fleet.place, nodes.config())
            cluster.wait_until_running(nodes.fleet.place, "shoal", 120)
            nodes.fleet.wait_for(1)
            yield nodes
        finally:
            nodes.stop()


def lines(path: Path) -> None:
    path.write_text(
        "".join(
            json.dumps(
                {
                    "id": f"n{number}",
                    "text": TEXT,
                    "seed": number,
                    "sample_rate": 24_000,
                    "prosody": {"normalize_loudness": False},
                }
            )
            + "\n"
            for number in range(LINES)
        )
    )


def spoken(out: Path) -> int:
    return len(list(out.glob("*.wav")))


def check(out: Path) -> None:
    """Every line is there once, whole, and nothing else is."""
    manifest = [json.loads(line) for line in (out / "manifest.jsonl").read_text().splitlines()]
    assert sorted(one["id"] for one in manifest) == sorted(f"n{number}" for number in range(LINES))
    for number in range(LINES):
        with wave.open(str(out / f"n{number}.wav")) as heard:
            assert heard.readframes(heard.getnframes()) == tone(TEXT, "", number, 24_000, 1_200)
    assert spoken(out) == LINES and not list(out.glob(".*.part"))


async def test_backfill_gives_way_to_a_burst_within_a_second_and_loses_nothing(
    nodes: Nodes, tmp_path: Path
) -> None:
    """Nor does it when its driver is killed behind that: workers go along, the next one goes on."""
    source, out = tmp_path / "in.jsonl", tmp_path / "out"
    lines(source)
    with nodes.backfill(source, out):
        await until(lambda: workers_alive() == NODES - 1)
        await until(lambda: spoken(out) >= 2)
        burst_s = time.monotonic()
        async with callers(nodes.fleet, 7) as ended:
            with Contended() as contended:
                gone_s = await until(lambda: workers_alive() == 0) - burst_s
            before = spoken(out)
            await asyncio.to_thread(nodes.fleet.wait_for, NODES, 120)
            up_s = time.monotonic() - burst_s
        logger.info(
            f"burst: every worker gone after {gone_s * 1e3:.0f} ms, {NODES} replicas speak after "
            f"{up_s:.1f} s; {len(ended)} live turns; {before} of {LINES} lines were done"
        )
        assert {told.reason for told, _ in ended} == {"stop"}
        assert gone_s < contended.times
        assert before < LINES
        back_s = await until(lambda: workers_alive() > 0, 60) - burst_s
        await until(lambda: spoken(out) > before + 2, 60)
    killed_s = time.monotonic()
    gone_s = await until(lambda: workers_alive() == 0) - killed_s
    before = spoken(out)
    assert before < LINES
    with nodes.backfill(source, out) as again:
        printed, _ = await asyncio.to_thread(again.communicate, timeout=90)
    logger.info(
        f"back after {back_s:.1f} s; gone {gone_s:.1f} s after the driver; {printed.strip()}"
    )
    assert again.returncode == 0
    told = re.search(rf"{LINES} done \((\d+) before\), 0 failed", printed)
    # A worker that Ray was just starting may still have said one when none was to be seen.
    assert told is not None and before <= int(told[1]) < LINES, printed
    check(out)


async def test_replicas_that_wait_for_a_place_get_one_within_a_second(
    nodes: Nodes, tmp_path: Path
) -> None:
    """Nobody speaks: an operator asks for more replicas, and Ray has no room for them."""
    source, out = tmp_path / "in.jsonl", tmp_path / "out"
    lines(source)
    place = nodes.fleet.place
    await asyncio.to_thread(cluster.deploy, place, nodes.fixed(1))
    await asyncio.to_thread(cluster.wait_until_running, place, "shoal", 60)
    with nodes.backfill(source, out, nodes.fixed(1)) as driver:
        await until(lambda: workers_alive() == NODES - 1)
        await until(lambda: spoken(out) >= 2)
        asked_s = time.monotonic()
        await asyncio.to_thread(cluster.deploy, place, nodes.fixed(NODES))
        told_s = time.monotonic() - asked_s
        with Contended() as contended:
            gone_s = await until(lambda: workers_alive() == 0) - asked_s
        await asyncio.to_thread(nodes.fleet.wait_for, NODES, 120)
        await asyncio.to_thread(cluster.deploy, place, nodes.fixed(1))
        printed, _ = await asyncio.to_thread(driver.communicate, timeout=90)
    logger.info(
        f"every worker gone {gone_s * 1e3:.0f} ms after more replicas were asked for, of which "
        f"the asking took {told_s * 1e3:.0f} ms; {printed.strip()}"
    )
    assert gone_s - told_s < contended.times
    check(out)

"""A cluster of fakes on this machine, and clients that keep it busy."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
import wave
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from copy import deepcopy
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from shoal.deploy import cluster
from shoal.deploy.__main__ import LAPTOP
from shoal.deploy.haproxy import Ports
from shoal.engine.api import Reference
from shoal.engine.voices import VoiceStore
from tests.cluster import Told, live_url, turn_with_retries

SLOTS = 8
SPEED = 2.0
VOICES = 12
SENTENCE = "This sentence takes the fake about two seconds to speak."


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def recording() -> bytes:
    """A second of a tone that comes and goes, as a WAV file."""
    at = np.arange(16_000)
    samples = (8000 * np.sin(at * 0.1) * np.sin(at / 1300)).astype("<i2")
    file = BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(16_000)
        out.writeframes(samples.tobytes())
    return file.getvalue()


def kill(processes: Iterable[int]) -> None:
    """And wait a moment for them to go."""
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    time.sleep(0.05)


def tones() -> dict[str, Reference]:
    """Voices that a fake tells apart by their names."""
    names = (*(f"v{number}" for number in range(VOICES)), "alice")
    return {name: Reference(recording(), "a tone") for name in names}


class Fleet:
    """A cluster of fakes; ``args`` are those of its replicas, ``voices`` what they share."""

    def __init__(self, folder: Path, voices: Mapping[str, Reference] | None = None) -> None:
        self.place = cluster.Place(folder, free_port(), Ports(free_port(), free_port(), 31_000))
        self.port = free_port()
        self.http = f"http://127.0.0.1:{self.port}"
        self.args: dict[str, Any] = {
            "engine": "fake",
            "slots": SLOTS,
            "fake_speed": SPEED,
            "voices": str(folder / "voices"),
            "drain_s": 30.0,
            "leave_s": 2.0,
        }
        self.store = VoiceStore(folder / "voices")
        for voice, reference in (tones() if voices is None else voices).items():
            self.store.add(voice, [reference])

    def config(self, scaling: dict[str, Any]) -> dict[str, Any]:
        deployment = {
            "name": "Replica",
            **scaling,
            "max_ongoing_requests": 1024,
            "max_surge_percent": 34,
            "graceful_shutdown_timeout_s": 40,
            "graceful_shutdown_wait_loop_s": 0.5,
            "health_check_period_s": 1,
            "ray_actor_options": {"num_cpus": 0.2},
        }
        return {
            "proxy_location": "EveryNode",
            "http_options": {"host": "127.0.0.1", "port": self.port},
            "applications": [
                {
                    "name": "shoal",
                    "route_prefix": "/",
                    "import_path": "shoal.deploy.replica:app",
                    "args": self.args,
                    "deployments": [deployment],
                }
            ],
        }

    def deploy(self, replicas: int = 3) -> None:
        cluster.deploy(self.place, self.config({"num_replicas": replicas}))
        cluster.wait_until_running(self.place, "shoal", 120)
        self.wait_for(replicas)

    def scale_by_traffic(self, most: int, **rules: float) -> None:
        scaling = self.scaling(most, **rules)
        cluster.deploy(self.place, self.config({"autoscaling_config": scaling}))

    def scaling(self, most: int, **rules: float) -> dict[str, Any]:
        return {
            "min_replicas": 1,
            "max_replicas": most,
            "initial_replicas": 1,
            "metrics_interval_s": 0.5,
            "look_back_period_s": 1,
            "upscale_delay_s": 0,
            "downscale_delay_s": 0,
            "policy": {
                "policy_function": "shoal.deploy.scaling:TrafficPolicy",
                "policy_kwargs": {"most": most, **rules},
            },
        }

    def wait_for(self, replicas: int, limit_s: float = 60) -> None:
        """Until HAProxy sends turns to so many."""
        until_s = time.monotonic() + limit_s
        while len(self.servers("UP")) != replicas:
            assert time.monotonic() < until_s, self.servers("")
            time.sleep(0.1)

    def servers(self, state: str) -> list[str]:
        """Replicas that HAProxy has in that state."""
        url = f"http://127.0.0.1:{self.place.ports.stats}/stats;csv"
        try:
            with urllib.request.urlopen(url, timeout=30) as answer:
                rows = [line.split(",") for line in answer.read().decode().splitlines()]
        except (urllib.error.URLError, ConnectionError):
            return []
        return [
            row[1].rpartition("-")[2]
            for row in rows
            if len(row) > 17 and row[1].startswith("SERVE_REPLICA") and row[17].startswith(state)
        ]

    def replica_processes(self) -> list[int]:
        return self._processes(b"ray::ServeReplica")

    def worker_processes(self) -> list[int]:
        """Those of a backfill, on the head's node."""
        return self._processes(b"ray::Speaking")

    def kill(self) -> None:
        """End it at once. ``shoal cluster down`` gives processes time that nobody needs here."""
        while processes := cluster.members(self.place):
            kill(processes)
        cluster.stop(self.place)

    def _processes(self, name: bytes) -> list[int]:
        found: list[int] = []
        for process in cluster.members(self.place):
            with suppress(OSError):  # it may have ended meanwhile
                if Path(f"/proc/{process}/cmdline").read_bytes().startswith(name):
                    found.append(process)
        return found

    @contextmanager
    def backfill(
        self, source: Path, out: Path, config: dict[str, Any], workers: int
    ) -> Iterator[subprocess.Popen[str]]:
        """The command, as a process of its own that does not outlive the block."""
        file = self.place.folder / "serve.yaml"
        file.write_text(json.dumps(config))
        command = [
            *(sys.executable, "-P", "-m", "shoal.deploy", "backfill", str(source)),
            *("-o", str(out), "--config", str(file), "--workers", str(workers)),
            *("--streams", "2", "--address", self.place.address),
        ]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as driver:
            try:
                yield driver
            finally:
                driver.kill()


class Laptop(Fleet):
    """What ``shoal cluster up`` starts, on ports and with voices of its own.

    Each replica takes half a CPU, so that three and the one that an update starts fill two of them,
    and beside three there is room for one worker of a backfill.
    """

    def __init__(self, folder: Path, voices: Mapping[str, Reference]) -> None:
        super().__init__(folder, voices)
        self._file = cluster.read_config(LAPTOP)
        (app,) = self._file["applications"]
        self.args = {**app["args"], "voices": str(self.store.root)}

    def config(self, scaling: dict[str, Any]) -> dict[str, Any]:
        config = deepcopy(self._file)
        config["http_options"] = {"host": "127.0.0.1", "port": self.port}
        (app,) = config["applications"]
        app["args"] = self.args
        (deployment,) = app["deployments"]
        del deployment["num_replicas"]
        deployment |= {**scaling, "ray_actor_options": {"num_cpus": 0.5}}
        return config


class Contended:
    """How many times as long things take as on a machine that does nothing else: a thread that
    works for a moment now and then counts how long it is given the processor for that."""

    def __init__(self) -> None:
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._worked_s = self._took_s = 0.0

    @property
    def times(self) -> float:
        return max(1.0, self._took_s / self._worked_s) if self._worked_s else 1.0

    def __enter__(self) -> Contended:
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(0.02):
            began_s, worked_s = time.monotonic(), time.thread_time()
            while time.thread_time() - worked_s < 0.002:
                pass
            self._worked_s += time.thread_time() - worked_s
            self._took_s += time.monotonic() - began_s


async def until(found: Callable[[], bool], limit_s: float = 30.0) -> float:
    """When it was so."""
    limit = time.monotonic() + limit_s
    while not found():
        assert time.monotonic() < limit
        await asyncio.sleep(0.02)
    return time.monotonic()


@asynccontextmanager
async def callers(fleet: Fleet, number: int) -> AsyncGenerator[list[tuple[Told, int]]]:
    """So many clients, each making one turn after the other; the list fills as turns end."""
    ended: list[tuple[Told, int]] = []
    stop = asyncio.Event()

    async def call(caller: int) -> None:
        voice = f"v{caller % VOICES}"
        while not stop.is_set():
            ended.append(await turn_with_retries(live_url(fleet.http, voice), SENTENCE, voice))

    tasks = [asyncio.create_task(call(caller)) for caller in range(number)]
    try:
        yield ended
    finally:
        stop.set()
        await asyncio.gather(*tasks)

"""A cluster on one machine: started, asked, and stopped. Blocking; called by the command.

Ray's head runs as one child in a session of its own, whose id is all that is kept between
commands. Only processes of that session are ever ended.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
import urllib.request
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

from .haproxy import Ports, haproxy_environment

START_S: Final = 60.0
READY_S: Final = 600.0
STOP_S: Final = 5.0
KILL_S: Final = 5.0
POLL_S: Final = 0.2
SERVE_NAMESPACE: Final = "serve"
OBJECT_STORE_BYTES: Final = 100 << 20
LIVE: Final = "live"
"""A resource of the nodes that stay. A config may let replicas be placed there alone; batch workers
need none of it."""


class ClusterError(Exception):
    """It cannot be done; the message is one line for the user."""


@dataclass(frozen=True, slots=True)
class Place:
    """What a cluster of this machine calls its own."""

    folder: Path
    ray_port: int = 6379
    ports: Ports = field(default_factory=Ports)

    @property
    def state(self) -> Path:
        return self.folder / "cluster.json"

    @property
    def run_dir(self) -> Path:
        """Of HAProxy."""
        return Path(f"/tmp/shoal-ha-{self.ray_port}")

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.ray_port}"


@dataclass(frozen=True, slots=True)
class Status:
    """``replicas`` counts them by state, as Ray names it."""

    app: str
    message: str
    replicas: dict[str, int]

    @property
    def running(self) -> int:
        return self.replicas.get("RUNNING", 0)


def read_config(path: Path) -> dict[str, Any]:
    """:raises ClusterError: there is no such file, or no YAML in it."""
    import yaml

    try:
        config = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ClusterError(f"{path}: {error.strerror}") from error
    except yaml.YAMLError as error:
        raise ClusterError(f"{path} is no YAML") from error
    if not isinstance(config, dict) or "applications" not in config:
        raise ClusterError(f"{path} names no applications")
    return cast("dict[str, Any]", config)


def start(place: Place, cpus: int) -> None:
    """Start Ray's head.

    :raises ClusterError: it runs already, or it does not start.
    """
    if _session(place) is not None:
        raise ClusterError("the cluster runs already: shoal cluster down")
    place.folder.mkdir(parents=True, exist_ok=True)
    environment = haproxy_environment(
        place.ports, threads=1, drain_s=2.0, run_dir=str(place.run_dir)
    )
    log = place.folder / "ray.log"
    log.unlink(missing_ok=True)
    session = _spawn(
        [
            "env",
            *(f"{name}={value}" for name, value in environment.items()),
            *(sys.executable, "-P", "-m", "ray.scripts.scripts", "start", "--head", "--block"),
            f"--port={place.ray_port}",
            f"--num-cpus={cpus}",
            f"--resources={json.dumps({LIVE: 1})}",
            f"--temp-dir={place.folder / 'ray'}",
            f"--object-store-memory={OBJECT_STORE_BYTES}",
            "--include-dashboard=false",
            "--disable-usage-stats",
        ],
        log,
    )
    place.state.write_text(json.dumps({"session": session}), encoding="utf-8")
    limit_s = time.monotonic() + START_S
    while b"Ray runtime started" not in log.read_bytes():
        if not session_members(session) or time.monotonic() > limit_s:
            stop(place)
            raise ClusterError(f"Ray did not start: see {log}")
        time.sleep(POLL_S)


def _spawn(command: list[str], log: Path) -> int:
    """Run ``command`` in a session of its own, beyond the end of this process."""
    writing = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    return os.posix_spawn(
        "/usr/bin/env",
        command,
        dict(os.environ),
        setsid=True,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(log), writing, 0o644),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
    )


@contextmanager
def _connected(place: Place) -> Generator[None]:
    if _session(place) is None:
        raise ClusterError("no cluster runs: shoal cluster up")
    with joined(place.address):
        yield


@contextmanager
def joined(address: str) -> Generator[None]:
    """This process as a driver of the cluster at ``address`` (``auto``: the one of this node).

    :raises ConnectionError: there is none.
    """
    import ray

    untyped = cast("Any", ray)
    untyped.init(
        address=address,
        namespace=SERVE_NAMESPACE,
        log_to_driver=False,
        logging_level="ERROR",
        configure_logging=False,
    )
    try:
        yield
    finally:
        untyped.shutdown()


def deploy(place: Place, config: dict[str, Any]) -> None:
    """Bring the cluster to ``config``; a running one is updated replica by replica.

    :raises ClusterError: no cluster runs, or Ray refuses the config.
    """
    from pydantic import ValidationError
    from ray import serve
    from ray.serve.schema import ServeDeploySchema

    try:
        schema = ServeDeploySchema.model_validate(config)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(step) for step in first["loc"])
        raise ClusterError(f"{where}: {first['msg']}") from error
    with _connected(place):
        cast("Any", serve).start(
            proxy_location=schema.proxy_location.value,
            http_options=schema.http_options.model_dump(),
        )
        from ray.serve import context

        # What Ray's own `serve run` does; there is no public function for it.
        cast("Any", context)._get_global_client().deploy_apps(schema)


def statuses(place: Place) -> dict[str, Status]:
    """By the app's name.

    :raises ClusterError: no cluster runs.
    """
    from ray import serve

    with _connected(place):
        answer = serve.status()
        return {name: read_status(answer, name) for name in answer.applications}


def runs(place: Place) -> bool:
    return _session(place) is not None


def read_status(answer: Any, app: str) -> Status:
    found = answer.applications.get(app)
    if found is None:
        return Status("NOT_STARTED", "", {})
    replicas: dict[str, int] = {}
    messages = [found.message]
    for deployment in found.deployments.values():
        messages.append(deployment.message)
        for state, number in deployment.replica_states.items():
            name = str(getattr(state, "value", state))
            replicas[name] = replicas.get(name, 0) + int(number)
    text = " ".join(message for message in messages if message)
    return Status(str(getattr(found.status, "value", found.status)), text, replicas)


def wait_until_running(
    place: Place, app: str, limit_s: float = READY_S, seen: Callable[[Status], None] | None = None
) -> Status:
    """Until every replica of the config runs and no old one is left.

    :raises ClusterError: it did not come to that in time, or Ray gave up.
    """
    from ray import serve

    limit = time.monotonic() + limit_s
    with _connected(place):
        while True:
            now = read_status(serve.status(), app)
            if seen is not None:
                seen(now)
            if now.app == "RUNNING":
                return now
            if now.app == "DEPLOY_FAILED" or time.monotonic() > limit:
                raise ClusterError(f"{app}: {now.app}: {now.message}")
            time.sleep(POLL_S)


def wait_until_reached(address: str, limit_s: float = START_S) -> None:
    """Until HAProxy sends requests to a replica.

    :raises ClusterError: it does not.
    """
    limit = time.monotonic() + limit_s
    while True:
        with suppress(OSError), urllib.request.urlopen(f"{address}/v1/health", timeout=5):
            return
        if time.monotonic() > limit:
            raise ClusterError(f"{address} is not reached: see http://127.0.0.1:8404/stats")
        time.sleep(POLL_S)


def stop(place: Place) -> bool:
    """End the cluster with all its processes; False when none ran."""
    session = _session(place)
    if session is None:
        _forget(place)
        return False
    for number, patience_s in ((signal.SIGTERM, STOP_S), (signal.SIGKILL, KILL_S)):
        for process in session_members(session):
            with suppress(ProcessLookupError):
                os.kill(process, number)
        limit_s = time.monotonic() + patience_s
        while session_members(session) and time.monotonic() < limit_s:
            time.sleep(POLL_S)
    with suppress(ChildProcessError):
        os.waitpid(session, os.WNOHANG)
    _forget(place)
    return True


def _forget(place: Place) -> None:
    place.state.unlink(missing_ok=True)
    shutil.rmtree(place.run_dir, ignore_errors=True)


def _session(place: Place) -> int | None:
    """The session of the cluster that runs, if one does."""
    try:
        session = int(json.loads(place.state.read_text(encoding="utf-8"))["session"])
    except (OSError, ValueError, KeyError):
        return None
    return session if session_members(session) else None


def members(place: Place) -> list[int]:
    """The processes of the cluster; none when it does not run."""
    session = _session(place)
    return [] if session is None else session_members(session)


def session_members(session: int) -> list[int]:
    """The live processes of a session (Linux)."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                # After the name, which may hold anything: state, parent, group, session.
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if int(fields[3]) == session and fields[0] != "Z":
                    found.append(int(entry.name))
    return found

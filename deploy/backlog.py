"""``work_off``: a file of lines spoken by workers on the cluster, behind everything live.

The driver of ``shoal cluster backfill``. It owns the folder and hands out the lines; what it has
written is whole and counts once, whoever of the workers was sent away in between. When this process
ends, however it ends, Ray ends its workers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from shoal.realtime.batch import Tally, run_batch
from shoal.realtime.batch_folder import Folder

from .autoscale import Rules
from .backfill import Manners, Shape
from .cluster import LIVE, ClusterError
from .crew import Counts, Crew
from .settings import SettingsError, replica_settings
from .watch import Interactive, Watch

MARK: Final = "memory"
"""A worker asks for a byte of it, as nobody else does: so Ray's list of who waits tells them apart,
and no node has to be started with a resource of ours."""
STREAMS: Final = 4
RESOURCES: Final[Mapping[str, str]] = {"num_cpus": "CPU", "num_gpus": "GPU"}


@dataclass(frozen=True, slots=True)
class Backlog:
    """What is to be done, and where it runs. ``config`` is the Serve config that the cluster runs:
    workers are made as its replicas are, and give way as its autoscaler will need."""

    source: Path
    folder: Path
    config: Mapping[str, Any]
    workers: int
    streams: int | None = None
    calm_s: float = 5.0


def work_off(
    backlog: Backlog,
    report: Callable[[Tally], None],
    seen: Callable[[str, float, int], None] = lambda what, at_s, many: None,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[Tally, Counts]:
    """Blocks until every line is spoken or failed. The caller has joined the cluster.

    :raises ClusterError: the config cannot be used, or another backfill runs.
    :raises FolderBusy: another run has the folder.
    :raises OSError: the source cannot be read, or the folder not be written.
    """
    app = backlog.config["applications"][0]
    deployment = app["deployments"][0]
    try:
        settings = replica_settings(app.get("args", {}))
        rules = scaling_rules(deployment)
    except (SettingsError, TypeError) as error:
        raise ClusterError(str(error)) from error
    replica = deployment.get("ray_actor_options", {})
    worker = worker_options(replica)
    streams = backlog.streams or settings.safe_turns or settings.slots or STREAMS
    crew = Crew(settings, {**worker, MARK: 1}, streams)
    manners = Manners(
        worker={**shape_of(worker), MARK: 1.0},
        replica=shape_of(replica),
        most=backlog.workers,
        calm_s=backlog.calm_s,
    )
    with Folder(backlog.folder) as folder:
        try:
            watch = Watch(crew, manners, Interactive(app["name"], rules), MARK, seen, clock)
        except ValueError:
            raise ClusterError("a backfill runs on this cluster already") from None
        watch.start()
        try:
            tally = run_batch(
                backlog.source,
                folder,
                crew,
                workers=backlog.workers * streams,
                report=report,
            )
        finally:
            watch.stop()
    return tally, crew.counts


def worker_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Ray's for a worker: a replica's, but on any node."""
    elsewhere = {name: much for name, much in options.get("resources", {}).items() if name != LIVE}
    return {**options, "resources": elsewhere}


def shape_of(options: Mapping[str, Any]) -> Shape:
    """What Ray sets aside for an actor with these options; one CPU for a replica without any."""
    shape = {
        ray: float(options[name])
        for name, ray in RESOURCES.items()
        if options.get(name) is not None
    }
    shape.setdefault("CPU", 1.0)
    for name, much in options.get("resources", {}).items():
        shape[str(name)] = float(much)
    return {name: much for name, much in shape.items() if much}


def scaling_rules(deployment: Mapping[str, Any]) -> Rules | None:
    """Those of the deployment's autoscaler, if it has one.

    :raises TypeError: there is no such rule.
    """
    scaling = deployment.get("autoscaling_config")
    if scaling is None:
        return None
    rules = Rules(**scaling.get("policy", {}).get("policy_kwargs", {}))
    most = int(scaling.get("max_replicas", rules.most))
    least = int(scaling.get("min_replicas", rules.least))
    return replace(rules, least=max(least, rules.least), most=min(most, rules.most))

"""``shoal cluster``: several replicas on this machine behind one address."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from shoal.realtime.installing import missing_module

from . import cluster
from .haproxy import haproxy_environment

LAPTOP = Path(__file__).parent / "laptop.yaml"
FOLDER = Path("/tmp") / f"shoal-cluster-{os.getuid()}"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="shoal cluster", description=__doc__)
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    up = actions.add_parser("up", help="start it, or bring it to another config")
    up.add_argument("--config", type=Path, default=LAPTOP, metavar="FILE", help="a Serve config")
    up.add_argument("--port", type=int, help="instead of the config's")
    up.add_argument("--replicas", type=int, metavar="N", help="instead of the config's")
    up.add_argument("--fake", action="store_true", help="tones instead of a voice")
    up.add_argument("--cpus", type=int, default=os.cpu_count() or 1, metavar="N")
    actions.add_parser("status", help="say what runs")
    actions.add_parser("down", help="stop it")
    work = actions.add_parser("backfill", help="speak a file of lines in what live turns leave")
    work.add_argument("file", type=Path, metavar="FILE.jsonl", help="as `shoal batch` reads it")
    work.add_argument("-o", "--out", type=Path, metavar="DIR", required=True)
    work.add_argument(
        "--config", type=Path, default=LAPTOP, metavar="FILE", help="the one that the cluster runs"
    )
    work.add_argument("--workers", type=int, default=8, metavar="N", help="at most; 8")
    work.add_argument("--streams", type=int, metavar="N", help="lines that one speaks at once")
    work.add_argument(
        "--address", metavar="HOST:PORT", help="a cluster that runs; auto: this node's"
    )
    actions.add_parser("env", help="what Ray has to see on every node of a real cluster")
    flags = parser.parse_args(argv)
    if flags.action == "env":
        for name, value in haproxy_environment().items():
            print(f"export {name}={shlex.quote(value)}")
        return 0
    place = cluster.Place(FOLDER)
    try:
        return _do(flags, place)
    except cluster.ClusterError as error:
        print(f"shoal: {error}", file=sys.stderr)
        return 1
    except ModuleNotFoundError as missing:
        print(f"shoal: {missing_module(missing, 'shoal[cluster]')}", file=sys.stderr)
        return 1


def _do(flags: argparse.Namespace, place: cluster.Place) -> int:
    match flags.action:
        case "up":
            config = cluster.read_config(flags.config)
            app = config["applications"][0]
            if flags.port is not None:
                config.setdefault("http_options", {})["port"] = flags.port
            if flags.replicas is not None:
                app["deployments"][0]["num_replicas"] = flags.replicas
                app["deployments"][0].pop("autoscaling_config", None)
            if flags.fake:
                app["args"]["engine"] = "fake"
            if not cluster.runs(place):
                cluster.start(place, flags.cpus)
            cluster.deploy(place, config)
            now = cluster.wait_until_running(place, app["name"])
            address = f"http://127.0.0.1:{config.get('http_options', {}).get('port', 8000)}"
            cluster.wait_until_reached(address)
            print(f"shoal speaks at {address} ({now.running} replicas)")
        case "status":
            for name, now in cluster.statuses(place).items():
                states = ", ".join(f"{count} {state}" for state, count in now.replicas.items())
                print(f"{name}: {now.app} ({states or 'no replicas'})")
        case "backfill":
            return _backfill(flags, place)
        case _:
            if not cluster.stop(place):
                print("shoal: no cluster runs", file=sys.stderr)
                return 1
    return 0


def _backfill(flags: argparse.Namespace, place: cluster.Place) -> int:
    from shoal.realtime.batch import FAILED
    from shoal.realtime.batch_folder import FolderBusy
    from shoal.realtime.progress import Progress

    from .backlog import Backlog, work_off

    config = cluster.read_config(flags.config)
    if flags.workers < 1 or (flags.streams is not None and flags.streams < 1):
        raise cluster.ClusterError("--workers and --streams must be at least 1")
    backlog = Backlog(flags.file, flags.out, config, flags.workers, flags.streams)
    if flags.address is None and not cluster.runs(place):
        raise cluster.ClusterError("no cluster runs: shoal cluster up")
    progress = Progress(sys.stderr)
    try:
        with cluster.joined(flags.address or place.address):
            tally, counts = work_off(backlog, lambda tally: progress(str(tally)))
    except (FolderBusy, ConnectionError) as error:
        raise cluster.ClusterError(str(error)) from error
    except OSError as error:
        raise cluster.ClusterError(f"{error.filename or flags.out}: {error.strerror}") from error
    progress.done()
    hint = f"; why: {flags.out / FAILED}" if tally.failed else ""
    print(f"{tally}; workers: {counts.hired} came, {counts.evicted} gave way{hint}")
    return 1 if tally.failed else 0


if __name__ == "__main__":
    sys.exit(main())

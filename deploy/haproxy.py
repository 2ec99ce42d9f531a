"""How Ray's HAProxy is told to route: the environment that its processes start with.

HAProxy holds the whole policy; no Python sees a byte of a turn on its way. A turn goes to the home
of its voice on a consistent-hash ring as long as the home has less than ``BOUND_PERCENT`` of the
average load, else to the next on the ring; one that names no voice in its URL goes to the replicas
in turn. A replica that answers 503 is passed over for the next one. Knows no Ray.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

VOICE_MAP: Final = Path(__file__).parent / "voice.map"
BOUND_PERCENT: Final = 125
"""What a voice's home may hold, of the average. Above a load of 100 / this, one voice that is most
of the traffic can fill its home and the next on the ring while others have room; the autoscaler
keeps the load below that."""
TRIES: Final = 5
LOADS_PERIOD_MS: Final = 100


@dataclass(frozen=True, slots=True)
class Ports:
    """Ray's defaults. Two clusters on one machine need two sets."""

    metrics: int = 9101
    stats: int = 8404
    first_replica: int = 30_000
    replicas: int = 1_000


def haproxy_environment(
    ports: Ports | None = None,
    voice_map: Path = VOICE_MAP,
    threads: int = 4,
    drain_s: float = 10.0,
    run_dir: str = "/tmp/haproxy-serve",
) -> dict[str, str]:
    """Variables that every Ray process of the cluster has to see before it starts.

    ``voice_map`` is where the file lies on every node that runs HAProxy. ``drain_s``: how long a
    leaving replica stays reachable, so that every HAProxy has taken it off its list. ``run_dir`` is
    short: Ray adds 70 characters to it for a socket, whose path may have 97.
    """
    ports = ports or Ports()
    # Ray puts the algorithm into the defaults section as it is, so lines can follow it.
    balance = (
        f"hash url,map_regm({voice_map})",
        "hash-type consistent",
        f"hash-balance-factor {BOUND_PERCENT}",
    )
    return {
        "RAY_SERVE_ENABLE_HA_PROXY": "1",
        "RAY_SERVE_HAPROXY_BALANCE_ALGORITHM": "\n    ".join(balance),
        # Nothing that could be heard has happened at any of these.
        "RAY_SERVE_HAPROXY_RETRY_ON": "conn-failure empty-response 503",
        "RAY_SERVE_HAPROXY_RETRIES": str(TRIES - 1),
        "RAY_SERVE_HAPROXY_NBTHREAD": str(threads),
        "RAY_SERVE_HAPROXY_HEALTH_CHECK_INTER": "1s",
        "RAY_SERVE_HAPROXY_METRICS_PORT": str(ports.metrics),
        "RAY_SERVE_HAPROXY_STATS_PORT": str(ports.stats),
        "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": f"{run_dir}/haproxy.cfg",
        "RAY_SERVE_HAPROXY_SOCKET_PATH": f"{run_dir}/admin.sock",
        "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": run_dir,
        "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": f"{run_dir}/server-state",
        "RAY_SERVE_HAPROXY_METRICS_SOCKET_PATH": f"{run_dir}/metrics.sock",
        "RAY_SERVE_DIRECT_INGRESS_MIN_HTTP_PORT": str(ports.first_replica),
        "RAY_SERVE_DIRECT_INGRESS_MAX_HTTP_PORT": str(ports.first_replica + ports.replicas),
        "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": f"{drain_s:g}",
        # The gateway on the loop that the sockets are on: no thread between them.
        "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0",
        # Who waits for resources is known this soon, so that backfill gives way as soon.
        "RAY_gcs_pull_resource_loads_period_milliseconds": str(LOADS_PERIOD_MS),
    }

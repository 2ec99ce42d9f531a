"""``Watch``: looks at the cluster many times a second, and does what :mod:`.backfill` decides.

One thread of the driver. What it sees comes from Ray: free resources and what waits for some from
the cluster's own record, replicas from Serve, live turns from the board. Blocks nobody but itself.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

import ray
from ray.exceptions import RayError

from .autoscale import Rules
from .backfill import Manners, Node, Past, Shape, Sight, coming, plan
from .board import put_up
from .cluster import read_status
from .crew import Crew

LOOK_S: Final = 0.1
SERVE_S: Final = 0.3
"""Serve's controller is asked more seldom: it has its own work."""
GONE: Final = frozenset(("STOPPING",))

logger = logging.getLogger("shoal.backfill")


@dataclass(frozen=True, slots=True)
class Interactive:
    """What the workers give way to. ``rules`` are those of its autoscaler; ``None``: it has none,
    and live turns alone call for no replica."""

    app: str
    rules: Rules | None


class Watch:
    """Begins with ``start`` and ends with ``stop``, which lets every worker go. ``mark`` is a
    resource by which our own workers are told from others in what waits."""

    def __init__(
        self,
        crew: Crew,
        manners: Manners,
        interactive: Interactive,
        mark: str,
        seen: Callable[[str, float, int], None] = lambda what, at_s, many: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._crew = crew
        self._manners = manners
        self._interactive = interactive
        self._mark = mark
        self._seen = seen
        self._clock = clock
        self._past = Past()
        self._board = put_up()
        self._replicas = self._count_replicas()  # the first time takes Serve a second
        self._asked_serve_s = clock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch")
        self._state = _ClusterState()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        self._crew.end()
        cast("Any", ray).kill(self._board)

    def _run(self) -> None:
        while not self._stop.wait(LOOK_S):
            try:
                self._once()
            except (RayError, RuntimeError, TimeoutError) as error:  # Ray is busy, or away
                logger.warning("looking_failed", extra={"fields": {"error": type(error).__name__}})

    def _once(self) -> None:
        orders, self._past = plan(self._look(), self._past, self._manners)
        for identity in orders.evict:
            self._crew.evict(identity)
        for _ in range(orders.hire):
            self._crew.hire()
        if orders.evict:
            self._seen("evicted", self._clock(), len(orders.evict))
        if orders.hire:
            self._seen("hired", self._clock(), orders.hire)

    def _look(self) -> Sight:
        nodes, demands = self._state.read()
        called, blind = self._coming()
        return Sight(
            at_s=self._clock(),
            nodes=nodes,
            waiting=[shape for shape in demands if self._mark not in shape],
            coming=called,
            workers=self._crew.look(),
            unplaced=sum(self._mark in shape for shape in demands),
            blind=blind,
        )

    def _coming(self) -> tuple[int, bool]:
        """Replicas that live turns call for, and whether the turns are not known."""
        rules = self._interactive.rules
        if rules is None:
            return 0, False
        if self._clock() - self._asked_serve_s >= SERVE_S:
            self._replicas, self._asked_serve_s = self._count_replicas(), self._clock()
        said: Mapping[str, tuple[float, float]] = cast("Any", ray).get(
            self._board.seen.remote(), timeout=2
        )
        if not said:
            return 0, self._replicas > 0
        live = sum(turns for turns, _ in said.values())
        capacity = sum(room for _, room in said.values()) / len(said)
        return coming(live, capacity, max(self._replicas, len(said)), rules), False

    def _count_replicas(self) -> int:
        """Those that Serve has or has asked for."""
        from ray import serve

        replicas = read_status(serve.status(), self._interactive.app).replicas
        return sum(number for state, number in replicas.items() if state not in GONE)


class _ClusterState:
    """Ray's own record of who has what and who waits; what its autoscaler reads."""

    def __init__(self) -> None:
        from ray import _raylet  # pyright: ignore[reportMissingTypeStubs]

        address = cast("Any", ray).get_runtime_context().gcs_address
        self._client: Any = cast("Any", _raylet).GcsClient(address=address)

    def read(self) -> tuple[list[Node], list[Shape]]:
        """Nodes that live, and every demand that waits."""
        from ray.autoscaler.v2 import sdk
        from ray.core.generated import autoscaler_pb2

        state: Any = cast("Any", sdk).get_cluster_resource_state(self._client)
        dead = cast("Any", autoscaler_pb2).NodeStatus.DEAD
        nodes = [
            Node(bytes(node.node_id).hex(), dict(node.available_resources))
            for node in state.node_states
            if node.status != dead
        ]
        demands: list[Shape] = [
            dict(entry.request.resources_bundle)
            for entry in state.pending_resource_requests
            for _ in range(entry.count)
        ]
        return nodes, demands

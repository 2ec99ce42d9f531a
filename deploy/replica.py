"""``Replica``: one server, with an engine of its own, as a deployment of Ray Serve.

``app`` is what a Serve config names as ``shoal.deploy.replica:app``. A replica's process is Ray's:
its event loop runs the gateway, and HAProxy connects to its port directly.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from dataclasses import replace
from typing import Any, Final

import uvicorn.config
from ray import serve
from ray.serve import Application
from starlette.types import ASGIApp

from shoal.realtime.app import create_app
from shoal.realtime.config import server_config
from shoal.realtime.log import LogThread
from shoal.realtime.server import SWITCH_INTERVAL_S
from shoal.realtime.tokens import shared_secret
from shoal.realtime.trace import OtelTraces
from shoal.realtime.websocket import LiveProtocol
from shoal.realtime.wire import HttpProtocol

from .board import Reporting
from .door import Door
from .engines import make_engine
from .ledger import RayLedger
from .settings import ReplicaSettings, replica_settings
from .signals import Signals
from .targets import Targets, asked_of_serve
from .voice_source import voice_store

HEALTH_PATH: Final = "/-/healthz"
HEALTH_TIMEOUT_S: Final = 2.0


class ReplicaProtocol(LiveProtocol):
    """uvicorn's WebSocket protocol as our own server runs it, where Ray starts uvicorn."""

    def __init__(self, config: uvicorn.Config, *args: Any, **kwargs: Any) -> None:
        config.ws_per_message_deflate = False  # audio gets no smaller, and it costs a chunk's time
        super().__init__(config, *args, **kwargs)

    def shutdown(self) -> None:
        """uvicorn would close every socket when it stops listening; the gateway waits for turns."""
        if not self.handshake_complete:
            super().shutdown()


@serve.deployment
@serve.ingress()
class Replica:
    """See the module. Ray makes one for each GPU, or for each share of a CPU."""

    def __init__(self, settings: ReplicaSettings) -> None:
        # Ray lets uvicorn choose its protocols. It does so after this, from this table.
        uvicorn.config.WS_PROTOCOLS["auto"] = ReplicaProtocol
        uvicorn.config.HTTP_PROTOCOLS["auto"] = HttpProtocol
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        store = voice_store(settings)
        config = server_config(
            voices_dir=None if store is None else store.root,
            max_sockets=settings.max_sockets,
            drain_s=settings.drain_s,
            drain_quiet_s=settings.drain_quiet_s,
        )
        if config.api_keys and config.token_secret is None:
            config = replace(config, token_secret=shared_secret("\n".join(config.api_keys)))
        self._logs = LogThread(sys.stderr, config.log_level, config.log_json)
        engine = make_engine(settings, store)
        self._traces = OtelTraces() if config.traces else None
        app = create_app(engine, config, store, self._traces)
        app.router.routes.append(Targets(asked_of_serve).route)
        gateway = app.state.gateway
        if config.api_keys:
            gateway.ledger = RayLedger()
        capacity = settings.safe_turns or engine.info.slots
        self._gateway = gateway
        name = serve.get_replica_context().replica_id.unique_id
        self._door = Door(app, gateway, capacity, told_to_leave, name, settings.leave_s)
        self._app = Reporting(self._door, name, lambda: self._door.live_turns, capacity)
        self._signals = Signals(engine, gateway, self._door, capacity)
        gc.collect()
        gc.freeze()

    def __serve_build_asgi_app__(self) -> ASGIApp:
        return self._app

    async def check_health(self) -> None:
        """:raises RuntimeError: the engine died; Ray starts another replica."""
        if self._gateway.failed:
            raise RuntimeError("the engine failed")

    async def record_autoscaling_stats(self) -> dict[str, float]:
        return self._signals.take()

    def __del__(self) -> None:
        if self._traces is not None:
            self._traces.close()
        self._logs.stop()


async def told_to_leave(host: str, port: int) -> bool:
    """Whether Ray answers this replica's health check with "draining".

    :raises OSError: there was no answer.
    """
    async with asyncio.timeout(HEALTH_TIMEOUT_S):
        reader, writer = await asyncio.open_connection(host, port)
        try:
            head = f"GET {HEALTH_PATH} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n"
            writer.write(head.encode())
            answer = await reader.read()
        finally:
            writer.close()
    return answer.startswith(b"HTTP/1.1 503") and b"DRAINING" in answer


def app(args: dict[str, Any]) -> Application:
    """The application of a Serve config; ``args`` are the fields of ``ReplicaSettings``.

    :raises SettingsError: an arg cannot be used.
    """
    return Replica.bind(replica_settings(args))

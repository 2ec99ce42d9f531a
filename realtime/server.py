"""The server that runs the app: uvicorn with signals, a drain before its shutdown, and one port.

``build_server`` puts the app behind uvicorn, ``serve`` runs that to the end of the process.
Everything runs on the main thread's event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import socket
import sys
import threading
from collections.abc import Callable, Generator
from typing import cast

import uvicorn

from shoal.engine.api import Engine
from shoal.proto.messages import MAX_MESSAGE_BYTES

from .app import create_app
from .config import ServerConfig
from .gateway import Gateway
from .log import LogThread
from .trace import Traces
from .websocket import LiveProtocol
from .wire import HttpProtocol

SWITCH_INTERVAL_S = 0.0002
CLOSE_S = 5


class GatewayServer(uvicorn.Server):
    """uvicorn's server with a drain before its shutdown, and an end that is no signal's."""

    def __init__(
        self, config: uvicorn.Config, gateway: Gateway, on_ready: Callable[[str], None] | None
    ) -> None:
        super().__init__(config)
        self.gateway = gateway
        self._on_ready = on_ready
        gateway.on_ready = self._announce
        gateway.request_exit = self._exit

    @property
    def address(self) -> str:
        """``http://host:port`` with the port that was bound. Valid once started."""
        bound = self.servers[0].sockets[0].getsockname()
        host = f"[{bound[0]}]" if ":" in bound[0] else bound[0]
        return f"http://{host}:{bound[1]}"

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._announce()

    def _announce(self) -> None:
        """Either of port and engine may be ready first."""
        if self.started and self.gateway.ready and self._on_ready is not None:
            self._on_ready(self.address)
            self._on_ready = None

    def _exit(self) -> None:
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self.gateway.drain()
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """The first SIGTERM or SIGINT drains, the second one hurries. The process then ends as
        ``serve`` says, where uvicorn would raise the signal again."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        loop = asyncio.get_running_loop()
        caught = (signal.SIGTERM, signal.SIGINT)
        for number in caught:
            loop.add_signal_handler(number, self._signalled)
        try:
            yield
        finally:
            for number in caught:
                loop.remove_signal_handler(number)

    def _signalled(self) -> None:
        if self.should_exit:
            self.gateway.hurry()
        self.should_exit = True


def build_server(
    config: ServerConfig,
    engine: Engine,
    on_ready: Callable[[str], None] | None = None,
    traces: Traces | None = None,
) -> GatewayServer:
    """A server that is not running yet. ``on_ready`` gets its address once a turn would be
    fast, on the loop."""
    app = create_app(engine, config, traces=traces)
    return GatewayServer(
        uvicorn.Config(
            app,
            host=config.host,
            port=config.port,
            http=HttpProtocol,
            ws=LiveProtocol,
            ws_max_size=MAX_MESSAGE_BYTES,
            ws_ping_interval=config.ping_interval_s,
            ws_ping_timeout=config.ping_timeout_s,
            ws_per_message_deflate=False,
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=CLOSE_S,
        ),
        cast(Gateway, app.state.gateway),
        on_ready,
    )


def serve(
    config: ServerConfig,
    engine: Engine,
    on_ready: Callable[[str], None] | None = None,
    traces: Traces | None = None,
) -> int:
    """Serve until a signal or the engine's death; returns the process's exit status.

    ``on_ready`` is called with ``http://host:port`` once a first turn would be fast.
    """
    # Decode threads share the interpreter with this loop; a short slice keeps a busy one from
    # delaying the other.
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    logs = LogThread(sys.stderr, config.log_level, config.log_json)

    def ready(address: str) -> None:
        # The model's objects live as long as the process: keep them out of every collection.
        gc.collect()
        gc.freeze()
        if on_ready is not None:
            on_ready(address)

    server = build_server(config, engine, ready, traces)
    try:
        server.run()
    finally:
        logs.stop()
    return 1 if server.gateway.failed or not server.started else 0

"""A server on loopback with a fake engine, and a client that speaks the wire by hand."""

from __future__ import annotations

import asyncio
import json
import threading
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgpack
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from shoal.engine.api import Engine
from shoal.engine.fake import FakeEngine
from shoal.loadtest.own_server import own_server
from shoal.realtime.config import ServerConfig
from shoal.realtime.server import GatewayServer, build_server
from shoal.realtime.trace import Traces

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

TIMEOUT_S = 30.0
PCM = {"format": "pcm", "sample_rate": 24_000, "prosody": {"normalize_loudness": False}}
"""The engine's samples as they are, so that a test can tell them."""


class Server:
    """A server in a thread of its own, with its own event loop, ready to speak."""

    def __init__(self, engine: Engine, config: ServerConfig, traces: Traces | None = None) -> None:
        self.engine = engine
        self._ready = threading.Event()
        self._address = ""
        self.server: GatewayServer = build_server(config, engine, self._on_ready, traces)
        self._thread = threading.Thread(target=self.server.run, name="server")

    def _on_ready(self, address: str) -> None:
        self._address = address
        self._ready.set()

    def start(self) -> Server:
        self._thread.start()
        assert self._ready.wait(TIMEOUT_S)
        return self

    def stop(self) -> None:
        self.server.should_exit = True
        self.server.gateway.hurry()
        self._thread.join(TIMEOUT_S)
        assert not self._thread.is_alive()

    @property
    def http(self) -> str:
        return self._address

    @property
    def live(self) -> str:
        return self._address.replace("http", "ws", 1) + "/v1/tts/live"

    def get(self, path: str) -> tuple[int, bytes]:
        try:
            with urllib.request.urlopen(self.http + path, timeout=TIMEOUT_S) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()

    def metric(self, line: str) -> float:
        """The value of the metric line that begins so; 0 when there is none."""
        for text in self.get("/metrics")[1].decode().splitlines():
            if text.startswith(line + " "):
                return float(text.rsplit(" ", 1)[1])
        return 0.0

    async def until(self, true: Callable[[], bool], limit_s: float = TIMEOUT_S) -> float:
        """Seconds until a condition holds."""
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        while not true():
            assert loop.time() - started_s < limit_s, "condition never held"
            await asyncio.sleep(0.005)
        return loop.time() - started_s


Serve = Callable[..., Server]


@pytest.fixture(scope="module")
def shared() -> Iterator[Server]:
    """One default server for the tests of a module that leave nothing behind in it."""
    server = Server(
        FakeEngine(speed=50.0, voices=("alice",), fails_on="boom"), ServerConfig(port=0)
    ).start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def built_in(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of one process with the built-in voice, for tests that leave nothing in it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SHOAL_VOICES", str(tmp_path_factory.mktemp("voices")))
        running = ExitStack()
        url = running.enter_context(own_server())
    with running:
        yield url


@pytest.fixture(scope="session")
def make_server() -> Serve:
    """Start a server; who calls this stops it."""
    return lambda engine, **config: Server(engine, ServerConfig(port=0, **config)).start()


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Start servers; keyword arguments are the config's, ``engine`` is a fast fake by default."""
    servers: list[Server] = []

    def start(engine: Engine | None = None, **config: Any) -> Server:
        engine = engine or FakeEngine(speed=50.0, voices=("alice",))
        servers.append(Server(engine, ServerConfig(**{"port": 0, **config})).start())
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Its event loop counts as running until it ends: a module has this or asynchronous tests."""
    from tests.browser import chromium  # most modules need none

    with chromium() as browser:
        yield browser


@pytest.fixture
def visit(browser: Browser) -> Iterator[Callable[..., Page]]:
    """Opens pages of servers, each in a context of its own."""
    from tests.browser import visiting

    with visiting(browser) as visit:
        yield visit


@dataclass
class Heard:
    """What one turn gave, up to its finish or the socket's end."""

    events: list[dict[str, Any]] = field(default_factory=list)
    close_code: int | None = None

    @property
    def chunks(self) -> list[bytes]:
        return [event["audio"] for event in self.events if event["event"] == "audio"]

    @property
    def audio(self) -> bytes:
        return b"".join(self.chunks)

    @property
    def errors(self) -> list[str]:
        return [event["error"] for event in self.events if event["event"] == "error"]

    @property
    def finish(self) -> dict[str, Any] | None:
        return next((e for e in self.events if e["event"] == "finish"), None)

    @property
    def reason(self) -> str | None:
        return self.finish["reason"] if self.finish else None


class Live:
    """One socket."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket

    async def send(self, event: str, **fields: Any) -> None:
        await self.socket.send(msgpack.packb({"event": event, **fields}))

    async def start(self, **request: Any) -> None:
        await self.send("start", request={**PCM, **request})

    async def say(self, *texts: str, **request: Any) -> None:
        """A whole turn's input."""
        await self.start(**request)
        for text in texts:
            await self.send("text", text=text)
        await self.send("stop")

    async def next(self) -> dict[str, Any]:
        frame = await asyncio.wait_for(self.socket.recv(), TIMEOUT_S)
        assert isinstance(frame, bytes), "a text frame would end every SDK session"
        return msgpack.unpackb(frame)

    async def hear(self, until: str = "finish") -> Heard:
        """Read up to an event of this name, or the close."""
        heard = Heard()
        try:
            while not heard.events or heard.events[-1]["event"] != until:
                heard.events.append(await self.next())
        except ConnectionClosed as closed:
            heard.close_code = closed.rcvd.code if closed.rcvd else 1006
        return heard

    async def hear_all(self) -> Heard:
        """Read until the socket is closed."""
        return await self.hear(until="")

    def vanish(self) -> None:
        """Hang up as a killed process does: no close frame, whatever was unread is lost."""
        self.socket.transport.abort()


@asynccontextmanager
async def live(server: Server, query: str = "", **options: Any) -> AsyncIterator[Live]:
    # Nobody waits for a closing handshake here: the server's half of it is tested where it counts.
    options = {"compression": None, "close_timeout": 1, "max_size": None, **options}
    async with connect(server.live + query, **options) as socket:
        yield Live(socket)


@pytest.fixture
def dial() -> Callable[..., Any]:
    """``async with dial(server) as socket``; keyword arguments go to the client library."""
    return live


@pytest.fixture
def body() -> Callable[[bytes], Any]:
    return json.loads

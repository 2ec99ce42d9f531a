"""Who is let in to a replica, when it counts as there, and when it lets its turns out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from shoal.deploy.door import PENDING_S, Door
from shoal.deploy.settings import ReplicaSettings, SettingsError, replica_settings
from shoal.deploy.signals import ReplicaSignal, Signals
from shoal.engine.api import EngineStats
from shoal.engine.fake import FakeEngine
from shoal.realtime.gateway import Gateway
from shoal.realtime.metrics import Metrics


@dataclass
class FakeHub:
    streams: int = 0


@dataclass
class FakeGateway:
    """What the door and the signals see of a gateway."""

    hub: FakeHub = field(default_factory=FakeHub)
    metrics: Metrics = field(default_factory=lambda: Metrics(EngineStats, 4))
    ready: bool = False
    failed: bool = False
    drains: int = 0
    drained: asyncio.Event = field(default_factory=asyncio.Event)
    on_ready: Callable[[], None] = lambda: None
    request_exit: Callable[[], None] = lambda: None

    async def drain(self) -> None:
        self.drains += 1
        self.drained.set()


class App:
    """An ASGI app that takes every socket and keeps it until it is told."""

    def __init__(self) -> None:
        self.calls = 0
        self.release = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.calls += 1
        if scope["type"] == "lifespan":
            await receive()
            await send({"type": "lifespan.startup.complete"})
            return
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b""})
            return
        await receive()
        await send({"type": "websocket.accept"})
        while (await receive())["type"] != "websocket.disconnect":
            pass


class Client:
    """One connection to the door."""

    def __init__(self, door: Door, scope_type: str = "websocket", **scope: Any) -> None:
        self.heard: list[dict[str, Any]] = []
        self._inbox: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        whole = {
            "type": scope_type,
            "path": "/v1/tts/live",
            "headers": [],
            "server": ("127.0.0.1", 30_000),
            "extensions": {"websocket.http.response": {}},
            **scope,
        }
        if scope_type == "websocket":
            self.say("websocket.connect")
        self.task = asyncio.create_task(door(whole, self._inbox.get, self._hear))

    async def _hear(self, message: Any) -> None:
        self.heard.append(message)

    def say(self, kind: str) -> None:
        self._inbox.put_nowait({"type": kind})

    @property
    def kinds(self) -> list[str]:
        return [message["type"] for message in self.heard]


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


async def stays(_host: str, _port: int) -> bool:
    return False


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


@dataclass
class Rig:
    gateway: FakeGateway
    app: App
    clock: Clock
    door: Door


@pytest.fixture
def rig() -> Rig:
    gateway, app, clock = FakeGateway(ready=True), App(), Clock()
    door = Door(app, cast(Gateway, gateway), 2, stays, "r1", clock=clock)
    return Rig(gateway, app, clock, door)


async def test_a_replica_with_room_lets_in_and_says_who_it_is(rig: Rig) -> None:
    client = Client(rig.door)
    await settle()
    assert client.heard[0] == {
        "type": "websocket.accept",
        "headers": [(b"x-shoal-replica", b"r1")],
    }


async def test_a_full_replica_answers_503_before_the_upgrade(rig: Rig) -> None:
    rig.gateway.hub.streams = 2
    client = Client(rig.door)
    await client.task
    assert client.kinds == ["websocket.http.response.start", "websocket.http.response.body"]
    assert client.heard[0]["status"] == 503
    assert (b"retry-after", b"1") in client.heard[0]["headers"]
    assert rig.app.calls == 0 and rig.door.refused == 1


async def test_sockets_count_from_their_upgrade_so_that_a_burst_is_not_let_in(rig: Rig) -> None:
    clients = [Client(rig.door) for _ in range(5)]
    await settle()
    assert [client.kinds[0] for client in clients] == [
        *["websocket.accept"] * 2,
        *["websocket.http.response.start"] * 3,
    ]


async def test_a_socket_that_has_spoken_counts_as_its_turn_alone(rig: Rig) -> None:
    client = Client(rig.door)
    await settle()
    assert rig.door.live_turns == 1
    client.say("websocket.receive")
    rig.gateway.hub.streams = 1
    await settle()
    assert rig.door.live_turns == 1


async def test_a_pooled_socket_takes_no_room(rig: Rig) -> None:
    clients = [Client(rig.door) for _ in range(2)]
    await settle()
    assert rig.door.live_turns == 2
    rig.clock.now_s += PENDING_S + 0.1
    assert rig.door.live_turns == 0
    late = Client(rig.door)
    await settle()
    assert late.kinds == ["websocket.accept"]
    assert all(not client.task.done() for client in clients)


async def test_a_socket_that_goes_leaves_room(rig: Rig) -> None:
    client = Client(rig.door)
    await settle()
    client.say("websocket.disconnect")
    await client.task
    assert rig.door.live_turns == 0


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/v1/tts", 503),
        ("POST", "/v1/audio/speech", 503),
        ("POST", "/v1/text-to-speech/anna/stream", 503),
        ("GET", "/v1/health", 200),
        ("GET", "/metrics", 200),
        ("POST", "/model", 200),
    ],
)
async def test_a_full_replica_still_answers_what_needs_no_slot(
    rig: Rig, method: str, path: str, status: int
) -> None:
    rig.gateway.hub.streams = 2
    client = Client(rig.door, "http", method=method, path=path)
    await client.task
    assert client.heard[0]["status"] == status


async def test_a_replica_is_there_once_a_first_turn_would_be_fast(rig: Rig) -> None:
    rig.gateway.ready = False
    client = Client(rig.door, "lifespan")
    client.say("lifespan.startup")
    await settle()
    assert client.heard == []
    rig.gateway.ready = True
    rig.gateway.on_ready()
    await client.task
    assert client.kinds == ["lifespan.startup.complete"]


async def test_a_replica_whose_engine_dies_early_never_is(rig: Rig) -> None:
    rig.gateway.ready = False
    client = Client(rig.door, "lifespan")
    client.say("lifespan.startup")
    await settle()
    rig.gateway.failed = True
    rig.gateway.request_exit()
    await client.task
    assert client.kinds == ["lifespan.startup.failed"]


async def test_a_replica_that_is_told_to_go_drains_once() -> None:
    asked: list[tuple[str, int]] = []

    async def told(host: str, port: int) -> bool:
        asked.append((host, port))
        if len(asked) == 1:
            raise ConnectionRefusedError
        return True

    gateway, app = FakeGateway(ready=True), App()
    door = Door(app, cast(Gateway, gateway), 2, told, poll_s=0.001)
    clients = [Client(door) for _ in range(2)]
    async with asyncio.timeout(30):
        await gateway.drained.wait()
    await settle()
    assert gateway.drains == 1 and asked == [("127.0.0.1", 30_000)] * 2
    assert all(client.kinds == ["websocket.accept"] for client in clients)


def test_signals_are_of_the_time_since_the_last_ones() -> None:
    gateway, clock = FakeGateway(), Clock()
    door = Door(App(), cast(Gateway, gateway), 4, stays, clock=clock)
    signals = Signals(FakeEngine(slots=4), cast(Gateway, gateway), door, 4, clock)
    gateway.hub.streams = 3
    for reason in ("capacity", "busy", "auth"):
        gateway.metrics.refusals.labels(reason).inc()
    for lead_s in (-0.1, 0.3, 0.3, 0.3):
        gateway.metrics.playout_lead_s.observe(lead_s)
    clock.now_s += 2.0
    assert signals.signal() == ReplicaSignal(3, 4, 0.0, 0.25, 1.0, 0.0)
    clock.now_s += 1.0
    assert signals.signal() == ReplicaSignal(3, 4, 0.0, 0.0, 0.0, 0.0)
    assert set(signals.take()) == set(ReplicaSignal.__dataclass_fields__)


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        ({"slot": 4}, "no setting slot"),
        ({"slots": "4"}, "slots has no usable value"),
        ({"slots": True}, "slots has no usable value"),
        ({"slots": 0}, "slots must be at least 1"),
        ({"engine": "toy"}, "real or fake"),
        ({"drain_s": 0.0}, "positive"),
    ],
)
def test_bad_args_are_named(args: dict[str, Any], problem: str) -> None:
    with pytest.raises(SettingsError, match=problem):
        replica_settings(args)


def test_good_args_are_taken() -> None:
    assert replica_settings({"slots": 8, "drain_s": 60}) == ReplicaSettings(slots=8, drain_s=60)

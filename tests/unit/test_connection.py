"""A socket's frames: large ones are parsed beside the event loop, and in their order."""

from __future__ import annotations

import asyncio
import threading
from collections import deque

import pytest

from shoal.engine.fake import FakeEngine
from shoal.proto.errors import Code, ProtocolError
from shoal.proto.messages import ClientMessage, ServerMessage, Unknown
from shoal.realtime.config import ServerConfig
from shoal.realtime.gateway import Gateway
from shoal.realtime.link import Dialect, Disconnected, Frame, Payload
from shoal.realtime.parsing import LARGE_BYTES

PATIENCE_S = 30.0
LARGE = "x" * (LARGE_BYTES + 1)


class FramesLink:
    """Gives its frames, then hangs up."""

    def __init__(self, *frames: Frame) -> None:
        self._frames = deque(frames)

    async def receive(self) -> Frame:
        if not self._frames:
            raise Disconnected
        return self._frames.popleft()

    async def send(self, payload: Payload) -> None:
        pass

    async def close(self, code: int, reason: str) -> None:
        pass

    def abort(self) -> None:
        pass

    @property
    def backlogged(self) -> bool:
        return False

    def unacknowledged_bytes(self) -> int:
        return 0


class Wire:
    """A dialect that says what it did, by which thread. Large frames wait for ``gate``."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.at_first, self.at_large = asyncio.Event(), asyncio.Event()
        self.parsed: list[tuple[str, bool]] = []
        self.decoded: list[object] = []
        self._here = threading.get_ident()
        self._loop = asyncio.get_running_loop()

    def dialect(self) -> Dialect:
        return Dialect("test", self.decode, self.encode, self.parse)

    def parse(self, frame: Frame) -> Frame:
        name = str(frame)[:3]
        self.parsed.append((name, threading.get_ident() == self._here))
        if name == "xxx":
            self._loop.call_soon_threadsafe(self.at_large.set)
            assert self.gate.wait(PATIENCE_S), "the loop has to go on meanwhile"
        if name == "bad":
            raise ProtocolError(Code.MALFORMED, "bad frame")
        return Unknown()

    def decode(self, frame: Frame) -> ClientMessage:
        assert isinstance(frame, Unknown) and threading.get_ident() == self._here
        self.decoded.append(frame)
        self.at_first.set()
        return frame

    def encode(self, message: ServerMessage, time_ms: int | None) -> list[Payload]:
        return [type(message).__name__]


@pytest.fixture
async def gateway() -> Gateway:
    gateway = Gateway(FakeEngine(), ServerConfig())
    gateway.run()
    return gateway


async def test_a_large_frame_holds_up_its_own_socket_alone(gateway: Gateway) -> None:
    slow, quick = Wire(), Wire()
    link = FramesLink("one", LARGE, "two")
    serving = asyncio.create_task(gateway.serve(link, slow.dialect(), None, False))
    async with asyncio.timeout(PATIENCE_S):
        await slow.at_large.wait()
    other = FramesLink("one", "bad" * LARGE_BYTES, "two")
    also = asyncio.create_task(gateway.serve(other, quick.dialect(), None, False))
    async with asyncio.timeout(PATIENCE_S):
        await quick.at_first.wait()
    assert slow.parsed == [("one", True), ("xxx", False)] and len(slow.decoded) == 1
    slow.gate.set()
    await asyncio.gather(serving, also)
    assert slow.parsed[2:] == [("two", True)] and len(slow.decoded) == 3
    # One that cannot be parsed there is answered as ever.
    assert quick.parsed == [("one", True), ("bad", False), ("two", True)]
    assert len(quick.decoded) == 2
    refused = f'shoal_refusals_total{{reason="{Code.MALFORMED.value}"}} 1.0'
    assert refused in gateway.metrics.page().decode()
    await gateway.stop()

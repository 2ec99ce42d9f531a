"""What is written when: in order, never into a transport that is behind, and before a close."""

from __future__ import annotations

import asyncio

import pytest

from shoal.realtime.link import Disconnected
from shoal.realtime.outbox import Kind, Outgoing
from shoal.realtime.writer import Writer


class FakeSocket:
    """A socket whose peer acknowledges and reads when the test says so."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.closed: tuple[int, str] | None = None
        self.backlogged = False
        self.unacknowledged = 0
        self.gone = False
        self.acknowledges = True

    async def send(self, payload: bytes) -> None:
        if self.gone:
            raise Disconnected
        self.sent.append(payload)
        if not self.acknowledges:
            self.unacknowledged += len(payload)

    async def close(self, code: int, reason: str) -> None:
        self.closed = (code, reason)

    def unacknowledged_bytes(self) -> int:
        return self.unacknowledged


class Desk:
    """A running writer and what it told."""

    def __init__(self) -> None:
        self.socket = FakeSocket()
        self.told: list[bytes] = []
        self.flow: list[bool] = []
        self.writer = Writer(
            self.socket,  # type: ignore[arg-type]
            lambda item: self.told.append(item.payload),
            self.flow.append,
        )
        self.task = asyncio.create_task(self.writer.run())

    async def settle(self, seconds: float = 0.0) -> None:
        for _ in range(5):
            await asyncio.sleep(0)
        await asyncio.sleep(seconds)

    async def until_sent(self, count: int) -> None:
        async with asyncio.timeout(30):
            while len(self.socket.sent) < count:
                await self.settle(0.01)
        await self.settle()

    async def end(self) -> None:
        self.task.cancel()
        await asyncio.wait([self.task])


def audio(payload: bytes, audio_s: float = 0.1) -> Outgoing:
    return Outgoing(payload, Kind.AUDIO, audio_s)


async def test_messages_are_sent_in_order_and_each_is_told() -> None:
    desk = Desk()
    for payload in (b"a", b"b"):
        desk.writer.push(audio(payload))
    await desk.settle()
    desk.writer.push(audio(b"c"))
    await desk.settle()
    assert desk.socket.sent == desk.told == [b"a", b"b", b"c"]
    await desk.end()


async def test_nothing_enters_a_transport_that_is_behind_so_that_it_can_be_dropped() -> None:
    desk = Desk()
    desk.socket.backlogged = True
    desk.writer.push(audio(b"old"))
    await desk.settle(0.05)
    assert desk.socket.sent == []
    desk.writer.drop_turn()
    desk.socket.backlogged = False
    desk.writer.push(audio(b"new"))
    await desk.until_sent(1)
    assert desk.socket.sent == [b"new"]
    await desk.end()


async def test_a_peer_that_acknowledges_nothing_gets_two_seconds_and_the_engine_is_paused() -> None:
    desk = Desk()
    desk.socket.acknowledges = False
    for number in range(8):
        desk.writer.expect(1.0)
        desk.writer.encoded(1.0)
        desk.writer.push(audio(b"%d" % number, 1.0))
    await desk.settle(0.03)
    assert desk.socket.sent == [b"0", b"1"]
    assert desk.flow == [True]
    desk.socket.acknowledges, desk.socket.unacknowledged = True, 0
    await desk.until_sent(8)  # nobody wakes it: it looks again by itself
    assert len(desk.socket.sent) == 8
    assert desk.flow == [True, False]
    await desk.end()


async def test_a_close_comes_after_everything_before_it() -> None:
    desk = Desk()
    desk.writer.push(audio(b"last"))
    desk.writer.close(1000, "done")
    await asyncio.wait_for(desk.task, 30)
    assert desk.socket.sent == [b"last"] and desk.socket.closed == (1000, "done")


async def test_a_peer_that_is_gone_ends_it() -> None:
    desk = Desk()
    desk.socket.gone = True
    desk.writer.push(audio(b"x"))
    with pytest.raises(Disconnected):
        await asyncio.wait_for(desk.task, 30)
    assert desk.told == []

"""Clients that cost next to nothing, so that a bench on one machine measures its server.

``speak_all`` is the body of a client process: live sockets on one event loop, each turn after turn.
They mask with zeros, look at no more of a frame than its kind, and play nothing.
"""

from __future__ import annotations

import asyncio
import base64
import os
import random
import time
from dataclasses import dataclass, field

from shoal.proto.codec import encode_start, encode_stop, encode_text

_AUDIO = b"\xa5event\xa5audio"
_FINISH = b"\xa5event\xa6finish"
_OVERHEAD_BYTES = 32
_TEXT = "She opened the window and listened to the rain that fell on the roof. "


@dataclass(frozen=True, slots=True)
class Crowd:
    """What a process of clients does. ``realtime``: a turn follows when the one before was heard,
    and ``think_s`` (on average) later; otherwise at once. Times are the monotonic clock's."""

    port: int
    users: int
    realtime: bool
    think_s: float
    rate: int
    format: str
    begin_s: float
    spread_s: float
    stop_s: float
    seed: int


@dataclass(slots=True)
class Heard:
    """What the users of a process got; ``ttfa_s`` with when the turn began."""

    ttfa_s: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    messages: list[tuple[float, int]] = field(default_factory=list[tuple[float, int]])
    late_s: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    """How long a player without any buffer stood still in a turn."""
    failed: int = 0


class _User:
    def __init__(self, crowd: Crowd, number: int, heard: Heard) -> None:
        self._crowd = crowd
        self._heard = heard
        self._random = random.Random(crowd.seed * 1000 + number)
        self._byte_rate = 2 * crowd.rate

    async def run(self, delay_s: float) -> None:
        await asyncio.sleep(max(0.0, self._crowd.begin_s - time.monotonic()) + delay_s)
        reader, writer = await asyncio.open_connection("127.0.0.1", self._crowd.port, limit=1 << 18)
        key = base64.b64encode(os.urandom(16)).decode()
        writer.write(
            f"GET /v1/tts/live HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Authorization: Bearer x\r\nSec-WebSocket-Key: {key}\r\n"
            f"Sec-WebSocket-Version: 13\r\n\r\n".encode()
        )
        answer = await reader.readuntil(b"\r\n\r\n")
        if b" 101 " not in answer.split(b"\r\n", 1)[0]:
            self._heard.failed += 1
            return
        try:
            while time.monotonic() < self._crowd.stop_s:
                await self._turn(reader, writer)
        finally:
            writer.transport.abort()

    async def _turn(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        crowd = self._crowd
        settings = {"text": "", "format": crowd.format, "sample_rate": crowd.rate, "latency": "low"}
        _send(writer, encode_start(settings))
        await asyncio.sleep(0.05)
        begun_s = time.monotonic()
        _send(writer, encode_text(_TEXT))
        _send(writer, encode_stop())
        first_s = 0.0
        played_until_s, late_s = 0.0, 0.0
        while True:
            kind, size = await _message(reader)
            now = time.monotonic()
            if kind == "audio":
                if not first_s:
                    first_s = played_until_s = now
                    self._heard.ttfa_s.append((begun_s, now - begun_s))
                if now > played_until_s:
                    late_s += now - played_until_s
                    played_until_s = now
                played_until_s += (size - _OVERHEAD_BYTES) / self._byte_rate
                self._heard.messages.append((now, size))
            elif kind == "finish":
                break
            elif kind == "closed":
                self._heard.failed += 1
                await asyncio.sleep(0.5)
                return
        self._heard.late_s.append((begun_s, late_s))
        if crowd.realtime:
            think_s = self._random.uniform(0.5, 1.5) * crowd.think_s
            await asyncio.sleep(max(0.0, played_until_s - time.monotonic()) + think_s)


def _send(writer: asyncio.StreamWriter, payload: bytes) -> None:
    size = len(payload)
    head = bytes((0x82, 0x80 | size)) if size < 126 else b"\x82\xfe" + size.to_bytes(2, "big")
    writer.write(head + bytes(4) + payload)


async def _message(reader: asyncio.StreamReader) -> tuple[str, int]:
    """The next frame's kind and bytes."""
    while True:
        head = await reader.readexactly(2)
        size = head[1]
        if size == 126:
            size = int.from_bytes(await reader.readexactly(2), "big")
        elif size == 127:
            size = int.from_bytes(await reader.readexactly(8), "big")
        payload = await reader.readexactly(size)
        if head[0] & 15 == 8:
            return "closed", size
        if head[0] & 15 == 2:
            kind = "audio" if _AUDIO in payload[:32] else "finish" if _FINISH in payload else "note"
            return kind, size


def speak_all(crowd: Crowd) -> Heard:
    """Until ``stop_s``, and the turns begun before are over."""
    heard = Heard()

    async def run() -> None:
        users = [_User(crowd, number, heard) for number in range(crowd.users)]
        ends = [
            user.run(crowd.spread_s * number / crowd.users) for number, user in enumerate(users)
        ]
        for end in await asyncio.gather(*ends, return_exceptions=True):
            heard.failed += isinstance(end, (OSError, EOFError, asyncio.IncompleteReadError))

    try:
        import uvloop

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(run())
    except ImportError:
        asyncio.run(run())
    return heard

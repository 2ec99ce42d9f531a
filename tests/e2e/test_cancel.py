"""Barge-in, and sockets that go away: no stale audio, no slot held, at any moment."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgpack
import pytest

from shoal.engine.fake import FakeEngine
from shoal.engine.fake_tone import tone

Serve = Callable[..., Any]
Dial = Callable[..., Any]
LONG = "a" * 600  # 36 s of tone
FREE_S = 3.0  # a second on a machine that has one to give; speaking on takes seven
"""How soon a slot must be free after its socket is gone."""


def expected(text: str) -> bytes:
    return tone(text, "", 0, 24_000, 1_200)


def idle(server: Any) -> Callable[[], bool]:
    def is_idle() -> bool:
        stats = server.engine.stats()
        return stats.slots_busy == 0 and stats.streams_open == 0

    return is_idle


def speaking(server: Any) -> Callable[[], bool]:
    return lambda: server.engine.stats().slots_busy > 0


@pytest.mark.field_row(8)
async def test_a_second_start_is_heard_and_nothing_of_the_first(serve: Serve, dial: Dial) -> None:
    """pipecat#754, #4099, #793; the client reads up to its own start, then only the new turn."""
    server = serve(FakeEngine(slots=1, speed=4.0))
    async with dial(server) as socket:
        await socket.say(LONG)
        await socket.next()
        await socket.say("Hello.", format="wav")
        heard = await socket.hear()
        # What was on the wire before the server read the start comes first; a header marks the
        # new turn, and after it not one byte of the old one.
        stale, _, fresh = heard.audio.partition(b"RIFF")
        assert heard.reason == "stop"
        assert fresh[40:] == expected("Hello.")
        assert len(stale) < 2 * 24_000 * 3
    await server.until(idle(server))


async def test_turns_that_are_cut_off_one_after_another(serve: Serve, dial: Dial) -> None:
    server = serve(FakeEngine(slots=1, speed=20.0))
    async with dial(server) as socket:
        for _ in range(20):
            await socket.start()
            await socket.send("text", text=LONG)
            await socket.send("stop")
        await socket.say("Hello.", format="wav")
        heard = await socket.hear()
        assert heard.audio.partition(b"RIFF")[2][40:] == expected("Hello.")
        assert [e["event"] for e in heard.events].count("finish") == 1
    assert server.metric('shoal_turns_ended_total{end="cancelled"}') == 20


@pytest.mark.field_row(9, 22)
async def test_pipecat_s_barge_in_frees_the_slot(serve: Serve, dial: Dial) -> None:
    """Stop, close, reconnect, start: with one slot the next turn must find it free."""
    server = serve(FakeEngine(slots=1, speed=4.0, wait_s=3.0))  # a third of what was to be said
    async with dial(server) as socket:
        await socket.start()
        await socket.send("text", text=LONG)
        await socket.send("flush")
        await socket.next()
        await socket.send("stop")
        await socket.socket.close()
    async with dial(server) as socket:
        await socket.say("Hello.")
        heard = await socket.hear()
        assert (heard.reason, heard.audio) == ("stop", expected("Hello."))


STAGES = ["connected", "started", "text", "audio", "stopped", "finished"]


async def reach(socket: Any, stage: str) -> None:
    steps = STAGES.index(stage)
    if steps >= 1:
        await socket.start()
    if steps == 2:
        await socket.send("text", text="not yet a sent")
    if steps >= 3:
        await socket.send("text", text="Hello." if stage == "finished" else LONG)
        await socket.send("stop" if steps >= 4 else "flush")
        await (socket.hear() if stage == "finished" else socket.next())


@pytest.mark.field_row(7)
@pytest.mark.parametrize("how", ["vanish", "close"])
@pytest.mark.parametrize("stage", STAGES)
async def test_a_socket_that_goes_away_in_any_state_frees_everything(
    serve: Serve, dial: Dial, stage: str, how: str
) -> None:
    """pocket-tts#238, livekit/agents#2010, deepgram-python-sdk#726: no ghosts."""
    server = serve(FakeEngine(slots=1, speed=5.0))
    async with dial(server) as socket:
        await reach(socket, stage)
        if stage in ("audio", "stopped"):
            assert server.engine.stats().slots_busy == 1
        if how == "vanish":
            socket.vanish()
        else:
            await socket.socket.close()
    assert await server.until(idle(server), FREE_S) < FREE_S
    await server.until(lambda: server.metric("shoal_sockets") == 0, FREE_S)
    assert server.metric("shoal_turns") == 0
    assert server.server.gateway.hub.streams == 0


async def test_a_stalled_reader_that_vanishes_frees_its_slot(serve: Serve, dial: Dial) -> None:
    """Our bytes still wait for it when it goes, which must not delay noticing."""
    server = serve(FakeEngine(slots=1, speed=200.0))
    async with dial(server, max_queue=1) as socket:
        await socket.say("a" * 20_000)
        await server.until(lambda: server.metric("shoal_turns_paused") == 1)
        socket.vanish()
    assert await server.until(idle(server), FREE_S) < FREE_S
    await server.until(lambda: server.metric("shoal_sockets") == 0, FREE_S)


async def test_a_peer_that_half_closes_while_our_bytes_wait_is_gone(serve: Serve) -> None:
    server = serve(FakeEngine(slots=1, speed=200.0))
    _, writer = await raw_socket(server)
    writer.write(frame({"event": "start", "request": {"format": "pcm"}}))
    writer.write(frame({"event": "text", "text": "a" * 20_000}) + frame({"event": "stop"}))
    await server.until(lambda: server.metric("shoal_turns_paused") == 1)
    writer.write_eof()
    assert await server.until(idle(server), FREE_S) < FREE_S
    writer.transport.abort()


@pytest.mark.field_row(21)
async def test_a_hundred_connects_starts_and_aborts(serve: Serve, dial: Dial) -> None:
    server = serve(FakeEngine(slots=2, speed=50.0))

    async def abort_one(number: int) -> None:
        async with dial(server) as socket:
            await reach(socket, STAGES[number % 5])
            socket.vanish()

    for batch in range(10):
        await asyncio.gather(*(abort_one(batch * 10 + i) for i in range(10)))
    await server.until(idle(server))
    await server.until(lambda: server.metric("shoal_sockets") == 0)
    async with dial(server) as socket:
        await socket.say("Hello.")
        assert (await socket.hear()).reason == "stop"


# A client without a library, for what a library would not do ------------------------------------


def frame(event: dict[str, Any]) -> bytes:
    payload = msgpack.packb(event)
    size = len(payload)
    length = bytes((0x80 | size,)) if size < 126 else b"\xfe" + size.to_bytes(2, "big")
    return b"\x82" + length + bytes(4) + payload  # masked with zeros


async def raw_socket(server: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Upgraded, and reading nothing more than a small buffer's worth."""
    host, port = server.http.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=1024)
    writer.write(
        b"GET /v1/tts/live HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    )
    head = await reader.readuntil(b"\r\n\r\n")
    assert b" 101 " in head
    return reader, writer

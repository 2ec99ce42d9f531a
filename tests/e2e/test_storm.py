"""Many clients at once that do everything a client may, at random: all ends, nothing is left."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest

from shoal.engine.fake import FakeEngine
from shoal.engine.fake_tone import tone

Serve = Callable[..., Any]
Dial = Callable[..., Any]
SENTENCES = ("Hello there.", "A longer sentence it is, with a comma.", "Yes.", "Number 17 now!")
FORMATS = (
    ("pcm", 24_000, 2),
    ("pcm", 16_000, 2),
    ("wav", 44_100, 2),
    ("opus", 48_000, 0),
    ("mp3", 44_100, 0),
    ("ulaw", 8000, 1),
)
"""Name, rate, and bytes a sample where they are always as many."""
NOTHING = ("", "  \n", "... !?", "😀")
CLIENTS, ACTS = 12, 6


async def _turn(socket: Any, chance: random.Random) -> tuple[float, int]:
    """Say some sentences, in pieces and with flushes; how many seconds of tone they are, and bytes
    a second of what comes (0: nobody knows)."""
    sentences = [chance.choice(SENTENCES) for _ in range(chance.choice((1, 2, 10)))]
    speed = chance.choice((0.5, 1.0, 1.0, 2.0))
    prosody = {"speed": speed, "normalize_loudness": chance.random() < 0.5}
    name, rate, size = chance.choice(FORMATS)
    await socket.start(format=name, sample_rate=rate, prosody=prosody)
    for sentence in sentences:
        words = sentence.split() if chance.random() < 0.3 else [sentence]
        for word in words:
            await socket.send("text", text=word + " ")
        if chance.random() < 0.3:
            await socket.send("flush", **({"id": "x"} if chance.random() < 0.5 else {}))
    seconds = sum(len(tone(one, "", 0, 24_000, 1_200)) for one in sentences) / 48_000 / speed
    return seconds, rate * size


async def _client(dial: Dial, server: Any, chance: random.Random) -> int:
    """A few turns on a few sockets; how many were heard to their end."""
    ended, acts = 0, ACTS
    while acts > 0:
        slow_s = chance.choice((0.0, 0.0, 0.0, 0.02))
        async with dial(server, max_queue=1 if slow_s else 16) as socket:
            while acts > 0:
                acts -= 1
                seconds, rate = 0.0, 0
                act = chance.choice(("whole", "whole", "cancel", "again", "gone", "nothing"))
                if act == "nothing":
                    await socket.start(format=chance.choice(FORMATS)[0], sample_rate=None)
                    await socket.send("text", text=chance.choice(NOTHING))
                else:
                    seconds, rate = await _turn(socket, chance)
                if act in ("cancel", "again", "gone"):
                    await asyncio.sleep(chance.random() * 0.3)
                if act == "gone":
                    socket.vanish()
                    break
                if act == "cancel":
                    await socket.send("cancel")
                    await _heard(socket, "cancelled", slow_s)
                    continue
                if act == "again":
                    await socket.start()
                    await socket.send("text", text="Once more.")
                await socket.send("stop")
                heard = await _heard(socket, "finish", slow_s)
                if act == "whole" and rate:
                    assert heard / rate == pytest.approx(seconds, rel=0.02, abs=0.1)
                ended += 1
    return ended


async def _heard(socket: Any, end: str, slow_s: float) -> int:
    """Bytes of sound up to the event that is called so."""
    heard = 0
    while (event := await socket.next())["event"] != end:
        assert event["event"] != "error" and event.get("reason") != "error", event
        heard += len(event.get("audio", b""))
        await asyncio.sleep(slow_s)
    assert event.get("reason") != "error", event
    return heard


@pytest.mark.parametrize("seed", range(2))
async def test_a_storm_passes_and_leaves_nothing_behind(
    serve: Serve, dial: Dial, seed: int
) -> None:
    engine = FakeEngine(slots=4, speed=60.0, wait_s=60.0, max_waiting=100)
    server = serve(engine)
    clients = [
        _client(dial, server, random.Random(f"{seed} {number}")) for number in range(CLIENTS)
    ]
    ended = await asyncio.gather(*clients)
    assert sum(ended) > CLIENTS
    await server.until(lambda: server.metric("shoal_sockets") == 0)
    for left in ("shoal_turns", "shoal_turns_paused", "shoal_batch_turns"):
        assert server.metric(left) == 0, left
    await server.until(lambda: engine.stats().streams_open == 0)
    hub = server.server.gateway.hub
    await server.until(lambda: not (hub._later or hub._first or hub._soonest or hub._receivers))

"""Clients of the multiplexed dialects that misbehave, and those beside them who must not notice."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest

from shoal.engine.fake import FakeEngine
from tests.dialects import CARTESIA, MULTI, SPEAK, request, wire, words

Serve = Callable[..., Any]
Dial = Callable[..., Any]
LONG = "This sentence is here to waste the time of others. " * 40


@pytest.mark.parametrize("path", [MULTI, CARTESIA], ids=["elevenlabs", "cartesia"])
async def test_a_thousand_contexts_that_nobody_reads_leave_room_for_others(
    serve: Serve, dial: Dial, path: str
) -> None:
    server = serve(FakeEngine(slots=4, speed=20.0, wait_s=0.2, voices=("alice",)))
    async with wire(server, path, max_queue=1) as abuser:
        abuser.socket.transport.pause_reading()
        for n in range(1000):
            message = words(LONG, f"c{n}", flush=True) if path == MULTI else request(LONG, f"c{n}")
            await asyncio.wait_for(abuser.send(message), 30)
            if n == 20:  # as many as may be open, and some that are refused
                await server.until(lambda: server.engine.stats().slots_busy >= 2)
        async with dial(server, "?pool=1") as neighbour:
            for _ in range(5):
                await neighbour.say("One two.")
                heard = await neighbour.hear()
                assert heard.reason == "stop" and heard.audio
        assert server.engine.stats().streams_open <= 16
        abuser.socket.transport.abort()
    await server.until(lambda: server.engine.stats().streams_open == 0)


async def test_contexts_beyond_half_the_slots_still_speak(serve: Serve) -> None:
    server = serve(FakeEngine(slots=2, speed=50.0, voices=("alice",)))
    async with wire(server, MULTI) as client:
        for n in range(12):
            await client.send(words("One two.", f"c{n}", flush=True))
            await client.send({"context_id": f"c{n}", "close_context": True})
        over: set[str] = set()
        while len(over) < 12:
            message = await client.next()
            assert "error" not in message
            if message["isFinal"]:
                over.add(message["contextId"])


@pytest.mark.parametrize("path", [MULTI, CARTESIA], ids=["elevenlabs", "cartesia"])
async def test_cancels_without_end_are_not_kept(serve: Serve, path: str) -> None:
    """Of one context that is closed while another of its name still sounds."""
    server = serve(FakeEngine(slots=2, speed=1.0, voices=("alice",)))
    cancel = {"context_id": "a", "close_context": True, "cancel": True}
    async with wire(server, path) as client:
        say = words if path == MULTI else request
        await client.send(say(LONG, flush=True), say("again"), *[cancel] * 500)
        await client.send(say("More.", flush=True), *[cancel] * 500)
        pong = await client.socket.ping()
        await asyncio.wait_for(pong, 30)
        await server.until(lambda: server.engine.stats().streams_open == 0)


@pytest.mark.parametrize(
    "path", [MULTI, CARTESIA, SPEAK], ids=["elevenlabs", "cartesia", "deepgram"]
)
async def test_contexts_that_come_and_go_leave_nothing(serve: Serve, path: str) -> None:
    server = serve(FakeEngine(slots=4, speed=200.0, voices=("alice",)))

    async def churn(seed: int) -> None:
        chance = random.Random(seed)
        async with wire(server, path) as client:
            reading = asyncio.create_task(client.close_code())
            for _ in range(80):
                name, end = f"c{chance.randrange(4)}", chance.random() < 0.5
                if path == MULTI:
                    await client.send(words("One two. ", name, flush=chance.random() < 0.5))
                    await client.send(*[{"context_id": name, "close_context": True}] * end)
                elif path == CARTESIA:
                    await client.send(request("One two. ", name, **{"continue": not end}))
                    if chance.random() < 0.3:
                        await client.send({"context_id": name, "cancel": True})
                else:
                    await client.send({"type": "Speak", "text": "One two. "})
                    await client.send({"type": chance.choice(["Flush", "Clear", "Flush"])})
            pong = await client.socket.ping()
            await asyncio.wait_for(pong, 30)
            assert not reading.done()
            reading.cancel()

    await asyncio.gather(*(churn(seed) for seed in range(4)))
    await server.until(lambda: server.engine.stats().streams_open == 0)
    await server.until(lambda: server.engine.stats().slots_busy == 0)
    assert server.metric('shoal_errors_total{fault="engine"}') == 0

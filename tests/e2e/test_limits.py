"""Full houses, slow readers and busy loops: what is bounded, and who is not disturbed by it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus

from shoal.engine.fake import FakeEngine

Serve = Callable[..., Any]
Dial = Callable[..., Any]
LONG = "a" * 2000  # two minutes of tone
QUEUE_BOUND_S = 12.0
"""5 s held here, two of them on the wire, and what the kernel of a reader that reads nothing has
room for: some 100 KB, which is 2 s of pcm."""
OPUS_QUEUE_BOUND_S = 45.0
"""The same 100 KB at 3 KB a second."""


async def refused(dial: Dial, server: Any, query: str = "", **options: Any) -> InvalidStatus:
    with pytest.raises(InvalidStatus) as caught:
        async with dial(server, query, **options):
            pass
    return caught.value


async def parked(server: Any) -> int:
    """Wait until a stalled reader's turn is paused for good; the frames made up to then."""
    while True:
        frames, paused = server.engine.stats().frames, server.metric("shoal_turns_paused")
        await asyncio.sleep(0.3)  # a reader's kernel takes a while to say that it is full
        # Paused all the while: that an engine which got no processor made nothing says little.
        if paused == server.metric("shoal_turns_paused") == 1:
            if frames == server.engine.stats().frames:
                return frames


# Full -------------------------------------------------------------------------------------------


async def test_too_many_sockets_are_refused_before_the_upgrade(
    serve: Serve, dial: Dial, body: Callable[[bytes], Any]
) -> None:
    server = serve(max_sockets=2)
    async with dial(server), dial(server):
        response = (await refused(dial, server)).response
        assert response.status_code == 429
        assert response.headers["Retry-After"] == "1"
        # The legacy SDK splats this object: exactly these keys.
        assert body(response.body) == {"status": 429, "message": "Too many connections"}
    await server.until(lambda: server.metric("shoal_sockets") == 0)
    async with dial(server) as socket:
        await socket.say("Hello.")
        assert (await socket.hear()).reason == "stop"
    assert server.metric('shoal_refusals_total{reason="sockets"}') == 1


@pytest.mark.field_row(13)
async def test_a_full_engine_refuses_in_the_session_after_a_bounded_wait(
    serve: Serve, dial: Dial
) -> None:
    server = serve(FakeEngine(slots=1, speed=1.0, wait_s=0.2))
    async with dial(server) as first, dial(server) as second:
        await first.say(LONG)
        await first.next()
        started_s = time.monotonic()
        await second.say("Hello.")
        heard = await second.hear_all()
        assert 0.1 < time.monotonic() - started_s < 3.0  # when pipecat gives up
        assert heard.close_code == 1013
        assert [event["event"] for event in heard.events] == ["error", "finish"]
        assert heard.events[0]["max_concurrency"] == 1
        assert heard.reason == "error" and heard.finish["message"]
        assert (await first.next())["event"] == "audio"  # the one that speaks is not disturbed
    assert server.metric('shoal_refusals_total{reason="busy"}') == 1


@pytest.mark.field_row(23)
async def test_idle_sockets_hold_no_slot(serve: Serve, dial: Dial) -> None:
    server = serve(FakeEngine(slots=1, speed=50.0, wait_s=0.2))
    async with dial(server) as idle, dial(server) as started, dial(server) as third:
        await started.start()
        await started.send("text", text="not yet a sent")
        await third.say("Hello.")
        assert (await third.hear()).reason == "stop"
        await idle.say("Hello.")
        assert (await idle.hear()).reason == "stop"


# A reader that stops reading --------------------------------------------------------------------


@pytest.mark.field_row(38)
@pytest.mark.parametrize(
    ("request_", "bound_s"),
    [
        ({}, QUEUE_BOUND_S),
        ({"format": "opus", "sample_rate": 48_000, "opus_bitrate": 24}, OPUS_QUEUE_BOUND_S),
    ],
)
async def test_a_reader_that_stops_stops_its_generation(
    serve: Serve, dial: Dial, request_: dict[str, Any], bound_s: float
) -> None:
    """elizaOS#31953, and LiveKit's way of cancelling: it just does not read any more."""
    server = serve(FakeEngine(slots=2, speed=100.0))
    async with dial(server, max_queue=1) as stalled, dial(server) as other:
        await stalled.say(LONG, **request_)
        frames = await parked(server)
        assert frames * 0.05 < bound_s
        await other.say("Hello.")
        assert (await other.hear()).reason == "stop"
        others = 7  # frames of "Hello." and one step that was under way
        assert server.engine.stats().frames <= frames + others
        # And when it reads again, it gets all of it.
        heard = await stalled.hear()
        assert heard.reason == "stop"
        if not request_:
            assert len(heard.audio) / 48_000 == pytest.approx(len(LONG) * 0.06, rel=0.01)


async def test_a_stalled_reader_that_closes_is_answered_and_done(serve: Serve, dial: Dial) -> None:
    server = serve(FakeEngine(slots=1, speed=100.0))
    async with dial(server, max_queue=1, close_timeout=60) as stalled:
        await stalled.say(LONG)
        await server.until(lambda: server.metric("shoal_turns_paused") == 1)
        closing = asyncio.create_task(stalled.socket.close())
        with pytest.raises(ConnectionClosed):
            while True:
                await stalled.next()  # what was on its way
        await closing
        assert stalled.socket.close_code == 1000
    await server.until(lambda: server.engine.stats().streams_open == 0)


async def test_a_new_start_of_a_stalled_reader_drops_what_waited(serve: Serve, dial: Dial) -> None:
    server = serve(FakeEngine(slots=1, speed=100.0))
    async with dial(server, max_queue=1) as socket:
        await socket.say(LONG)
        await server.until(lambda: server.metric("shoal_turns_paused") == 1)
        await socket.say("Hello.", format="wav")
        heard = await socket.hear()
        stale = heard.audio.partition(b"RIFF")[0]
        assert len(stale) / 48_000 < QUEUE_BOUND_S - 5.0  # the wire, and nothing of the outbox
        assert server.metric("shoal_turns_paused") == 0


async def test_a_reader_that_never_reads_what_precedes_a_close_is_cut_off(
    serve: Serve, dial: Dial
) -> None:
    server = serve(FakeEngine(slots=1, speed=100.0), send_stall_s=0.3)
    async with dial(server, max_queue=1) as socket:
        await socket.say(LONG)
        await server.until(lambda: server.metric("shoal_turns_paused") == 1)
        await socket.socket.send(b"\xc1")  # no MessagePack: the end, behind seconds of audio
        await server.until(lambda: server.metric("shoal_sockets") == 0, 5.0)  # and not after 10


async def test_errors_that_nobody_reads_are_bounded(serve: Serve, dial: Dial) -> None:
    server = serve(FakeEngine(slots=1, speed=100.0))
    async with dial(server, max_queue=1) as socket:
        await socket.say(LONG)
        await server.until(lambda: server.metric("shoal_turns_paused") == 1)
        with contextlib.suppress(ConnectionClosed):
            for _ in range(500):
                await socket.socket.send(b"\x80")
                await asyncio.sleep(0)
        await server.until(lambda: server.metric("shoal_sockets") == 0)


# The loop stays free ----------------------------------------------------------------------------


@pytest.mark.field_row(14, 16)
async def test_pongs_come_at_once_while_all_slots_speak(serve: Serve, dial: Dial) -> None:
    """fish-audio-python#47, FunASR#3533; httpx-ws#50: the payload comes back as it was."""
    server = serve(FakeEngine(slots=8, speed=4.0))

    async def listener() -> None:
        async with dial(server) as socket:
            await socket.say("a" * 100, format="opus", sample_rate=48_000)
            assert (await socket.hear()).reason == "stop"

    listeners = [asyncio.create_task(listener()) for _ in range(8)]
    took_s: list[float] = []
    async with dial(server) as socket:
        for _ in range(50):
            took_s.append(await (await socket.socket.ping(b"\x00payload")))
            await asyncio.sleep(0.02)
    await asyncio.gather(*listeners)
    # The machine that runs this is shared, so hogs of its own are forgiven.
    assert sorted(took_s)[40] < 0.1


async def test_a_flood_of_small_frames_does_not_starve_others(serve: Serve, dial: Dial) -> None:
    server = serve(FakeEngine(slots=2, speed=50.0))
    async with dial(server) as flooder, dial(server) as socket:
        await flooder.start()

        async def flood() -> None:
            for _ in range(5000):
                await flooder.send("text", text="a")

        task = asyncio.create_task(flood())
        await socket.say("Hello.")
        assert (await socket.hear()).reason == "stop"
        await task


async def test_a_slow_reader_in_real_time_is_served_to_the_end(serve: Serve, dial: Dial) -> None:
    server = serve(FakeEngine(slots=1, speed=100.0))
    async with dial(server, max_queue=1) as socket:
        await socket.say("a" * 250)  # 15 s
        received = 0
        while (event := await socket.next())["event"] != "finish":
            received += len(event["audio"])
            await asyncio.sleep(len(event["audio"]) / 48_000 / 10)  # ten times real time
        assert received / 48_000 == pytest.approx(15.0, rel=0.01)


# Handshake --------------------------------------------------------------------------------------


async def test_deflate_is_declined(serve: Serve, dial: Dial) -> None:
    async with dial(serve(), compression="deflate") as socket:
        assert "Sec-WebSocket-Extensions" not in socket.socket.response.headers
        assert socket.socket.response.headers["x-shoal-model"] == "fake-tone"
        await socket.say("Hello.")
        assert (await socket.hear()).reason == "stop"


@pytest.mark.parametrize(
    ("headers", "query", "status"),
    [
        ({}, "", 401),
        ({"Authorization": "Bearer wrong"}, "", 401),
        ({"Authorization": "Basic right"}, "", 401),
        ({"Authorization": "Bearer right"}, "", 101),
        ({"authorization": "bearer second"}, "", 101),
        ({}, "?api_key=right", 101),
        ({}, "?token=wrong", 401),
    ],
)
async def test_keys_are_checked_before_the_upgrade(
    serve: Serve,
    dial: Dial,
    body: Callable[[bytes], Any],
    headers: dict[str, str],
    query: str,
    status: int,
) -> None:
    server = serve(api_keys=("right", "second"))
    if status == 101:
        async with dial(server, query, additional_headers=headers) as socket:
            await socket.say("Hello.")
            assert (await socket.hear()).reason == "stop"
    else:
        error = await refused(dial, server, query, additional_headers=headers)
        assert error.response.status_code == status
        assert body(error.response.body) == {
            "status": 401,
            "message": "Invalid or missing API key",
        }


async def test_a_web_page_elsewhere_may_not_use_a_server_without_keys(
    serve: Serve, dial: Dial
) -> None:
    server = serve()
    assert (await refused(dial, server, origin="https://evil.example")).response.status_code == 403
    async with dial(server, origin=server.http):
        pass
    async with dial(serve(allow_origins=("https://ok.example",)), origin="https://ok.example"):
        pass

"""From warm-up to drain: health, metrics, grace, keep-alive, logs, signals, a dead engine."""

from __future__ import annotations

import asyncio
import io
import os
import re
import signal
import socket as sockets
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from websockets.exceptions import InvalidStatus

from shoal.engine.api import Deliver, OnFatal
from shoal.engine.fake import FakeEngine
from shoal.realtime.log import LogThread

Serve = Callable[..., Any]
Dial = Callable[..., Any]
LONG = "a" * 600


class DyingEngine(FakeEngine):
    """One whose thread dies when told to."""

    def start(self, deliver: Deliver, on_fatal: OnFatal) -> None:
        super().start(deliver, on_fatal)
        self.die = lambda: on_fatal(RuntimeError("a thread died"))


# Health and metrics -----------------------------------------------------------------------------


async def test_health_is_ok_once_warm(shared: Any, body: Callable[[bytes], Any]) -> None:
    status, text = shared.get("/v1/health")
    assert (status, body(text)) == (200, {"status": "ok"})


async def test_metrics_split_the_time_to_first_audio(serve: Serve, dial: Dial) -> None:
    server = serve()
    async with dial(server) as socket:
        await socket.say("Hello there.")
        heard = await socket.hear()
        page = server.get("/metrics")[1].decode()
        assert server.metric("shoal_sockets") == 1
    for part in ("wait", "prefill", "first_frame", "codec", "send"):
        assert f'shoal_ttfa_part_seconds_count{{part="{part}"}} 1.0' in page
    assert "shoal_ttfa_seconds_count 1.0" in page
    parts_s = sum(map(float, re.findall(r"ttfa_part_seconds_sum\{.*\} (\S+)", page)))
    total_s = server.metric("shoal_ttfa_seconds_sum")
    assert 0 < parts_s <= total_s + 0.001
    assert server.metric('shoal_audio_seconds_total{format="pcm"}') == pytest.approx(
        len(heard.audio) / 48_000
    )
    assert server.metric("shoal_frames_total") == len(heard.audio) / 2400
    for name in (
        *("slots", "slots_busy", "streams_waiting", "queue_age_seconds", "step_seconds"),
        *("engine_lead_seconds", "kv_pages", "turns_paused", "playout_lead_seconds_count"),
    ):
        assert f"\nshoal_{name} " in page, name


# Lifetime of a socket ---------------------------------------------------------------------------


async def test_after_a_finish_the_server_closes_1000(serve: Serve, dial: Dial) -> None:
    """The JS SDK never closes its side."""
    async with dial(serve(grace_s=0.2)) as socket:
        await socket.say("Hello.")
        await socket.hear()
        started_s = time.monotonic()
        assert (await socket.hear_all()).close_code == 1000
        assert 0.15 < time.monotonic() - started_s < 4.0  # and not the five seconds of others


@pytest.mark.field_row(5)
@pytest.mark.parametrize(
    ("options", "query"),
    [({"user_agent_header": "livekit-plugins-fishaudio/1.8.9"}, ""), ({}, "?pool=1")],
)
async def test_a_client_that_pools_its_sockets_finds_them_open(
    serve: Serve, dial: Dial, options: dict[str, Any], query: str
) -> None:
    async with dial(serve(grace_s=0.1), query, **options) as socket:
        for _ in range(2):
            await socket.say("Hello.")
            assert (await socket.hear()).reason == "stop"
            await asyncio.sleep(0.3)


async def test_a_socket_that_has_not_begun_is_not_closed(serve: Serve, dial: Dial) -> None:
    """pipecat connects and starts at once, and speaks minutes later; LiveKit prewarms."""
    server = serve(grace_s=0.1)
    async with dial(server) as prewarmed, dial(server) as started:
        await started.start()
        await asyncio.sleep(0.4)
        for socket in (prewarmed, started):
            await socket.say("Hello.")
            assert (await socket.hear()).reason == "stop"


async def test_a_peer_that_answers_no_ping_is_dropped(serve: Serve) -> None:
    server = serve(ping_interval_s=0.2, ping_timeout_s=0.3)
    host, port = server.http.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(
        b"GET /v1/tts/live HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    )
    await reader.readuntil(b"\r\n\r\n")
    assert (await reader.readexactly(2))[0] == 0x89  # a ping, which nobody answers
    await server.until(lambda: server.metric("shoal_sockets") == 0)
    writer.close()


@pytest.mark.field_row(15)
async def test_a_quiet_peer_that_answers_pings_stays(serve: Serve, dial: Dial) -> None:
    server = serve(ping_interval_s=0.1, ping_timeout_s=0.6)
    async with dial(server) as socket:
        await asyncio.sleep(1.2)
        await socket.say("Hello.")
        assert (await socket.hear()).reason == "stop"


# Logs -------------------------------------------------------------------------------------------


async def test_logs_hold_ids_and_counts_and_never_text_or_keys(serve: Serve, dial: Dial) -> None:
    lines = io.StringIO()
    logs = LogThread(lines, "debug", as_json=False)
    try:
        server = serve(FakeEngine(speed=50.0, fails_on="xylophone"), api_keys=("kangaroo-key",))
        for text in ("zeppelin quartz.", "Fine. A xylophone breaks it."):
            async with dial(server, "?api_key=kangaroo-key") as socket:
                await socket.say(text, references=[{"audio": b"RIFFvelvet", "text": "orchid"}])
                await socket.hear()
        with pytest.raises(InvalidStatus):
            async with dial(server, "?api_key=wombat-key"):
                pass
        async with dial(server, "?api_key=kangaroo-key") as socket:
            await socket.socket.send("text frame marmalade")
            await socket.socket.send(b"\xc1 nonsense marmalade")
            await socket.hear_all()
    finally:
        logs.stop()
    text = lines.getvalue()
    assert "event=turn_ended" in text and re.search(r"socket=\d+ stream=\d+ end=stop", text)
    assert "chars=16" in text and "reason=undecodable" in text
    secrets = ("zeppelin", "quartz", "xylophone", "velvet", "orchid", "marmalade", "kangaroo")
    assert [word for word in (*secrets, "wombat", "RIFF") if word in text] == []


# The engine's life ------------------------------------------------------------------------------


async def test_a_dead_engine_fails_every_turn_and_ends_the_server(serve: Serve, dial: Dial) -> None:
    engine = DyingEngine(speed=5.0)
    server = serve(engine)
    async with dial(server) as speaking, dial(server) as idle:
        await speaking.say(LONG)
        await speaking.next()
        engine.die()
        for socket in (speaking, idle):
            heard = await socket.hear_all()
            assert (heard.close_code, heard.reason) == (1011, "error")
    await server.until(lambda: server.server.should_exit)
    assert server.server.gateway.failed


# The process ------------------------------------------------------------------------------------

SERVER = """
import sys
from shoal.engine.fake import FakeEngine
from shoal.realtime.server import serve
from shoal.realtime.config import server_config
engine = FakeEngine(slots=4, speed=float(sys.argv[2]), warm_up_s=float(sys.argv[3]))
config = server_config({}, port=int(sys.argv[1]), drain_s=float(sys.argv[4]))
sys.exit(serve(config, engine, lambda address: print(address, flush=True)))
"""


class Process(SimpleNamespace):
    popen: subprocess.Popen[str]
    http: str
    live: str

    def health(self) -> int:
        try:
            with urllib.request.urlopen(self.http + "/v1/health", timeout=30) as answer:
                return answer.status
        except urllib.error.HTTPError as error:
            with error:
                return error.code

    def terminate(self) -> None:
        os.kill(self.popen.pid, signal.SIGTERM)

    async def exit_status(self, limit_s: float) -> int:
        return await asyncio.to_thread(self.popen.wait, limit_s)


def free_port() -> int:
    with sockets.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def launch() -> Iterator[Callable[..., Process]]:
    started: list[subprocess.Popen[str]] = []

    def launch(
        speed: float = 20.0, warm_up_s: float = 0.0, drain_s: float = 10.0, wait: bool = True
    ) -> Process:
        port = free_port()
        arguments = [str(value) for value in (port, speed, warm_up_s, drain_s)]
        popen = subprocess.Popen(
            [sys.executable, "-P", "-c", SERVER, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(popen)
        address = f"http://127.0.0.1:{port}"
        assert popen.stdout is not None
        assert not wait or popen.stdout.readline().strip() == address
        live = address.replace("http", "ws", 1) + "/v1/tts/live"
        return Process(popen=popen, http=address, live=live)

    yield launch
    for popen in started:
        popen.kill()
        popen.communicate()


async def test_sigterm_lets_turns_finish_refuses_new_ones_and_exits_0(
    launch: Callable[..., Process], dial: Dial
) -> None:
    process = launch(speed=20.0)
    async with dial(process) as idle, dial(process) as speaking:
        await speaking.say(LONG)
        await speaking.next()
        process.terminate()
        assert (await idle.hear_all()).close_code == 1001
        assert process.health() == 503
        with pytest.raises(InvalidStatus) as refused:
            async with dial(process):
                pass
        assert refused.value.response.status_code == 503
        assert refused.value.response.headers["Retry-After"]
        heard = await speaking.hear_all()
        assert (heard.reason, heard.close_code) == ("stop", 1001)
        assert len(heard.audio) / 48_000 > 35
    assert await process.exit_status(5) == 0
    assert process.popen.stderr is not None
    assert "event=drained" in process.popen.stderr.read()


async def test_a_drain_has_a_limit(launch: Callable[..., Process], dial: Dial) -> None:
    process = launch(speed=1.0, drain_s=0.3)
    async with dial(process) as socket:
        await socket.say(LONG)
        await socket.next()
        process.terminate()
        heard = await socket.hear_all()
        assert (heard.reason, heard.close_code) == ("error", 1001)
    assert await process.exit_status(5) == 0


async def test_a_second_signal_hurries(launch: Callable[..., Process], dial: Dial) -> None:
    process = launch(speed=1.0, drain_s=60.0)
    async with dial(process) as socket:
        await socket.say(LONG)
        await socket.next()
        process.terminate()
        await asyncio.sleep(0.2)
        process.terminate()
        assert (await socket.hear_all()).close_code == 1001
    assert await process.exit_status(30) == 0  # of the minute that it has


@pytest.mark.field_row(39)
async def test_a_server_that_warms_up_says_so(launch: Callable[..., Process], dial: Dial) -> None:
    """Orpheus-TTS#268: ready means that a first request is fast."""
    process = launch(warm_up_s=2.0, wait=False)
    deadline_s = time.monotonic() + 60.0
    status = None
    while status is None and time.monotonic() < deadline_s:
        try:
            status = process.health()
        except OSError:
            await asyncio.sleep(0.02)
    assert status == 503
    with pytest.raises(InvalidStatus) as refused:
        async with dial(process):
            pass
    assert refused.value.response.status_code == 503
    while process.health() != 200:
        assert time.monotonic() < deadline_s
        await asyncio.sleep(0.05)
    async with dial(process) as socket:
        await socket.say("Hello.")
        assert (await socket.hear()).reason == "stop"


def start_client(url: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-P", "-c", CLIENT, url]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


async def test_a_killed_client_process_frees_its_slot_within_a_second(
    serve: Serve, dial: Dial
) -> None:
    server = serve(FakeEngine(slots=1, speed=2.0))
    client = start_client(server.live)
    try:
        assert client.stdout is not None
        assert await asyncio.to_thread(client.stdout.readline) == "speaking\n"
        assert server.engine.stats().slots_busy == 1
    finally:
        client.kill()
        client.communicate()
    await server.until(lambda: server.engine.stats().streams_open == 0, 1.0)


CLIENT = f"""
import sys, time
from websockets.sync.client import connect
from shoal.proto.codec import encode_start, encode_stop, encode_text
with connect(sys.argv[1], compression=None) as socket:
    socket.send(encode_start({{"format": "pcm"}}))
    socket.send(encode_text({LONG!r}))
    socket.send(encode_stop())
    socket.recv()
    print("speaking", flush=True)
    time.sleep(60)
"""

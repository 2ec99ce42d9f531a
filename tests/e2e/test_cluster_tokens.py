"""Several replicas as their environment says: a token is given by one and good once at any, and
every turn is a trace."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.cluster import live_url, turn

pytest.importorskip("ray")

from shoal.deploy import cluster
from tests.fleet import SENTENCE, Fleet

pytestmark = [
    pytest.mark.timeout(180),
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.filterwarnings("ignore"),  # Ray's driver lives in this process
]

logger = logging.getLogger("cluster")  # figures: -o log_cli=true -o log_cli_level=INFO
KEY = "a-key-of-the-cluster"
REPLICAS = 3


class Collector(ThreadingHTTPServer):
    """Takes what OpenTelemetry exports. ``sent`` are the bodies."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        super().__init__(("127.0.0.1", 0), Take)


class Take(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        assert isinstance(self.server, Collector)
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.sent.append(body if self.path == "/v1/traces" else b"")
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Nobody reads it."""


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    server = Collector()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="module")
def fleet(collector: Collector) -> Iterator[Fleet]:
    with tempfile.TemporaryDirectory(prefix="shoal-") as folder, pytest.MonkeyPatch.context() as at:
        at.setenv("SHOAL_API_KEY", KEY)  # where an operator puts it, too
        at.setenv("SHOAL_TRACES", "1")
        at.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{collector.server_port}")
        at.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
        fleet = Fleet(Path(folder))
        cluster.start(fleet.place, cpus=2)
        try:
            fleet.deploy(REPLICAS)
            yield fleet
        finally:
            fleet.kill()


def token_of(fleet: Fleet) -> str:
    request = urllib.request.Request(
        f"{fleet.http}/v1/tokens", b"", {"authorization": f"Bearer {KEY}"}, method="POST"
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        return str(json.load(answer)["token"])


async def test_a_token_opens_one_socket_whichever_replicas_it_comes_to(fleet: Fleet) -> None:
    url = live_url(fleet.http)
    tokens = await asyncio.gather(*(asyncio.to_thread(token_of, fleet) for _ in range(12)))
    used = await asyncio.gather(*(turn(f"{url}?token={token}", SENTENCE) for token in tokens))
    assert {told.reason for told in used} == {"stop"}
    takers = {told.replica for told in used}
    assert len(takers) == REPLICAS
    again = [await turn(f"{url}?token={token}", SENTENCE) for token in [*tokens, *tokens]]
    assert {told.status for told in again} == {401}
    logger.info(f"12 tokens, {len(takers)} replicas: each opened one socket, and none of 24 more")


async def test_of_many_who_come_with_one_token_at_once_one_is_let_in(fleet: Fleet) -> None:
    url = live_url(fleet.http)
    for _ in range(5):
        token = await asyncio.to_thread(token_of, fleet)
        told = await asyncio.gather(*(turn(f"{url}?token={token}", "Me first.") for _ in range(9)))
        assert sorted(one.status for one in told) == [101] + [401] * 8


async def test_what_no_replica_signed_opens_nothing(fleet: Fleet) -> None:
    url = live_url(fleet.http)
    token = await asyncio.to_thread(token_of, fleet)
    forged = token[:-1] + ("A" if token[-1] != "A" else "B")
    for wrong in (forged, "once_", ""):
        assert (await turn(f"{url}?token={wrong}", SENTENCE)).status == 401
    assert (await turn(f"{url}?token={token}", SENTENCE)).reason == "stop"


async def test_turns_of_all_replicas_are_traces_and_hold_no_text(
    fleet: Fleet, collector: Collector
) -> None:
    url = live_url(fleet.http)
    token = await asyncio.to_thread(token_of, fleet)
    trace, text = os.urandom(16), "Marigold speaks."
    parent = {"traceparent": f"00-{trace.hex()}-{os.urandom(8).hex()}-01"}
    assert (await turn(f"{url}?token={token}", text, headers=parent)).reason == "stop"
    limit_s = time.monotonic() + 10
    while not any(trace in body for body in collector.sent):  # as it lies in a span
        assert time.monotonic() < limit_s
        await asyncio.sleep(0.05)
    sent = b"".join(collector.sent)
    assert b"first audio" in sent and b"Marigold" not in sent

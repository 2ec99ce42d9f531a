"""Turns of a server as spans, over the wire: on request, with the client's parent, without text."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

import msgpack
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from websockets.sync.client import connect

from shoal.engine.fake import FakeEngine
from shoal.realtime.config import ServerConfig
from shoal.realtime.trace import OtelTraces
from tests.e2e.conftest import Server

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SECRET = "Marigold speaks of nothing else."


def speak(server: Server, turns: int) -> None:
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
    with connect(server.live, additional_headers=headers) as socket:
        for _ in range(turns):
            for event in (
                {"event": "start", "request": {"text": SECRET, "format": "opus"}},
                {"event": "stop"},
            ):
                socket.send(msgpack.packb(event))
            message: dict[str, Any] = {}
            while message.get("event") != "finish":
                message = msgpack.unpackb(socket.recv())


def post(server: Server) -> None:
    body = json.dumps({"text": SECRET, "format": "pcm", "priority": "batch"}).encode()
    request = urllib.request.Request(
        server.http + "/v1/tts", body, {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request) as answer:
        assert answer.read()


async def test_every_turn_is_a_trace_of_its_own_request() -> None:
    exporter = InMemorySpanExporter()
    traces = OtelTraces(SimpleSpanProcessor(exporter))
    server = Server(FakeEngine(speed=50.0), ServerConfig(port=0), traces).start()
    try:
        speak(server, 2)
        post(server)
        turns = lambda: [s for s in exporter.get_finished_spans() if s.name == "turn"]  # noqa: E731
        await server.until(lambda: len(turns()) == 3)
    finally:
        server.stop()
        traces.close()
    spans = exporter.get_finished_spans()
    live = [s for s in spans if s.context is not None and f"{s.context.trace_id:032x}" == TRACE]
    assert [s.name for s in live].count("turn") == 2
    assert [s.name for s in live].count("connect") == 1
    for name in ("voice", "first audio", "wait", "prefill", "first_frame", "codec", "send"):
        assert [s.name for s in live].count(name) == 2, name
    for turn in turns()[:2]:
        assert turn.parent is not None and f"{turn.parent.span_id:016x}" == PARENT
        assert turn.attributes is not None
        assert turn.attributes["shoal.format"] == "opus" and turn.attributes["shoal.end"] == "stop"
        assert turn.attributes["shoal.chars"] == len(SECRET)
    posted = turns()[2]
    assert posted.parent is None and posted.attributes is not None
    assert posted.attributes["shoal.priority"] == "batch"
    assert "Marigold" not in "".join(span.to_json() for span in spans)


async def test_without_traces_nothing_of_opentelemetry_is_touched() -> None:
    server = Server(FakeEngine(speed=50.0), ServerConfig(port=0)).start()
    try:
        speak(server, 1)
        assert server.server.gateway.traces is None
        assert server.server.config.app.user_middleware == []
    finally:
        server.stop()

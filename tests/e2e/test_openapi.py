"""The published document, and a fuzzer that reads it: whatever it sends, no answer is a 5xx.

Left out is ``/v1/asr``, whose only answer is the 501 that the document promises.
"""

from __future__ import annotations

import io
import json
import warnings
import wave
from pathlib import Path
from typing import Any

import httpx
import hypothesis
import msgpack
import pytest

from shoal.engine.api import Reference
from shoal.engine.fake import FakeEngine
from shoal.engine.voices import VoiceStore
from shoal.proto.request import RATES
from shoal.realtime.cors import EXPOSED
from shoal.realtime.rest.openapi import document
from shoal.realtime.speaking import CONTENT_TYPES
from tests.dialects import LatinEngine

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what it imports warns of itself
    import schemathesis
    import schemathesis.checks
    from schemathesis.checks import not_a_server_error

EXAMPLES = 25
SCHEMA = schemathesis.openapi.from_dict(json.loads(json.dumps(document())))


@schemathesis.serializer("application/msgpack")
def packed(_: schemathesis.SerializationContext, value: Any) -> bytes:
    try:
        return msgpack.packb(value, default=bytes, unicode_errors="replace")
    except (OverflowError, ValueError, TypeError):
        return b"\xc1"  # what has no such form is sent as something that has none


@pytest.fixture
def address(serve: Any, tmp_path: Path) -> str:
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setparams((1, 2, 8000, 0, "NONE", ""))
        out.writeframes((b"\0\x10\0\xf0" * 500 + b"\0\1\0\xff" * 500) * 4)
    store = VoiceStore(tmp_path)
    store.add("0", [Reference(file.getvalue(), "x")])
    server = serve(FakeEngine(slots=8, speed=2000.0, store=store), voices_dir=tmp_path)
    return server.http


@SCHEMA.exclude(path="/v1/asr").parametrize()
@hypothesis.settings(
    max_examples=EXAMPLES,
    derandomize=True,
    deadline=None,
    suppress_health_check=list(hypothesis.HealthCheck),
)
def test_whatever_is_sent_no_answer_is_a_5xx(case: schemathesis.Case, address: str) -> None:
    answer = case.call(base_url=address, timeout=20)
    case.validate_response(answer, checks=[not_a_server_error])
    if answer.status_code >= 400 and answer.headers["content-type"] == "application/json":
        body = answer.json()
        assert body.keys() == {"status", "message"} or body["success"] is False


def test_the_document_is_published_to_everyone(serve: Any) -> None:
    server = serve(api_keys=("secret",))
    status, body = server.get("/openapi.json")
    assert status == 200 and json.loads(body) == json.loads(json.dumps(document()))


def test_the_document_has_the_tables_in_use() -> None:
    published: Any = document()
    assert published["openapi"].startswith("3.1")
    fields = published["components"]["schemas"]["TtsRequest"]["properties"]
    assert fields["format"]["enum"] == list(RATES)


@pytest.mark.parametrize("path", ["/v1/tts", "/v1/tts/stream/with-timestamp"])
def test_the_headers_of_an_answer_are_those_of_the_document(serve: Any, path: str) -> None:
    server = serve(LatinEngine(speed=2000.0))
    published: Any = document()
    declared = published["paths"][path]["post"]["responses"]["200"]["headers"]
    always = {name for name, header in declared.items() if header["required"]}
    for text, found in (("Hello.", always), ("Hello, мир.", declared.keys())):
        answer = httpx.post(f"{server.http}{path}", json={"text": text, "format": "pcm"})
        assert answer.status_code == 200
        own = {name for name in answer.headers if name.startswith("x-shoal-")}
        assert own == {name.lower() for name in found}
    assert declared.keys() == {name for name in EXPOSED if name.startswith("X-Shoal-")}


def test_every_route_of_the_api_is_in_the_document(shared: Any) -> None:
    """But for those whose clients have documents of their own."""
    prefixes = ("/v1/tts", "/model", "/v1/references", "/wallet", "/v1/asr", "/v1/health")
    routed = {
        route.path
        for route in shared.server.config.app.routes
        if hasattr(route, "methods") and route.path.startswith(prefixes)
    }
    live = {path for path in routed if path.startswith("/v1/tts/live")}
    published: Any = document()
    assert routed - live <= published["paths"].keys()


def test_the_page_of_the_protocol_knows_every_path_and_content_type() -> None:
    page = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text("utf-8")
    published: Any = document()
    unsaid = {path for path in published["paths"] if f"{path}`" not in page}
    assert unsaid <= {"/v1/health", "/metrics"}
    for name, kind in CONTENT_TYPES.items():
        assert f"| `{name}` | `{kind}` |" in page

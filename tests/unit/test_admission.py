"""What an endpoint answers when it fails in a way that nobody foresaw."""

from __future__ import annotations

import json
import logging
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from shoal.engine.fake import FakeEngine
from shoal.realtime.admission import endpoint, open_endpoint
from shoal.realtime.bodies import BodyBudget
from shoal.realtime.config import ServerConfig
from shoal.realtime.gateway import Gateway, Refusal


async def broken(_: Request) -> Response:
    raise ZeroDivisionError


def refuse(refusal: Refusal) -> Response:
    return JSONResponse({"oops": refusal.message}, refusal.status)


@pytest.mark.parametrize("make", [endpoint, open_endpoint])
async def test_what_nobody_foresaw_is_said_in_the_endpoints_shape(
    make: Any, caplog: pytest.LogCaptureFixture
) -> None:
    gateway = Gateway(FakeEngine(), ServerConfig())
    gateway.ready = True
    state = SimpleNamespace(gateway=gateway, body_budget=BodyBudget())
    scope: dict[str, Any] = {
        "type": "http",
        "method": "POST",
        "path": "/",
        "query_string": b"",
        "headers": [],
        "app": SimpleNamespace(state=state),
    }
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        raise AssertionError("there is no body")

    with caplog.at_level(logging.ERROR):
        await make(broken, refuse=refuse)(scope, receive, send)
    assert sent[0]["status"] == 500
    assert json.loads(sent[1]["body"]) == {"oops": "Internal server error"}
    assert "ZeroDivisionError" in caplog.text
    assert b'shoal_errors_total{fault="engine"} 1.0' in gateway.metrics.page()
    assert b"shoal_sockets 0.0" in gateway.metrics.page()

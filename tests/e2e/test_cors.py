"""Which web pages may use the API, and what anybody hears who knocks at no door."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

PAGE = "https://page.example"
ASKS = {
    "origin": PAGE,
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization, content-type, model",
}


@pytest.fixture
def server(serve: Any) -> Any:
    return serve(allow_origins=(PAGE,), api_keys=("secret",))


async def test_a_page_on_the_list_may_ask_with_key_model_and_messagepack(server: Any) -> None:
    async with httpx.AsyncClient(base_url=server.http) as http:
        for path in ("/v1/tts", "/model", "/v1/references/add"):
            answer = await http.options(path, headers=ASKS)
            assert answer.status_code == 200
            assert answer.headers["access-control-allow-origin"] == PAGE
            allowed = answer.headers["access-control-allow-headers"].lower()
            assert {"authorization", "content-type", "model"} <= set(allowed.split(", "))
            assert "POST" in answer.headers["access-control-allow-methods"]
        answer = await http.post("/v1/tts", json={"text": "x"}, headers={"origin": PAGE})
        assert answer.status_code == 401  # and the page may read why
        assert answer.headers["access-control-allow-origin"] == PAGE
        exposed = answer.headers["access-control-expose-headers"].lower()
        assert {"retry-after", "x-shoal-model", "x-shoal-remark"} <= set(exposed.split(", "))
        headers = {"origin": PAGE, "authorization": "Bearer secret"}
        answer = await http.post("/v1/tts", json={"text": "Hi", "format": "pcm"}, headers=headers)
        assert answer.status_code == 200 and len(answer.content) > 1024


async def test_other_pages_may_not(server: Any) -> None:
    async with httpx.AsyncClient(base_url=server.http) as http:
        answer = await http.options("/v1/tts", headers={**ASKS, "origin": "https://other.example"})
        assert answer.status_code == 400
        assert "access-control-allow-origin" not in answer.headers


async def test_without_a_list_no_page_may(serve: Any) -> None:
    async with httpx.AsyncClient(base_url=serve().http) as http:
        answer = await http.options("/v1/tts", headers=ASKS)
        assert answer.status_code == 405
        assert answer.json() == {"status": 405, "message": "Method Not Allowed"}
        answer = await http.post("/v1/tts", json={"text": "x"}, headers={"origin": PAGE})
        assert answer.json() == {"status": 403, "message": "Origin not allowed"}
        own = {"origin": str(http.base_url).rstrip("/")}
        answer = await http.post("/v1/tts", json={"text": "x", "format": "pcm"}, headers=own)
        assert answer.status_code == 200


async def test_an_unknown_path_is_a_404_by_either_way(shared: Any) -> None:
    body = {"status": 404, "message": "Not Found"}
    async with httpx.AsyncClient(base_url=shared.http) as http:
        answer = await http.get("/v1/nothing")
        assert (answer.status_code, answer.json()) == (404, body)
    with pytest.raises(InvalidStatus) as refused:
        async with connect(shared.http.replace("http", "ws", 1) + "/v1/nothing"):
            pass
    assert refused.value.response.status_code == 404
    assert refused.value.response.body == b'{"status":404,"message":"Not Found"}'

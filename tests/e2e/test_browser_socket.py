"""Sockets as browsers open them: no headers, JSON, raw audio, a token instead of a key."""

from __future__ import annotations

import asyncio
import io
import json
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus
from websockets.typing import Subprotocol

from shoal.engine.fake_tone import tone
from shoal.realtime.log import LogThread

Serve = Callable[..., Any]
PCM = {"format": "pcm", "sample_rate": 24_000, "prosody": {"normalize_loudness": False}}
KEY = "secret-key"


def opened(server: Any, query: str = "", *offered: str, **options: Any) -> Any:
    names = [Subprotocol(name) for name in offered] or None
    return connect(server.live + query, subprotocols=names, compression=None, **options)


async def turn(socket: Any, text: str = "One.", **start: Any) -> tuple[bytes, list[dict[str, Any]]]:
    """The audio of a turn, and its events in between."""
    for message in (
        {"event": "start", "request": PCM, **start},
        {"event": "text", "text": text},
        {"event": "stop"},
    ):
        await socket.send(json.dumps(message))
    audio, events = b"", list[dict[str, Any]]()
    while not events or events[-1]["event"] != "finish":
        frame = await asyncio.wait_for(socket.recv(), 30)
        if isinstance(frame, bytes):
            audio += frame
        else:
            events.append(json.loads(frame))
    return audio, events


def post(server: Any, path: str, body: bytes = b"", **headers: str) -> tuple[int, dict[str, Any]]:
    request = urllib.request.Request(server.http + path, body, headers, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def token_of(server: Any, **fields: Any) -> str:
    status, answer = post(
        server, "/v1/tokens", json.dumps(fields).encode(), authorization=f"Bearer {KEY}"
    )
    assert status == 201
    return answer["token"]


async def status_of(server: Any, query: str = "", *offered: str, **options: Any) -> int:
    with pytest.raises(InvalidStatus) as refused:
        async with opened(server, query, *offered, **options):
            pass
    return refused.value.response.status_code


# JSON -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "offered", "confirmed"),
    [
        ("?protocol=json", (), None),
        ("?protocol=json", ("fish.v1",), "fish.v1"),
        ("", ("fish.v1.json",), "fish.v1.json"),
        ("", ("fish.v1", "fish.v1.json"), "fish.v1.json"),
        ("/with-timestamp?protocol=json", (), None),
    ],
)
async def test_a_turn_in_json_and_raw_audio(
    shared: Any, query: str, offered: tuple[str, ...], confirmed: str | None
) -> None:
    async with opened(shared, query, *offered) as socket:
        assert socket.subprotocol == confirmed
        for context in ("a", "b"):
            audio, events = await turn(socket, context_id=context)
            assert audio == tone("One.", "", 0, 24_000, 1_200)
            names = [event["event"] for event in events]
            assert names[0] == "ready" and names[-1] == "finish"
            assert ("aligned" in names) is ("with-timestamp" in query)
            assert events[0]["sample_rate"] == 24_000
            assert {event["context_id"] for event in events} == {context}


async def test_json_that_is_no_event_is_answered_and_the_socket_lives(shared: Any) -> None:
    async with opened(shared, "?protocol=json") as socket:
        for frame in ("", "hello", "[]", '{"event": 5}', '{"event": "text"}'):
            await socket.send(frame)
            assert json.loads(await socket.recv())["event"] == "error"
        assert (await turn(socket))[0]


async def test_barge_in_flush_and_timestamps_in_json(shared: Any) -> None:
    async with opened(shared, "?protocol=json") as socket:
        for message in (
            {"event": "start", "request": PCM, "timestamps": True},
            {"event": "text", "text": "One two."},
            {"event": "flush", "id": "f"},
        ):
            await socket.send(json.dumps(message))
        seen: list[dict[str, Any]] = []
        while not seen or seen[-1]["event"] != "flushed":
            frame = await socket.recv()
            if isinstance(frame, str):
                seen.append(json.loads(frame))
        assert [word["text"] for word in seen[-2]["words"]] == ["One", "two"]
        await socket.send('{"event": "cancel", "audio_ms": 10000}')
        answer = json.loads(await socket.recv())
        assert answer["heard"] == {"text": "One two.", "chars": 8}


# Keys -------------------------------------------------------------------------------------------


async def test_a_key_may_come_as_a_subprotocol_which_is_not_repeated(serve: Serve) -> None:
    server = serve(api_keys=(KEY,))
    async with opened(server, "", "fish.v1", f"bearer.{KEY}") as socket:
        assert socket.subprotocol == "fish.v1"
        assert KEY not in repr(socket.response.headers)
    async with opened(server, "", f"bearer.{KEY}", "fish.v1.json") as socket:
        assert socket.subprotocol == "fish.v1.json" and (await turn(socket))[0]
    assert await status_of(server, "", "fish.v1", "bearer.wrong") == 401
    assert await status_of(server, "?protocol=json") == 401


@pytest.mark.parametrize("query", ["?api_key=", "?token=", "/with-timestamp?token="])
async def test_a_key_or_a_token_may_come_in_the_query(serve: Serve, query: str) -> None:
    server = serve(api_keys=(KEY,))
    for secret in (KEY, token_of(server)):
        async with opened(server, query + secret) as socket:
            assert socket.subprotocol is None


async def test_a_token_opens_one_socket(serve: Serve) -> None:
    server = serve(api_keys=(KEY,), max_sockets=1)
    token = token_of(server, ttl_s=600, scope="tts")
    async with opened(server, f"?api_key={KEY}"):
        assert await status_of(server, f"?token={token}") == 429  # and it is not spent by that
    await server.until(lambda: server.metric("shoal_sockets") == 0)
    async with opened(server, "", "fish.v1.json", f"bearer.{token}") as socket:
        assert (await turn(socket))[0]
    assert await status_of(server, "", "fish.v1.json", f"bearer.{token}") == 401
    assert await status_of(server, f"?token={token}") == 401


async def test_a_token_opens_nothing_but_a_socket(serve: Serve) -> None:
    server = serve(api_keys=(KEY,))
    token = token_of(server)
    assert post(server, f"/v1/tokens?token={token}")[0] == 401
    assert post(server, "/v1/tokens", authorization=f"Bearer {token}")[0] == 401
    async with opened(server, f"?token={token}"):
        pass


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 201),
        (b'{"ttl_s": 1.5}', 201),
        (b'{"ttl_s": null, "scope": "tts"}', 201),
        (b'{"ttl_s": 601}', 400),
        (b'{"ttl_s": 0}', 400),
        (b'{"ttl_s": NaN}', 400),
        (b'{"ttl_s": true}', 400),
        (b'{"ttl_s": "60"}', 400),
        (b'{"scope": "admin"}', 400),
        (b"[]", 400),
        (b"{", 400),
        (b" " * 5000, 413),
    ],
)
async def test_what_a_token_may_be(serve: Serve, body: bytes, status: int) -> None:
    server = serve(api_keys=(KEY,))
    code, answer = post(server, "/v1/tokens", body, authorization=f"Bearer {KEY}")
    assert code == status
    if status == 201:
        assert set(answer) == {"token", "scope", "ttl_s", "expires_at"}
        assert 1 <= answer["ttl_s"] <= 600
    else:
        assert set(answer) == {"status", "message"}


async def test_a_token_wants_a_key(serve: Serve) -> None:
    server = serve(api_keys=(KEY,))
    assert post(server, "/v1/tokens")[0] == 401
    assert post(server, "/v1/tokens", authorization="Bearer wrong")[0] == 401


# Pages ------------------------------------------------------------------------------------------


async def test_a_page_of_another_origin_is_refused_where_no_key_is_asked_for(serve: Serve) -> None:
    server = serve(allow_origins=("https://good.example",))
    assert await status_of(server, "?protocol=json", origin="https://evil.example") == 403
    assert post(server, "/v1/tokens", origin="https://evil.example")[0] == 403
    for origin in ("https://good.example", server.http):
        async with opened(server, "?protocol=json", origin=origin) as socket:
            assert (await turn(socket))[0]


async def test_no_secret_is_ever_logged(serve: Serve) -> None:
    lines = io.StringIO()
    logs = LogThread(lines, "debug", as_json=False)
    server = serve(api_keys=(KEY,))
    token = token_of(server)
    async with opened(server, "", "fish.v1.json", f"bearer.{token}") as socket:
        await turn(socket)
    assert await status_of(server, f"?token={token}") == 401
    assert await status_of(server, "", f"bearer.{token}") == 401
    logs.stop()
    written = lines.getvalue()
    assert "turn_ended" in written and "handshake_refused" in written
    assert token not in written and KEY not in written
    assert "level=error" not in written  # a refusal is nobody's fault

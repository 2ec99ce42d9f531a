"""Bad bytes of every kind: each gets its answer, and nobody else notices."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import msgpack
import pytest
from websockets.exceptions import ConnectionClosed

from shoal.proto.messages import MAX_TEXT_CHARS

Dial = Callable[..., Any]


@pytest.fixture
def server(shared: Any) -> Any:
    return shared


async def still_serves(dial: Dial, server: Any) -> bool:
    async with dial(server) as socket:
        await socket.say("Hello.")
        return (await socket.hear()).reason == "stop"


async def test_text_before_start_is_an_error_event_and_the_socket_lives(
    server: Any, dial: Dial
) -> None:
    async with dial(server) as socket:
        for event in ({"event": "text", "text": "hi"}, {"event": "flush"}, {"event": "stop"}):
            await socket.send(**event)
            answer = await socket.next()
            assert answer == {"event": "error", "error": "the first event must be start"}
        await socket.say("Hello.")
        assert (await socket.hear()).reason == "stop"


async def test_unknown_events_and_fields_are_ignored(server: Any, dial: Dial) -> None:
    async with dial(server) as socket:
        await socket.send("hello", data=[1, {"a": None}])
        await socket.start(features=["quality-guard"], pronunciation_dictionary=None, made_up=1)
        await socket.send("pong")
        await socket.send("text", text="Hello.", lang="en")
        await socket.send("stop", why="done")
        heard = await socket.hear()
        assert heard.reason == "stop" and not heard.errors


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x81\xa5event", b"{}", b"\x93" * 2000])
@pytest.mark.parametrize("in_turn", [False, True])
async def test_undecodable_messagepack_closes_1007(
    server: Any, dial: Dial, data: bytes, in_turn: bool
) -> None:
    async with dial(server) as socket:
        if in_turn:
            await socket.start()
        await socket.socket.send(data)
        heard = await socket.hear_all()
        assert heard.close_code == 1007
        assert heard.errors and heard.reason == "error"
    assert await still_serves(dial, server)


@pytest.mark.parametrize("data", [b"\x80", b"\x01", b"\x90", b"\xc0", b"\xa5hello"])
async def test_messagepack_that_is_no_message_is_an_error_event(
    server: Any, dial: Dial, data: bytes
) -> None:
    async with dial(server) as socket:
        await socket.start()
        await socket.socket.send(data)
        assert (await socket.next())["event"] == "error"
        await socket.send("text", text="Hello.")
        await socket.send("stop")
        assert (await socket.hear()).reason == "stop"


async def test_a_text_frame_is_answered_and_never_closes(server: Any, dial: Dial) -> None:
    async with dial(server) as socket:
        for text in ("", "hello", "[1]", '{"event": 5}', "[" * 60_000):
            await socket.socket.send(text)
            assert (await socket.next())["event"] == "error"
        await socket.say("Hello.")
        assert (await socket.hear()).reason == "stop"


async def test_a_mebibyte_of_text_without_a_space(server: Any, dial: Dial) -> None:
    async with dial(server) as socket:
        await socket.start()
        await socket.send("text", text="x" * MAX_TEXT_CHARS)
        await socket.send("flush")
        assert (await socket.next())["event"] == "audio"
        assert await still_serves(dial, server)
    async with dial(server) as socket:
        await socket.start()
        await socket.send("text", text="x" * MAX_TEXT_CHARS)
        await socket.send("text", text="y")
        heard = await socket.hear_all()
        assert (heard.close_code, heard.reason) == (1009, "error")
    await server.until(lambda: server.engine.stats().streams_open == 0)


async def test_a_message_over_the_limit_closes_1009(server: Any, dial: Dial) -> None:
    async with dial(server) as socket:
        await socket.start()
        with pytest.raises(ConnectionClosed) as closed:
            await socket.socket.send(bytes((32 << 20) + 1))
            await socket.hear_all()
            await socket.socket.recv()
        assert closed.value.rcvd is not None and closed.value.rcvd.code == 1009
    await server.until(lambda: server.engine.stats().streams_open == 0)


@pytest.mark.field_row(34)
async def test_nul_and_surrogates_are_spoken_around(server: Any, dial: Dial) -> None:
    """hermes-agent#101666, Rapid-MLX#730: a lone surrogate is text that says nothing."""
    async with dial(server) as socket:
        await socket.start()
        for text in ("a\0b", "\ud83d", "c\ude00d. ", "\udfff"):
            data = msgpack.packb({"event": "text", "text": text}, unicode_errors="surrogatepass")
            await socket.socket.send(data)
        await socket.send("stop")
        heard = await socket.hear()
        assert heard.reason == "stop" and not heard.errors and heard.audio


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"reference_id": "nobody"}, "Reference not found"),
    ({"references": [{"audio": bytes(2000), "text": "x"}]}, "reference 1 is not audio"),
    ({"references": [{"audio": 5, "text": "x"}]}, "must be the bytes"),
    ({"references": "x"}, "must be a list"),
    ({"format": "aac"}, "unknown variant"),
    ({"sample_rate": 11_025}, "sample_rate must be one of"),
    ({"sample_rate": -(2**63)}, "sample_rate must be one of"),
    ({"latency": "warp"}, "unknown variant"),
    ({"prosody": {"speed": 100}}, "speed must be in"),
    ({"text": 5}, "text must be a string"),
]


@pytest.mark.parametrize(("request_", "words"), REFUSED)
async def test_a_refused_request_says_why_and_closes(
    server: Any, dial: Dial, request_: dict[str, Any], words: str
) -> None:
    async with dial(server) as socket:
        await socket.say("Hello.", **request_)
        heard = await socket.hear_all()
        assert heard.close_code == 1008 and words in heard.errors[0]
        assert heard.reason == "error" and words in heard.finish["message"]
        assert not heard.chunks
    await server.until(lambda: server.engine.stats().streams_open == 0)


async def test_absurd_parameters_are_clamped_and_spoken(server: Any, dial: Dial) -> None:
    absurd = {
        "temperature": 1e308,
        "top_p": float("-inf"),
        "repetition_penalty": float("nan"),
        "chunk_length": -5,
        "min_chunk_length": 2**63,
        "max_new_tokens": 2**63,
        "seed": -1,
        "prosody": {"volume": -1e9},
        "references": [],
        "reference_id": "",
    }
    async with dial(server) as socket:
        await socket.say("Hello.", **absurd)
        heard = await socket.hear()
        assert heard.reason == "stop" and not heard.errors


@pytest.mark.field_row(36)
async def test_an_engine_that_fails_midway_is_no_success(server: Any, dial: Dial) -> None:
    """dashscope-sdk-python#167."""
    before = server.metric('shoal_errors_total{fault="engine"}')
    async with dial(server) as socket:
        await socket.say("Fine so far. Then boom.")
        heard = await socket.hear_all()
        assert heard.audio and heard.close_code == 1011
        assert heard.reason == "error" and heard.errors == ["the engine failed"]
    assert server.metric('shoal_errors_total{fault="engine"}') == before + 1
    assert await still_serves(dial, server)


async def test_random_bytes_never_take_the_server_down(server: Any, dial: Dial) -> None:
    dice = random.Random(7)
    before = server.metric('shoal_errors_total{fault="engine"}')

    async def noise(seed: int) -> None:
        async with dial(server) as socket:
            if seed % 2:
                await socket.start()
            try:
                for _ in range(20):
                    size = dice.choice((0, 1, 2, 7, 40, 500))
                    await socket.socket.send(dice.randbytes(size))
            except ConnectionClosed:
                pass

    await asyncio.gather(*(noise(seed) for seed in range(40)))
    assert await still_serves(dial, server)
    await server.until(lambda: server.metric("shoal_sockets") == 0)
    assert server.metric('shoal_errors_total{fault="engine"}') == before


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100),  # TLS on a plain port
        b"GET /v1/tts/live HTTP/1.1\r\nHost: x\r\n"  # an upgrade without its key
        b"Upgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
        b"\0" * 1000,
    ],
)
async def test_bytes_that_are_no_handshake_are_turned_away(
    server: Any, dial: Dial, data: bytes
) -> None:
    host, port = server.http.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(data)
    answer = await asyncio.wait_for(reader.readline(), 30)
    assert answer.startswith(b"HTTP/1.1 4")
    writer.close()
    await writer.wait_closed()
    assert await still_serves(dial, server)


@pytest.mark.parametrize(
    ("path", "status"), [("/nope", 404), ("/v1/tts/live", 426), ("/v1/tts/live/nope", 404)]
)
async def test_http_errors_have_two_keys(
    server: Any, body: Callable[[bytes], Any], path: str, status: int
) -> None:
    got, text = await asyncio.to_thread(server.get, path)
    assert got == status and set(body(text)) == {"status", "message"}
    assert body(text)["status"] == status

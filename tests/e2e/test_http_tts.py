"""``POST /v1/tts`` and its twin with timestamps: what comes, and how it goes wrong."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import json
import wave
from collections.abc import AsyncIterator
from typing import Any

import httpx
import msgpack
import pytest

from shoal.engine.fake import FakeEngine
from shoal.proto.messages import MAX_MESSAGE_BYTES

TTS = "/v1/tts"
TIMESTAMPS = "/v1/tts/stream/with-timestamp"
TEXT = "Hello there. This is it."
LONG = "A long sentence goes on and on and never seems to end at all. " * 40
PCM = {"format": "pcm", "sample_rate": 24_000}


@pytest.fixture
async def http(shared) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=shared.http, timeout=10) as client:
        yield client


def refused(answer: httpx.Response, status: int, part: str = "") -> None:
    """The exact shape that clients splat into an exception."""
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/json"
    body = answer.json()
    assert body.keys() == {"status", "message"} and body["status"] == status
    assert part in body["message"] and body["message"]


async def test_json_messagepack_and_a_form_say_the_same(http: httpx.AsyncClient) -> None:
    fields = {"text": TEXT, "seed": 3, **PCM}
    answers = [
        await http.post(TTS, json=fields, headers={"model": "s2-pro"}),
        await http.post(
            TTS, content=msgpack.packb(fields), headers={"content-type": "application/msgpack"}
        ),
        await http.post(TTS, files={name: (None, str(value)) for name, value in fields.items()}),
    ]
    for answer in answers:
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "audio/pcm"
        assert answer.headers["transfer-encoding"] == "chunked"
        assert answer.headers["x-shoal-model"] == "fake-tone"
    assert len(answers[0].content) > 24_000
    assert answers[0].content == answers[1].content == answers[2].content


@pytest.mark.parametrize(
    ("audio_format", "kind", "magic"),
    [
        ("wav", "audio/wav", b"RIFF"),
        ("opus", "audio/ogg", b"OggS"),
        ("pcm", "audio/pcm", b""),
        ("mp3", "audio/mpeg", b""),
    ],
)
async def test_each_format_has_its_content_type(
    http: httpx.AsyncClient, audio_format: str, kind: str, magic: bytes
) -> None:
    answer = await http.post(TTS, json={"text": TEXT, "format": audio_format})
    assert answer.status_code == 200
    assert answer.headers["content-type"] == kind
    assert answer.content.startswith(magic) and len(answer.content) > 1024


async def test_a_wav_is_one_file(http: httpx.AsyncClient) -> None:
    answer = await http.post(TTS, json={"text": TEXT, "format": "wav", "sample_rate": 24_000})
    with wave.open(io.BytesIO(answer.content)) as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (24_000, 1, 2)
        frames = file.readframes(1 << 30)
    assert len(frames) == len(answer.content) - 44


async def test_audio_comes_while_it_is_spoken(serve: Any) -> None:
    server = serve(FakeEngine(speed=4.0))
    arrivals: list[float] = []
    loop = asyncio.get_running_loop()
    async with httpx.AsyncClient(timeout=10) as client:
        started_s = loop.time()
        async with client.stream("POST", server.http + TTS, json={"text": TEXT, **PCM}) as answer:
            async for _ in answer.aiter_raw():
                arrivals.append(loop.time() - started_s)
    assert len(arrivals) >= 3
    assert arrivals[0] < arrivals[-1] / 2


async def test_no_words_are_no_error(http: httpx.AsyncClient) -> None:
    empty = await http.post(TTS, json={"text": "", **PCM})
    assert (empty.status_code, empty.content) == (200, b"")
    mute = await http.post(TTS, json={"text": "... \U0001f600", **PCM})
    assert mute.status_code == 200
    assert len(mute.content) > 1024 and not any(mute.content)


@pytest.mark.parametrize(
    ("fields", "part"),
    [
        ({}, "text is required"),
        ({"text": None}, "text is required"),
        ({"text": "x", "format": "aiff"}, "unknown variant"),
        ({"text": "x", "format": "wav", "sample_rate": 11_025}, "sample_rate"),
        ({"text": "x", "format": "mp3", "mp3_bitrate": 65}, "mp3_bitrate"),
        ({"text": "x", "prosody": {"speed": 3}}, "speed must be in"),
        ({"text": "x", "latency": "none"}, "unknown variant"),
        ({"text": "x", "reference_id": "nobody", **PCM}, "Reference not found"),
        ({"text": "x", "references": [{"audio": "AAAA", "text": "x"}], **PCM}, "not audio"),
    ],
)
@pytest.mark.parametrize("path", [TTS, TIMESTAMPS])
async def test_bad_values_are_a_400_in_the_exact_shape(
    http: httpx.AsyncClient, path: str, fields: dict[str, Any], part: str
) -> None:
    refused(await http.post(path, json=fields), 400, part)


@pytest.mark.parametrize(
    ("kind", "body", "status"),
    [
        ("application/json", b"{", 400),
        ("application/json", b"[]", 400),
        ("application/json", b'"text"', 400),
        ("application/json", b"[" * 10_000, 400),
        ("application/json", b"\xff\xfe", 400),
        ("application/json", b'{"text": "x", "y": [' + b"1," * 60_000 + b"1]}", 413),
        ("application/msgpack", b"\xc1", 400),
        ("application/msgpack", b"\x90", 400),
        ("application/msgpack", b"", 400),
        ("multipart/form-data", b"x", 400),
        ("multipart/form-data; boundary=x", b"--y\r\n", 400),
        ("text/plain", b"hello", 415),
        ("application/x-www-form-urlencoded", b"text=hello", 415),
        ("", b"hello", 415),
    ],
)
async def test_bodies_that_are_none(
    http: httpx.AsyncClient, kind: str, body: bytes, status: int
) -> None:
    refused(await http.post(TTS, content=body, headers={"content-type": kind}), status)


async def test_a_lone_surrogate_is_spoken_past(http: httpx.AsyncClient) -> None:
    body = b'{"text": "Hello \\ud800 there", "format": "pcm"}'
    answer = await http.post(TTS, content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 200 and len(answer.content) > 1024


@pytest.mark.parametrize("declared", [True, False])
async def test_a_body_over_the_limit_is_a_413(http: httpx.AsyncClient, declared: bool) -> None:
    async def body() -> AsyncIterator[bytes]:
        for _ in range((MAX_MESSAGE_BYTES >> 20) + 1):
            yield bytes(1 << 20)

    content = bytes(MAX_MESSAGE_BYTES + 1) if declared else body()
    answer = await http.post(TTS, content=content, headers={"content-type": "application/msgpack"})
    refused(answer, 413, "32 MiB")


async def test_keys_are_asked_for(serve: Any) -> None:
    server = serve(api_keys=("secret",))
    async with httpx.AsyncClient(base_url=server.http) as client:
        for path in (TTS, TIMESTAMPS):
            refused(await client.post(path, json={"text": "x"}), 401)
        headers = {"authorization": "Bearer secret"}
        assert (await client.post(TTS, json={"text": "x", **PCM}, headers=headers)).is_success


async def test_a_full_house_is_a_429_that_says_when(serve: Any) -> None:
    server = serve(FakeEngine(slots=1, speed=1.0, wait_s=0.05, max_waiting=0))
    async with httpx.AsyncClient(base_url=server.http, timeout=10) as client:
        async with client.stream("POST", TTS, json={"text": LONG, **PCM}) as first:
            assert first.status_code == 200
            answer = await client.post(TTS, json={"text": TEXT, **PCM})
            refused(answer, 429, "Concurrency")
            assert answer.headers["retry-after"] == "1"


async def test_no_more_connections_than_configured(serve: Any) -> None:
    server = serve(FakeEngine(speed=1.0), max_sockets=1)
    async with httpx.AsyncClient(base_url=server.http, timeout=10) as client:
        async with client.stream("POST", TTS, json={"text": LONG, **PCM}):
            answer = await client.post(TTS, json={"text": TEXT, **PCM})
            refused(answer, 429)
            assert answer.headers["retry-after"] == "1"
            assert (await client.get("/model")).is_success
        await server.until(lambda: server.metric("shoal_sockets") == 0)
        assert (await client.post(TTS, json={"text": "Hi", **PCM})).is_success


async def test_a_server_that_goes_away_is_a_503(serve: Any) -> None:
    server = serve()
    server.server.gateway.draining = True
    async with httpx.AsyncClient(base_url=server.http) as client:
        answer = await client.post(TTS, json={"text": TEXT})
    refused(answer, 503)
    assert answer.headers["retry-after"] == "1"


async def test_a_failure_before_audio_is_a_500(http: httpx.AsyncClient) -> None:
    refused(await http.post(TTS, json={"text": "boom", **PCM}), 500)


@pytest.mark.parametrize("path", [TTS, TIMESTAMPS])
async def test_a_failure_after_audio_cuts_the_connection(
    http: httpx.AsyncClient, path: str
) -> None:
    """dashscope-sdk-python#167: what failed half-way must not look whole."""
    got = 0
    async with http.stream("POST", path, json={"text": TEXT + " boom", **PCM}) as answer:
        assert answer.status_code == 200
        with pytest.raises((httpx.RemoteProtocolError, httpx.ReadError)):
            async for chunk in answer.aiter_raw():
                got += len(chunk)
    assert got > 1024


@pytest.mark.parametrize(("text", "whole"), [(TEXT, True), (TEXT + " boom", False)])
async def test_without_chunks_a_failure_is_a_reset(shared: Any, text: str, whole: bool) -> None:
    """HTTP/1.0, which many proxies speak to what is behind them: the end of the connection is
    the end of the answer, unless it is an error."""
    reader, writer = await asyncio.open_connection(*shared.http.removeprefix("http://").split(":"))
    body = json.dumps({"text": text, **PCM}).encode()
    head = f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    writer.write(b"POST /v1/tts HTTP/1.0\r\n" + head.encode() + body)
    if whole:
        answer = await reader.read()
        assert b"transfer-encoding" not in answer.lower() and len(answer) > 48_000
    else:
        with pytest.raises(ConnectionResetError):
            await reader.read()
    writer.close()
    with contextlib.suppress(ConnectionResetError):
        await writer.wait_closed()


async def test_a_client_that_hangs_up_stops_its_turn(serve: Any) -> None:
    """kyutai-labs/pocket-tts#238: nothing is made for nobody."""
    engine = FakeEngine(slots=1, speed=2.0)
    server = serve(engine)
    async with httpx.AsyncClient(timeout=10) as client:
        async with client.stream("POST", server.http + TTS, json={"text": LONG, **PCM}) as answer:
            async for _ in answer.aiter_raw():
                break
            assert engine.stats().slots_busy == 1
    # Long before it would have been spoken: that takes more than a minute.
    await server.until(lambda: engine.stats().slots_busy == 0)
    await server.until(lambda: server.metric("shoal_sockets") == 0)


async def test_a_client_that_hangs_up_before_audio_stops_its_turn(serve: Any) -> None:
    engine = FakeEngine(slots=1, speed=0.05)
    server = serve(engine)
    async with httpx.AsyncClient(timeout=httpx.Timeout(10, read=0.3)) as client:
        with pytest.raises(httpx.ReadTimeout):
            await client.post(server.http + TTS, json={"text": LONG, **PCM})
    await server.until(lambda: engine.stats().streams_open == 0)


async def test_a_client_that_does_not_read_pauses_the_engine(serve: Any) -> None:
    engine = FakeEngine(slots=1, speed=400.0)
    server = serve(engine)
    reader, writer = await asyncio.open_connection(
        *server.http.removeprefix("http://").split(":"), limit=1024
    )
    body = json.dumps({"text": LONG * 8, **PCM}).encode()
    writer.write(
        b"POST /v1/tts HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        + f"content-length: {len(body)}\r\n\r\n".encode()
        + body
    )
    await writer.drain()
    assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"
    await server.until(lambda: server.metric("shoal_turns_paused") == 1)
    writer.transport.abort()
    await server.until(lambda: engine.stats().streams_open == 0)
    assert server.metric("shoal_turns_paused") == 0


async def test_timestamps_come_among_the_audio(http: httpx.AsyncClient) -> None:
    fields = {"text": TEXT, "seed": 1, **PCM}
    answer = await http.post(TIMESTAMPS, json=fields)
    assert answer.headers["content-type"].startswith("text/event-stream")
    lines = answer.text.split("\n\n")
    assert lines.pop() == ""
    events = [json.loads(line.removeprefix("data: ")) for line in lines]
    keys = {"audio_base64", "content", "alignment", "chunk_seq", "chunk_audio_offset_sec"}
    assert all(event.keys() >= keys for event in events)
    audio = b"".join(base64.b64decode(event["audio_base64"]) for event in events)
    assert audio == (await http.post(TTS, json=fields)).content
    # The latest snapshot of a segment replaces those before it.
    last = {event["chunk_seq"]: event for event in events if event["alignment"]}
    words = [word["text"] for event in last.values() for word in event["alignment"]["segments"]]
    assert words == ["Hello", "there", "This", "is", "it"]
    assert [event["content"].strip() for event in last.values()] == ["Hello there.", "This is it."]
    ends = [
        event["chunk_audio_offset_sec"] + event["alignment"]["audio_duration"]
        for event in last.values()
    ]
    assert ends[-1] == pytest.approx(len(audio) / 48_000, abs=0.06)
    assert last[1]["chunk_audio_offset_sec"] == pytest.approx(ends[0], abs=0.001)
    for event in last.values():
        assert event["alignment"]["estimated"] is True
        times = [t for word in event["alignment"]["segments"] for t in (word["start"], word["end"])]
        assert times == sorted(times) and times[-1] <= event["alignment"]["audio_duration"] + 0.001


async def test_a_recording_in_a_form(http: httpx.AsyncClient) -> None:
    recording = ("references", ("x.wav", b"RIFF..."))
    good = await http.post(TTS, files=[recording], data={"text": "Hi", "texts": "yes", **PCM})
    assert good.status_code == 200
    refused(await http.post(TTS, files=[recording], data={"text": "Hi"}), 400, "texts")


async def test_a_turn_is_finished_before_the_server_goes(serve: Any) -> None:
    server = serve(FakeEngine(speed=4.0))
    fields = {"text": TEXT, "seed": 1, **PCM}
    async with httpx.AsyncClient(base_url=server.http, timeout=10) as client:
        async with client.stream("POST", TTS, json=fields) as answer:
            server.server.should_exit = True
            chunks = [chunk async for chunk in answer.aiter_raw()]
        assert len(b"".join(chunks)) > 48_000


async def test_one_connection_takes_one_turn_after_another(http: httpx.AsyncClient) -> None:
    streams = set()
    for number in range(3):
        async with http.stream("POST", TTS, json={"text": "Hi", "seed": 1, **PCM}) as answer:
            streams.add(answer.extensions["network_stream"].get_extra_info("client_addr"))
            assert len(await answer.aread()) > 1024, number
    assert len(streams) == 1


async def test_many_turns_at_once_stay_apart(serve: Any) -> None:
    server = serve(FakeEngine(slots=16, speed=50.0, voices=[f"v{n}" for n in range(16)]))

    async def one(client: httpx.AsyncClient, number: int) -> bytes:
        fields = {"text": TEXT, "reference_id": f"v{number}", **PCM}
        return (await client.post(TTS, json=fields)).content

    async with httpx.AsyncClient(base_url=server.http, timeout=10) as client:
        alone = [await one(client, number) for number in range(16)]
        beside = await asyncio.gather(*(one(client, number) for number in range(16)))
    assert beside == alone and len(set(alone)) > 8
    await server.until(lambda: server.metric("shoal_sockets") == 0)

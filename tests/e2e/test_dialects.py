"""Other vendors' wires by hand: keys, formats, errors, times."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable
from typing import Any

import pytest
from websockets.exceptions import InvalidStatus

from shoal.engine.fake import FakeEngine
from shoal.realtime.unread import REMARK
from tests.dialects import (
    CARTESIA,
    HUGE,
    MULTI,
    SINGLE,
    SOUND,
    SPEAK,
    LatinEngine,
    post,
    request,
    seconds,
    spoken_s,
    wire,
    words,
)

Serve = Callable[..., Any]
FRAGMENTS: tuple[object, ...] = (
    *(None, True, -1, 0.5, 1e308, HUGE, -HUGE, "", " ", "Hi.", "\ud800", [], {}, [1]),
)


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        (MULTI, {"xi-api-key": "secret"}),
        (SINGLE + "&xi_api_key=secret", {}),
        (SPEAK, {"Authorization": "Token secret"}),
        (SPEAK, {"Authorization": "Bearer secret"}),
        (CARTESIA, {"X-API-Key": "secret"}),
        (CARTESIA + "?api_key=secret", {}),
    ],
)
async def test_each_vendors_key_is_the_key(
    serve: Serve, path: str, headers: dict[str, str]
) -> None:
    server = serve(api_keys=("secret",))
    async with wire(server, path, additional_headers=headers) as client:
        assert client.socket.response is not None
    with pytest.raises(InvalidStatus) as refused:
        async with wire(server, path.replace("secret", "wrong")):
            pass
    assert refused.value.response.status_code == 401


async def test_a_browser_offers_deepgrams_key_as_a_subprotocol(serve: Serve) -> None:
    server = serve(api_keys=("secret",))
    async with wire(server, SPEAK, subprotocols=["token", "secret"]) as client:
        assert client.socket.subprotocol == "token"
    with pytest.raises(InvalidStatus):
        async with wire(server, SPEAK, subprotocols=["token", "wrong"]):
            pass


@pytest.mark.parametrize(
    "path", [CARTESIA + "?access_token=", SINGLE + "&single_use_token=", SPEAK + "&token="]
)
async def test_a_token_opens_one_socket(serve: Serve, path: str) -> None:
    server = serve(api_keys=("secret",))
    key = {"Authorization": "Bearer secret"}
    answer = (await asyncio.to_thread(post, server, "/v1/tokens", b"", **key))[2]
    token = json.loads(answer)["token"]
    async with wire(server, path + token):
        pass
    with pytest.raises(InvalidStatus):
        async with wire(server, path + token):
            pass


@pytest.mark.parametrize(
    ("path", "wrong"),
    [
        (SINGLE + "&single_use_token=", SINGLE.replace("pcm_", "midi_") + "&single_use_token="),
        (MULTI + "&single_use_token=", MULTI.replace("alice", ".") + "&single_use_token="),
        (SPEAK + "&token=", SPEAK.replace("24000", "11025") + "&token="),
    ],
)
async def test_a_handshake_that_is_refused_spends_no_token(
    serve: Serve, path: str, wrong: str
) -> None:
    server = serve(api_keys=("secret",))
    key = {"Authorization": "Bearer secret"}
    answer = (await asyncio.to_thread(post, server, "/v1/tokens", b"", **key))[2]
    token = json.loads(answer)["token"]
    with pytest.raises(InvalidStatus) as refused:
        async with wire(server, wrong + token):
            pass
    assert refused.value.response.status_code == 400
    async with wire(server, path + token):
        pass
    with pytest.raises(InvalidStatus) as refused:
        async with wire(server, path + token):
            pass
    assert refused.value.response.status_code == 401


@pytest.mark.parametrize(
    ("path", "header", "body"),
    [
        ("/v1/audio/speech", "Authorization: Bearer", {"input": "Hi."}),
        ("/v1/text-to-speech/alice", "xi-api-key:", {"text": "Hi."}),
        ("/v1/speak", "Authorization: Token", {"text": "Hi."}),
        ("/tts/bytes", "X-API-Key:", {**SOUND, "transcript": "Hi."}),
    ],
)
async def test_each_vendors_key_is_the_key_over_http(
    serve: Serve, path: str, header: str, body: dict[str, Any]
) -> None:
    server = serve(api_keys=("secret",))
    name, _, scheme = header.partition(":")

    def status(key: str) -> int:
        return post(server, path, body, **{name: f"{scheme} {key}".strip()})[0]

    assert await asyncio.to_thread(status, "secret") == 200
    assert await asyncio.to_thread(status, "wrong") == 401


@pytest.mark.parametrize(
    ("path", "name", "body"),
    [
        ("/v1/tts", "text", {}),
        ("/v1/tts/stream/with-timestamp", "text", {}),
        ("/v1/audio/speech", "input", {}),
        ("/v1/audio/speech", "input", {"stream_format": "sse"}),
        ("/v1/text-to-speech/alice", "text", {}),
        ("/v1/text-to-speech/alice/stream/with-timestamps", "text", {}),
        ("/v1/speak", "text", {}),
        ("/tts/bytes", "transcript", SOUND),
        ("/tts/sse", "transcript", SOUND),
    ],
)
async def test_every_answer_over_http_says_what_was_not_read(
    serve: Serve, path: str, name: str, body: dict[str, Any]
) -> None:
    server = serve(LatinEngine(speed=50.0, voices=("alice",)))
    kind = {"content-type": "application/json"}
    for text, remark in (("Hello, мир.", REMARK), ("Hello, déjà vu.", None), ("мир", REMARK)):
        fields = {**body, name: text}
        status, headers, _ = await asyncio.to_thread(post, server, path, fields, **kind)
        assert status == 200
        assert headers.get("x-shoal-remark") == remark


@pytest.mark.parametrize(
    "path",
    [
        "/v1/text-to-speech/alice/multi-stream-input?output_format=pcm_11025",
        "/v1/text-to-speech/alice/multi-stream-input?output_format=midi",
        "/v1/text-to-speech/.%2Fx/stream-input",
        "/v1/speak?encoding=mp3",
        "/v1/speak?encoding=linear16&sample_rate=11025",
        "/v1/speak?encoding=linear16&sample_rate=many",
    ],
)
async def test_what_does_not_exist_is_refused_before_the_upgrade(shared: Any, path: str) -> None:
    with pytest.raises(InvalidStatus) as refused:
        async with wire(shared, path):
            pass
    assert refused.value.response.status_code in (400, 404)


@pytest.mark.parametrize(
    ("path", "body", "where"),
    [
        ("/v1/audio/speech", {"input": ""}, ("error", "message")),
        ("/v1/audio/speech", {"input": "Hi.", "speed": 9}, ("error", "message")),
        ("/v1/audio/speech", {"input": "Hi.", "stream_format": "x"}, ("error", "message")),
        ("/v1/audio/speech", b"{", ("error", "message")),
        ("/v1/text-to-speech/alice", {}, ("detail", "message")),
        ("/v1/text-to-speech/nobody", {"text": "Hi."}, ("detail", "message")),
        ("/v1/speak?encoding=aac", {"text": "Hi."}, ("err_msg",)),
        ("/tts/bytes", {**SOUND, "voice": {"mode": "embedding"}}, ("message",)),
        (
            "/tts/sse",
            {**SOUND, "transcript": "x", "output_format": {"container": "x"}},
            ("message",),
        ),
    ],
)
async def test_what_is_wrong_is_said_in_the_vendors_shape(
    shared: Any, path: str, body: object, where: tuple[str, ...]
) -> None:
    status, _, answer = await asyncio.to_thread(post, shared, path, body)
    assert status == 400
    value = json.loads(answer)
    for key in where:
        value = value[key]
    assert isinstance(value, str) and value


@pytest.mark.parametrize(
    ("path", "key"), [(MULTI, "error"), (SPEAK, "description"), (CARTESIA, "message")]
)
async def test_nonsense_is_answered_and_the_socket_lives(shared: Any, path: str, key: str) -> None:
    async with wire(shared, path) as client:
        for frame in ("{", "[]", b"\x00", '{"text": 5, "type": "Speak", "transcript": 5}'):
            await client.socket.send(frame)
            answer = await client.next()
            while key not in answer:  # Deepgram greets
                answer = await client.next()
        long = "x" * 257
        await client.send({"type": long, "text": "a", "context_id": long, "transcript": "a"})
        while key not in await client.next():
            pass
        await client.socket.ping()


@pytest.mark.parametrize(
    ("path", "body", "head"),
    [
        ("/v1/text-to-speech/alice?output_format=mp3_22050_32", {"text": "Hi."}, b"ID3"),
        ("/v1/text-to-speech/alice/stream?output_format=opus_48000_96", {"text": "Hi."}, b"OggS"),
        ("/v1/text-to-speech/21m00Tcm4TlvDq8ikWAM?output_format=wav_16000", {"text": "a"}, b"RIFF"),
        ("/v1/speak", {"text": "Hi."}, b"ID3"),
        ("/v1/speak?encoding=linear16", {"text": "Hi."}, b"RIFF"),
        ("/v1/speak?encoding=opus", {"text": "Hi."}, b"OggS"),
        (
            "/tts/bytes",
            {**SOUND, "transcript": "Hi.", "output_format": {"container": "mp3"}},
            b"ID3",
        ),
        (
            "/tts/bytes",
            {
                **SOUND,
                "transcript": "Hi.",
                "output_format": {"container": "wav", "encoding": "pcm_s16le"},
            },
            b"RIFF",
        ),
    ],
)
async def test_formats_over_http(shared: Any, path: str, body: object, head: bytes) -> None:
    status, _, answer = await asyncio.to_thread(post, shared, path, body)
    assert status == 200
    assert answer.startswith(head)


async def test_a_preset_voice_is_its_alias_or_the_fallback_or_the_default(serve: Serve) -> None:
    voices = {"engine": FakeEngine(speed=500.0, voices=("alice", "bob"))}
    aliased = serve(**voices, voice_aliases={"nova": "bob"}, fallback_voice="alice")
    plain = serve(FakeEngine(speed=500.0, voices=("alice", "bob")))

    def said(server: Any, voice: str | None) -> bytes:
        body = {"input": "Hi there.", "voice": voice, "response_format": "pcm"}
        status, _, answer = post(server, "/v1/audio/speech", body)
        assert status == 200
        return answer

    def check() -> None:
        assert said(plain, "alice") != said(plain, "bob") != said(plain, None)
        assert said(aliased, "nova") == said(plain, "bob")
        assert said(aliased, "alloy") == said(plain, "alice")
        assert said(plain, "alloy") == said(plain, "nova") == said(plain, None)

    await asyncio.to_thread(check)


async def test_telephone_sound_and_floats_over_the_sockets(shared: Any) -> None:
    text = "Hi there. "
    path = "/v1/text-to-speech/alice/multi-stream-input?output_format="
    for name, bytes_a_second in (("ulaw_8000", 8000), ("alaw_8000", 8000), ("pcm_16000", 32_000)):
        async with wire(shared, path + name) as client:
            await client.send(words(text, flush=True), {"context_id": "a", "close_context": True})
            heard_bytes = 48_000 * seconds(await client.until("isFinal"))
            assert heard_bytes == pytest.approx(bytes_a_second * spoken_s(text))
    for name, bytes_a_second in (("mulaw", 8000), ("alaw", 8000), ("linear16", 48_000)):
        async with wire(shared, f"/v1/speak?encoding={name}") as client:
            await client.send({"type": "Speak", "text": text}, {"type": "Flush"})
            heard_bytes = 48_000 * seconds(await client.until("type", "Flushed"))
            assert heard_bytes == pytest.approx(bytes_a_second * spoken_s(text))
    for name, rate, width in (
        ("pcm_f32le", 24_000, 4),
        ("pcm_mulaw", 8000, 1),
        ("pcm_alaw", 8000, 1),
        ("pcm_s16le", 16_000, 2),
    ):
        output = {"container": "raw", "encoding": name, "sample_rate": rate}
        async with wire(shared, CARTESIA) as client:
            await client.send(request(text, output_format=output, **{"continue": False}))
            heard_bytes = 48_000 * seconds(await client.until("type", "done"))
            assert heard_bytes == pytest.approx(rate * width * spoken_s(text))


async def test_cartesia_events_over_http(shared: Any) -> None:
    body = {**SOUND, "transcript": "Hi there.", "add_timestamps": True}
    status, headers, answer = await asyncio.to_thread(post, shared, "/tts/sse", body)
    assert status == 200 and headers["content-type"].startswith("text/event-stream")
    events = [json.loads(line[6:]) for line in answer.decode().splitlines() if line[:5] == "data:"]
    assert seconds(events) == spoken_s("Hi there.")
    spoken = [
        word for e in events if e["type"] == "timestamps" for word in e["word_timestamps"]["words"]
    ]
    assert spoken == ["Hi", "there."]
    assert events[-1]["type"] == "done"


async def test_times_of_stream_input_count_from_the_message_or_from_the_context(
    shared: Any,
) -> None:
    for query, absolute in (("", False), ("&sync_alignment=true", True)):
        async with wire(shared, SINGLE + query) as client:
            await client.send(
                {"text": "One two three. "}, {"text": "Four five six. "}, {"text": ""}
            )
            messages = await client.until("isFinal")
            assert await client.close_code() == 1000
        end_ms, text = 0, ""
        for alignment in (m["alignment"] for m in messages if m.get("alignment")):
            starts, durations = alignment["charStartTimesMs"], alignment["charDurationsMs"]
            assert starts == sorted(starts)
            if absolute:
                assert starts[0] >= end_ms
            end_ms = starts[-1] + durations[-1] + (0 if absolute else end_ms)
            text += "".join(alignment["chars"])
        assert text == "One two three. Four five six. "
        assert end_ms == pytest.approx(1000 * seconds(messages), abs=1)


async def test_a_server_that_goes_away_opens_no_more_contexts(serve: Serve) -> None:
    server = serve(FakeEngine(speed=2.0, voices=("alice",)))
    async with wire(server, MULTI) as client:
        await client.send(words("This one is spoken to its end. ", flush=True))
        await client.until("isFinal", False)
        await client.send({"context_id": "a", "close_context": True})
        server.server.should_exit = True
        await server.until(lambda: server.server.gateway.draining)
        await client.send(words("No more. ", "late"))
        messages = await client.until("isFinal")
        assert [m["error"] for m in messages if m.get("contextId") == "late"] == [
            "server is shutting down"
        ]


async def test_speech_is_as_fast_as_asked(shared: Any) -> None:
    text, fast = "This is said in half the time. ", {"speed": 2.0}
    usual_s = spoken_s(text)
    async with wire(shared, MULTI) as client:
        await client.send(words(" ", voice_settings=fast), words(text, flush=True))
        await client.send({"context_id": "a", "close_context": True})
        assert seconds(await client.until("isFinal")) == pytest.approx(usual_s / 2, rel=0.05)
    async with wire(shared, SPEAK + "&speed=2") as client:
        await client.send({"type": "Speak", "text": text}, {"type": "Flush"})
        assert seconds(await client.until("type", "Flushed")) == pytest.approx(
            usual_s / 2, rel=0.05
        )
    async with wire(shared, CARTESIA) as client:
        await client.send(request(text, generation_config=fast, **{"continue": False}))
        assert seconds(await client.until("type", "done")) == pytest.approx(usual_s / 2, rel=0.05)


@pytest.mark.parametrize(
    "path",
    [
        "/v1/audio/speech",
        "/v1/text-to-speech/alice",
        "/v1/text-to-speech/alice/stream/with-timestamps",
        "/v1/speak",
        "/tts/bytes",
        "/tts/sse",
    ],
)
async def test_no_body_is_a_fault_of_the_server(shared: Any, path: str) -> None:
    chance = random.Random(path)
    keys = ("input", "text", "transcript", "voice", "speed", "voice_settings", "output_format")
    keys += ("response_format", "stream_format", "generation_config", "seed", "context_id")
    values = (*FRAGMENTS, {"container": "mp3", "bit_rate": "x"}, {"id": "alice"}, "mp3", "sse")

    def attempts() -> list[int]:
        bodies = [
            {key: chance.choice(values) for key in chance.sample(keys, chance.randint(0, 6))}
            for _ in range(60)
        ]
        return [post(shared, path, body)[0] for body in bodies]

    statuses = await asyncio.to_thread(attempts)
    assert set(statuses) <= {200, 400}

"""Numbers that a client may write, of any size: none is a fault of the server."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.dialects import (
    CARTESIA,
    HUGE,
    MULTI,
    SOUND,
    SPEAK,
    post,
    request,
    seconds,
    spoken_s,
    wire,
    words,
)


@pytest.mark.parametrize("number", [HUGE, -HUGE], ids=["huge", "far below zero"])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/text-to-speech/alice", {"text": "Hi.", "voice_settings": {"speed": 0}, "seed": 0}),
        ("/v1/tts", {"text": "Hi.", "seed": 0, "chunk_length": 0, "temperature": 0, "top_p": 0}),
        ("/v1/tts", {"text": "Hi.", "max_new_tokens": 0, "min_chunk_length": 0, "normalize": 0}),
        ("/v1/tts", {"text": "Hi.", "prosody": {"speed": 0}}),
        ("/v1/tts", {"text": "Hi.", "prosody": {"volume": 0}}),
        ("/v1/tts", {"text": "Hi.", "sample_rate": 0}),
        ("/v1/tts", {"text": "Hi.", "mp3_bitrate": 0}),
        ("/v1/audio/speech", {"input": "Hi.", "speed": 0}),
        ("/tts/bytes", {**SOUND, "transcript": "Hi.", "generation_config": {"speed": 0}}),
        (
            "/tts/bytes",
            {
                **SOUND,
                "transcript": "Hi.",
                "output_format": {"container": "mp3", "sample_rate": 0, "bit_rate": 0},
            },
        ),
        (
            "/tts/sse",
            {**SOUND, "transcript": "Hi.", "output_format": {"container": "raw", "sample_rate": 0}},
        ),
        ("/v1/tokens", {"ttl_s": 0}),
    ],
)
async def test_a_number_beyond_all_floats_is_a_number(
    shared: Any, path: str, body: dict[str, Any], number: int
) -> None:
    def filled(value: object) -> object:
        if isinstance(value, dict):
            return {key: filled(inner) for key, inner in value.items()}
        return number if value == 0 else value

    kind = {"content-type": "application/json"}
    status, _, _ = await asyncio.to_thread(post, shared, path, filled(body), **kind)
    assert status in (200, 400)


@pytest.mark.parametrize("value", ["9" * 400, "9" * 5000, "-" + "9" * 400, "1e999", "nan"])
@pytest.mark.parametrize(
    "path",
    [
        "/v1/speak?speed=",
        "/v1/speak?encoding=linear16&sample_rate=",
        "/v1/speak?encoding=mp3&bit_rate=",
        "/v1/text-to-speech/alice?seed=",
        "/v1/text-to-speech/alice?output_format=mp3_44100_",
    ],
)
async def test_a_number_in_a_query_is_a_number(shared: Any, path: str, value: str) -> None:
    status, _, _ = await asyncio.to_thread(post, shared, path + value, {"text": "Hi."})
    assert status in (200, 400)


@pytest.mark.parametrize("value", ["9" * 400, "-" + "9" * 400, "1e999", "nan"])
async def test_a_number_in_a_handshake_is_a_number(shared: Any, value: str) -> None:
    for path in (f"{MULTI}&inactivity_timeout={value}&seed={value}", f"{SPEAK}&speed={value}"):
        async with wire(shared, path) as client:
            await client.socket.ping()


async def test_a_number_beyond_all_floats_leaves_the_other_contexts_alone(shared: Any) -> None:
    huge = {"speed": HUGE}
    async with wire(shared, MULTI) as client:
        await client.send(words("This one speaks on. ", "a", flush=True))
        await client.send(words("Fast. ", "b", flush=True, voice_settings=huge))
        for name in ("a", "b"):
            await client.send({"context_id": name, "close_context": True})
        messages = await client.until("isFinal") + await client.until("isFinal")
        assert seconds(messages, "a") == spoken_s("This one speaks on.")
        assert 0 < seconds(messages, "b") < spoken_s("Fast.")
    async with wire(shared, CARTESIA) as client:
        await client.send(request("This one speaks on.", "a"))
        await client.send(request("Fast.", "b", generation_config=huge, **{"continue": False}))
        await client.until("context_id", "b")


async def test_a_number_beyond_all_floats_in_fish_s_own_events(shared: Any) -> None:
    wanted = {"seed": HUGE, "temperature": -HUGE, "chunk_length": HUGE, "max_new_tokens": HUGE}
    async with wire(shared, "/v1/tts/live?protocol=json") as client:
        await client.send({"event": "start", "request": {"text": "", "format": "pcm", **wanted}})
        await client.send({"event": "text", "text": "Hi. "}, {"event": "flush", "id": HUGE})
        assert "id must be" in (await client.until("event", "error"))[-1]["error"]
        await client.send({"event": "cancel", "audio_ms": HUGE})
        await client.until("event", "cancelled")

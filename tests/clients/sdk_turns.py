"""The vendors' own SDKs, one a run: VENDOR HTTP_URL -> one JSON line.

Seconds are of pcm at 24 kHz unless their name says otherwise; ``_bytes`` are of a compressed form.
"""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from collections.abc import Awaitable, Callable

RATE = 24_000
SPOKEN = "Hello there my friend. How are you today?"
LONG = "This is a sentence that goes on and on. " * 16
LIMIT_S = 60.0


def seconds(audio: bytes) -> float:
    return len(audio) / 2 / RATE


async def of_openai(http: str) -> dict[str, object]:
    import openai

    report: dict[str, object] = {}
    async with openai.AsyncOpenAI(api_key="key", base_url=f"{http}/v1") as client:
        for kind in ("mp3", "opus", "flac", "wav", "pcm"):
            answer = await client.audio.speech.create(
                model="tts-1", voice="alloy", input=SPOKEN, response_format=kind
            )
            report[f"{kind}_bytes"] = len(answer.content)
            report[f"{kind}_type"] = answer.response.headers["content-type"]
            report[f"{kind}_head"] = answer.content[:4].hex()
        report["turn_s"] = seconds(answer.content)
        stream = client.audio.speech.with_streaming_response.create
        arguments = {"model": "tts-1", "voice": "nova", "response_format": "pcm"}
        async with stream(input=SPOKEN, stream_format="sse", **arguments) as answer:
            events = [json.loads(line[6:]) async for line in answer.iter_lines() if line]
        deltas = [e["audio"] for e in events if e["type"] == "speech.audio.delta"]
        report["sse_s"] = seconds(b"".join(map(base64.b64decode, deltas)))
        report["sse_last"] = events[-1]["type"]
        async with stream(input=SPOKEN, speed=2.0, **arguments) as answer:
            report["fast_s"] = seconds(await answer.read())
        async with stream(input=LONG, **arguments) as answer:
            async for _ in answer.iter_bytes():
                break
        errors: dict[str, str] = {}
        for name, wrong in (
            ("aac", {"response_format": "aac", "voice": "alloy"}),
            ("nobody", {"voice": "nobody"}),
        ):
            try:
                await client.audio.speech.create(model="tts-1", input=SPOKEN, **wrong)
            except openai.BadRequestError as error:
                errors[name] = error.message
        report["refused"] = errors
        report["models"] = [model.id async for model in client.models.list()]
    async with openai.AsyncOpenAI(api_key="key", base_url=f"{http}/compat/v1") as client:
        answer = await client.audio.speech.create(
            model="tts-1", voice="alice", input=SPOKEN, response_format="pcm"
        )
        report["compat_s"] = seconds(answer.content)
    return report


async def of_elevenlabs(http: str) -> dict[str, object]:
    from elevenlabs.client import ElevenLabs

    client = ElevenLabs(api_key="key", base_url=http)
    # The SDK makes wss of any base URL, and a server on loopback has no certificate.
    client.text_to_speech._ws_base_url = http.replace("http", "ws", 1)

    def work() -> dict[str, object]:
        speech = client.text_to_speech
        asked = {"voice_id": "alice", "text": SPOKEN}
        timed = list(speech.stream_with_timestamps(output_format="pcm_24000", **asked))
        spelled = [part.alignment for part in timed if part.alignment]
        pieces = iter(["Hello there ", "my friend. How ", "are you today?"])
        live = speech.convert_realtime("alice", text=pieces, output_format="pcm_24000")
        return {
            "turn_s": seconds(b"".join(live)),
            "convert_s": seconds(b"".join(speech.convert(output_format="pcm_24000", **asked))),
            "stream_bytes": len(b"".join(speech.stream(output_format="mp3_44100_128", **asked))),
            "ulaw_bytes": len(b"".join(speech.stream(output_format="ulaw_8000", **asked))),
            "timed_s": seconds(b"".join(base64.b64decode(part.audio_base_64) for part in timed)),
            "text": "".join("".join(a.characters) for a in spelled),
            "starts": [s for a in spelled for s in a.character_start_times_seconds],
            "ends": [e for a in spelled for e in a.character_end_times_seconds],
            "voices": [voice.voice_id for voice in client.voices.get_all().voices],
        }

    return await asyncio.to_thread(work)


async def of_deepgram(http: str) -> dict[str, object]:
    from deepgram import AsyncDeepgramClient
    from deepgram.environment import DeepgramClientEnvironment
    from deepgram.speak.v1.types import SpeakV1Text

    live = http.replace("http", "ws", 1)
    client = AsyncDeepgramClient(
        api_key="key",
        environment=DeepgramClientEnvironment(
            base=http, production=live, agent=live, agent_rest=http
        ),
    )
    report: dict[str, object] = {"flushed": []}

    async def until(socket: object, kind: str) -> float:
        audio = b""
        while True:
            message = await socket.recv()
            if isinstance(message, bytes):
                audio += message
            elif message.type == "Flushed" == kind:
                report["flushed"].append(message.sequence_id)
                return seconds(audio)
            elif message.type == kind:
                return seconds(audio)

    options = {"model": "aura-2-thalia-en", "encoding": "linear16", "sample_rate": RATE}
    async with client.speak.v1.connect(**options) as socket:
        await socket.send_text(SpeakV1Text(type="Speak", text="Hello there my friend."))
        await socket.send_text(SpeakV1Text(type="Speak", text="How are you today?"))
        await socket.send_flush()
        report["turn_s"] = await until(socket, "Flushed")
        await socket.send_flush()
        report["empty_flush_s"] = await until(socket, "Flushed")
        await socket.send_text(SpeakV1Text(type="Speak", text=LONG))
        await socket.send_flush()
        while not isinstance(await socket.recv(), bytes):
            pass
        await socket.send_clear()
        report["cleared_s"] = await until(socket, "Cleared")
        await socket.send_text(SpeakV1Text(type="Speak", text=SPOKEN))
        await socket.send_flush()
        report["again_s"] = await until(socket, "Flushed")
        await socket.send_close()
    for name, wanted in (
        ("http", {"encoding": "linear16", "container": "none", "sample_rate": RATE}),
        ("mulaw", {"encoding": "mulaw", "container": "none"}),
        ("mp3", {"encoding": "mp3"}),
    ):
        answer = client.speak.v1.audio.generate(text=SPOKEN, model="aura-2-thalia-en", **wanted)
        report[f"{name}_bytes"] = len(b"".join([part async for part in answer]))
    return report


async def of_cartesia(http: str) -> dict[str, object]:
    from cartesia import AsyncCartesia

    voice = {"mode": "id", "id": "alice"}
    raw = {"container": "raw", "encoding": "pcm_s16le", "sample_rate": RATE}
    shared = {"model_id": "sonic-3", "voice": voice, "output_format": raw}
    report: dict[str, object] = {}
    live = http.replace("http", "ws", 1)
    client = AsyncCartesia(api_key="key", base_url=http, websocket_base_url=live)

    async def hear(context: object) -> dict[str, object]:
        heard: dict[str, object] = {"audio_s": 0.0, "words": [], "kinds": []}
        async for event in context.receive():
            if event.type not in heard["kinds"]:
                heard["kinds"].append(event.type)
            if event.type == "chunk":
                heard["audio_s"] += seconds(event.audio)
            elif event.type == "timestamps":
                times = event.word_timestamps
                heard["words"] += zip(times.words, times.start, times.end, strict=True)
        return heard

    async with client.tts.websocket_connect() as connection:
        context = connection.context(context_id="one", **shared)
        await context.send(
            transcript="Hello there my friend. ", continue_=True, add_timestamps=True, **shared
        )
        await context.send(transcript="How are you today?", continue_=True, flush=True, **shared)
        await context.no_more_inputs()
        report["turn"] = await hear(context)
        context = connection.context(context_id="two", **shared)
        await context.send(transcript=LONG, continue_=True, **shared)
        async for event in context.receive():
            if event.type == "chunk":
                break
        await context.cancel()
        context = connection.context(context_id="one", **shared)
        await context.send(transcript=SPOKEN, continue_=False, **shared)
        report["again"] = await hear(context)
    answer = await client.tts.generate(transcript=SPOKEN, **shared)
    report["bytes_s"] = seconds(await answer.read())
    return report


VENDORS: dict[str, Callable[[str], Awaitable[dict[str, object]]]] = {
    "openai": of_openai,
    "elevenlabs": of_elevenlabs,
    "deepgram": of_deepgram,
    "cartesia": of_cartesia,
}


async def main(vendor: str, http: str) -> None:
    async with asyncio.timeout(LIMIT_S):
        report = await VENDORS[vendor](http)
    print(json.dumps(report), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))

"""LiveKit's plugin for Fish and its pool, turn after turn: HTTP_URL SECONDS -> one JSON line.

Seconds of audio of each turn, how many handshakes they took, and for each error that it told of,
whether it then went on by itself.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

import aiohttp
from livekit.plugins import fishaudio

SPOKEN = "Hello there my friend."
PAUSE_S = 0.2


async def turn(speaker: fishaudio.TTS) -> float:
    """Seconds that were heard."""
    audio_s = 0.0
    async with speaker.stream() as stream:
        for token in SPOKEN.split(" "):
            stream.push_text(f"{token} ")
        stream.end_input()
        async for event in stream:
            audio_s += event.frame.duration
    return audio_s


async def main(http: str, seconds: float) -> None:
    handshakes = 0
    recovered: list[bool] = []
    turns: list[float] = []
    tracing = aiohttp.TraceConfig()

    async def counted(*_: object) -> None:
        nonlocal handshakes
        handshakes += 1

    tracing.on_request_end.append(counted)
    until_s = time.monotonic() + seconds
    async with aiohttp.ClientSession(trace_configs=[tracing]) as session:
        speaker = fishaudio.TTS(
            api_key="key", base_url=http, output_format="pcm", http_session=session
        )
        speaker.on("error", lambda event: recovered.append(event.recoverable))
        while time.monotonic() < until_s:
            turns.append(await turn(speaker))
            await asyncio.sleep(PAUSE_S)
        await speaker.aclose()
    print(
        json.dumps({"turns": turns, "handshakes": handshakes, "recovered": recovered}), flush=True
    )


asyncio.run(main(sys.argv[1], float(sys.argv[2])))

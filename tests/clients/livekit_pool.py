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
from livekit_speech import seconds, turn

SPOKEN = "Hello there my friend."
PAUSE_S = 0.2


async def main(http: str, lasting_s: float) -> None:
    handshakes = 0
    recovered: list[bool] = []
    turns: list[float] = []
    tracing = aiohttp.TraceConfig()

    async def counted(*_: object) -> None:
        nonlocal handshakes
        handshakes += 1

    tracing.on_request_end.append(counted)
    until_s = time.monotonic() + lasting_s
    async with aiohttp.ClientSession(trace_configs=[tracing]) as session:
        speaker = fishaudio.TTS(
            api_key="key", base_url=http, output_format="pcm", http_session=session
        )
        speaker.on("error", lambda event: recovered.append(event.recoverable))
        while time.monotonic() < until_s:
            turns.append(seconds(await turn(speaker, SPOKEN)))
            await asyncio.sleep(PAUSE_S)
        await speaker.aclose()
    print(
        json.dumps({"turns": turns, "handshakes": handshakes, "recovered": recovered}), flush=True
    )


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], float(sys.argv[2])))

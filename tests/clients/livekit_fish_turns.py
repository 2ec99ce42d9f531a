"""LiveKit's plugin for Fish where it is delicate: HTTP_URL -> one JSON line.

A turn in every format, three turns and how many handshakes they took, text with nothing to say,
and a turn that is dropped at its first audio and left alone for a while.
"""

from __future__ import annotations

import asyncio
import json
import sys

import aiohttp
from livekit.plugins import fishaudio
from livekit_speech import seconds, turn

SPOKEN = "Hello there my friend. How are you today?"
LONG = "This is a sentence that goes on and on. " * 200
MUTE = ("...", "🙂", "?!")
GAP_S = 3.0
"""The other person speaks."""
LIMIT_S = 60.0


async def frames(session: aiohttp.ClientSession, http: str) -> float:
    async with session.get(f"{http}/metrics") as answer:
        lines = (await answer.text()).splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith("shoal_frames_total "))


async def main(http: str) -> None:
    handshakes: list[str] = []
    tracing = aiohttp.TraceConfig()

    async def counted(*arguments: object) -> None:
        handshakes.append(str(arguments[-1].url))

    tracing.on_request_end.append(counted)
    errors: list[str] = []
    async with (
        aiohttp.ClientSession() as plain,
        aiohttp.ClientSession(trace_configs=[tracing]) as session,
        asyncio.timeout(LIMIT_S),
    ):

        def plugin(output_format: str) -> fishaudio.TTS:
            speaker = fishaudio.TTS(
                api_key="key", base_url=http, output_format=output_format, http_session=session
            )
            speaker.on("error", lambda event: errors.append(repr(event.error)))
            return speaker

        formats: dict[str, float] = {}
        for name in ("wav", "pcm", "mp3", "opus"):
            speaker = plugin(name)
            formats[name] = seconds(await turn(speaker, SPOKEN))
            await speaker.aclose()
        handshakes.clear()
        speaker = plugin("wav")
        speaker.prewarm()
        rounds = [seconds(await turn(speaker, SPOKEN)) for _ in range(3)]
        taken = len(handshakes)
        mute = [seconds(await turn(speaker, text)) for text in MUTE]
        await turn(speaker, LONG, drop=True)
        cut = await frames(plain, http)
        await asyncio.sleep(GAP_S)
        generated = await frames(plain, http) - cut
        again = seconds(await turn(speaker, SPOKEN))
        await speaker.aclose()
    report = {
        "formats": formats,
        "rounds": rounds,
        "handshakes": taken,
        "mute": mute,
        "generated_frames": generated,
        "again": again,
        "errors": errors,
    }
    print(json.dumps(report), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))

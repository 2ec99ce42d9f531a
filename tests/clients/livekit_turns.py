"""LiveKit's own plugins, one dialect a run: DIALECT HTTP_URL -> one JSON line.

A turn of two sentences, one without a sentence end, one that is dropped at its first audio, one
after that, and one by ``synthesize``.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

import aiohttp
from livekit import rtc
from livekit.agents import tts
from livekit.agents.types import USERDATA_TIMED_TRANSCRIPT
from livekit.plugins import cartesia, deepgram, elevenlabs, fishaudio, openai
from livekit_speech import seconds, turn

VOICES = {
    "elevenlabs": "21m00Tcm4TlvDq8ikWAM",
    "cartesia": "a0e99841-438c-4a64-b679-ae501e7d6091",
}
"""The vendors' own."""
SPOKEN = "Hello there my friend. How are you today?"
UNENDED = "and this has no end"
LONG = "This is a sentence that goes on and on. " * 16
LIMIT_S = 60.0


def bare(dialect: str, http: str, session: aiohttp.ClientSession) -> tts.TTS:
    """As a user gets it who names nothing but the address."""
    match dialect:
        case "elevenlabs":
            return elevenlabs.TTS(api_key="key", base_url=f"{http}/v1", http_session=session)
        case "deepgram":
            return deepgram.TTS(api_key="key", base_url=f"{http}/v1/speak", http_session=session)
        case "cartesia":
            return cartesia.TTS(api_key="key", base_url=http, http_session=session)
        case "fish":
            return fishaudio.TTS(api_key="key", base_url=http, http_session=session)
        case _:
            return openai.TTS(api_key="key", base_url=f"{http}/v1")


def plugin(dialect: str, http: str, session: aiohttp.ClientSession) -> tts.TTS:
    match dialect:
        case "elevenlabs":
            return elevenlabs.TTS(
                api_key="key",
                base_url=f"{http}/v1",
                voice_id=VOICES["elevenlabs"],
                encoding="pcm_24000",
                sync_alignment=True,
                http_session=session,
            )
        case "deepgram":
            return deepgram.TTS(api_key="key", base_url=f"{http}/v1/speak", http_session=session)
        case "cartesia":
            return cartesia.TTS(
                api_key="key",
                base_url=http,
                voice=VOICES["cartesia"],
                word_timestamps=True,
                http_session=session,
            )
        case "fish":
            return fishaudio.TTS(
                api_key="key",
                base_url=http,
                output_format="pcm",
                voice_id="alice",
                http_session=session,
            )
        case _:
            return openai.TTS(api_key="key", base_url=f"{http}/v1", model="gpt-4o-mini-tts")


def report_of(frames: list[rtc.AudioFrame]) -> dict[str, object]:
    words: list[tuple[str, float, float]] = []
    for frame in frames:
        for word in frame.userdata.get(USERDATA_TIMED_TRANSCRIPT, []):
            words.append((str(word).strip(), word.start_time, word.end_time))
    return {"audio_s": seconds(frames), "words": words}


async def spoken(speaker: tts.TTS, text: str, drop: bool = False) -> dict[str, object]:
    if speaker.capabilities.streaming:
        return report_of(await turn(speaker, text, drop))
    return await whole(speaker, text, drop)


async def whole(speaker: tts.TTS, text: str, drop: bool = False) -> dict[str, object]:
    frames: list[rtc.AudioFrame] = []
    async with speaker.synthesize(text) as stream:
        async for event in stream:
            frames.append(event.frame)
            if drop:
                break
    return report_of(frames)


async def main(dialect: str, http: str) -> None:
    async with aiohttp.ClientSession() as session:
        speaker = plugin(dialect, http, session)
        errors: list[str] = []
        speaker.on("error", lambda event: errors.append(repr(event.error)))
        report: dict[str, object] = {}
        async with asyncio.timeout(LIMIT_S):
            report["turn"] = await spoken(speaker, SPOKEN)
            report["flush"] = await spoken(speaker, UNENDED)
            report["interrupted"] = await spoken(speaker, LONG, drop=True)
            began_s = time.monotonic()
            report["again"] = await spoken(speaker, SPOKEN)
            report["again_s"] = time.monotonic() - began_s
            report["whole"] = await whole(speaker, SPOKEN)
            await speaker.aclose()
            speaker = bare(dialect, http, session)
            report["bare"] = await spoken(speaker, SPOKEN)
            await speaker.aclose()
        report["errors"] = errors
        print(json.dumps(report), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))

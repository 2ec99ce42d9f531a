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
from livekit.agents import tts
from livekit.agents.types import USERDATA_TIMED_TRANSCRIPT
from livekit.plugins import cartesia, deepgram, elevenlabs, fishaudio, openai

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


class Heard:
    def __init__(self) -> None:
        self.audio_s = 0.0
        self.words: list[tuple[str, float, float]] = []

    def take(self, frame: object) -> None:
        self.audio_s += frame.duration
        for word in frame.userdata.get(USERDATA_TIMED_TRANSCRIPT, []):
            self.words.append((str(word).strip(), word.start_time, word.end_time))

    def report(self) -> dict[str, object]:
        return {"audio_s": self.audio_s, "words": self.words}


async def turn(speaker: tts.TTS, text: str, drop: bool = False) -> dict[str, object]:
    heard = Heard()
    if not speaker.capabilities.streaming:
        return await whole(speaker, text, drop)
    async with speaker.stream() as stream:
        for token in text.split(" "):
            stream.push_text(f"{token} ")
        stream.end_input()
        async for event in stream:
            heard.take(event.frame)
            if drop:
                break
    return heard.report()


async def whole(speaker: tts.TTS, text: str, drop: bool = False) -> dict[str, object]:
    heard = Heard()
    async with speaker.synthesize(text) as stream:
        async for event in stream:
            heard.take(event.frame)
            if drop:
                break
    return heard.report()


async def main(dialect: str, http: str) -> None:
    async with aiohttp.ClientSession() as session:
        speaker = plugin(dialect, http, session)
        errors: list[str] = []
        speaker.on("error", lambda event: errors.append(repr(event.error)))
        report: dict[str, object] = {}
        async with asyncio.timeout(LIMIT_S):
            report["turn"] = await turn(speaker, SPOKEN)
            report["flush"] = await turn(speaker, UNENDED)
            report["interrupted"] = await turn(speaker, LONG, drop=True)
            began_s = time.monotonic()
            report["again"] = await turn(speaker, SPOKEN)
            report["again_s"] = time.monotonic() - began_s
            report["whole"] = await whole(speaker, SPOKEN)
            await speaker.aclose()
            speaker = bare(dialect, http, session)
            report["bare"] = await turn(speaker, SPOKEN)
            await speaker.aclose()
        report["errors"] = errors
        print(json.dumps(report), flush=True)


asyncio.run(main(sys.argv[1], sys.argv[2]))

"""pipecat's own services in a pipeline, one dialect a run: DIALECT HTTP_URL [SECONDS] -> one JSON
line.

A turn of two sentences, one that has no sentence end and is spoken for the flush at its end, one
that is interrupted at its first audio, and one after that. With SECONDS, turns alone for so long.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from dataclasses import dataclass, field

from loguru import logger
from pipecat.frames.frames import (
    BotStartedSpeakingFrame,
    BotStoppedSpeakingFrame,
    EndFrame,
    ErrorFrame,
    Frame,
    InterruptionFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
    TTSAudioRawFrame,
    TTSStoppedFrame,
    TTSTextFrame,
)
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams, PipelineWorker
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.services.cartesia.tts import CartesiaTTSService
from pipecat.services.deepgram.tts import DeepgramTTSService
from pipecat.services.elevenlabs.tts import ElevenLabsTTSService
from pipecat.services.fish.tts import FishAudioTTSService
from pipecat.services.openai.tts import OpenAITTSService
from pipecat.services.tts_service import TTSService
from pipecat.workers.runner import WorkerRunner

VOICES = {
    "elevenlabs": "21m00Tcm4TlvDq8ikWAM",
    "cartesia": "a0e99841-438c-4a64-b679-ae501e7d6091",
}
"""The vendors' own."""
RATE = 24_000
SPOKEN = "Hello there my friend. How are you today?"
UNENDED = "and this has no end"
LONG = "This is a sentence that goes on and on. " * 16
MUTE = ("...", "🙂")
LIMIT_S = 60.0


def service(dialect: str, http: str) -> TTSService:
    live = http.replace("http", "ws", 1)
    match dialect:
        case "elevenlabs":
            settings = ElevenLabsTTSService.Settings(voice=VOICES["elevenlabs"])
            return ElevenLabsTTSService(api_key="key", url=live, settings=settings)
        case "deepgram":
            return DeepgramTTSService(api_key="key", base_url=live)
        case "cartesia":
            settings = CartesiaTTSService.Settings(voice=VOICES["cartesia"])
            return CartesiaTTSService(api_key="key", url=f"{live}/tts/websocket", settings=settings)
        case "fish":
            settings = FishAudioTTSService.Settings(voice="alice")
            fish = FishAudioTTSService(api_key="key", settings=settings)
            fish._base_url = f"{live}/v1/tts/live"  # it has no argument for that
            return fish
        case _:
            return OpenAITTSService(api_key="key", base_url=f"{http}/v1")


@dataclass
class Heard:
    audio_bytes: int = 0
    late_chunks: int = 0
    """That came behind the interruption."""
    interrupted: bool = False
    words: list[tuple[str, float]] = field(default_factory=list)
    first: asyncio.Event = field(default_factory=asyncio.Event)
    stopped: asyncio.Event = field(default_factory=asyncio.Event)

    def report(self) -> dict[str, object]:
        since = self.words[0][1] if self.words else 0.0
        return {
            "audio_s": self.audio_bytes / 2 / RATE,
            "late_chunks": self.late_chunks,
            "words": [(word, round(at_s - since, 3)) for word, at_s in self.words],
        }


class Speaker(FrameProcessor):
    """Plays nothing, and says that it does, as a transport would."""

    def __init__(self) -> None:
        super().__init__()
        self.heard = Heard()
        self._plays_until_s = 0.0
        self._hushed = asyncio.Event()
        self._plays: asyncio.Task[None] | None = None

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        match frame:
            case TTSAudioRawFrame():
                self.heard.audio_bytes += len(frame.audio)
                self.heard.late_chunks += self.heard.interrupted
                self.heard.first.set()
                now_s = time.monotonic()
                seconds = len(frame.audio) / 2 / frame.sample_rate
                self._plays_until_s = max(self._plays_until_s, now_s) + seconds
                if self._plays is None:
                    self._hushed.clear()
                    await self.push_frame(BotStartedSpeakingFrame(), FrameDirection.UPSTREAM)
                    self._plays = self.create_task(self._play())
            case TTSTextFrame() if frame.pts is not None:
                self.heard.words.append((frame.text, frame.pts / 1e9))
            case TTSStoppedFrame():
                self.heard.stopped.set()
            case InterruptionFrame():
                self.heard.interrupted = True
                self._plays_until_s = 0.0
                self._hushed.set()
            case _:
                pass
        await self.push_frame(frame, direction)

    async def _play(self) -> None:
        while (left_s := self._plays_until_s - time.monotonic()) > 0:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._hushed.wait(), left_s)
        self._plays = None
        await self.push_frame(BotStoppedSpeakingFrame(), FrameDirection.UPSTREAM)

    async def cleanup(self) -> None:
        await super().cleanup()
        if self._plays is not None:
            await self.cancel_task(self._plays)


class Errors(FrameProcessor):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if isinstance(frame, ErrorFrame):
            self.seen.append(frame.error)
        await self.push_frame(frame, direction)


async def main(dialect: str, http: str, seconds: float = 0.0) -> None:
    logger.remove()
    logger.add(sys.stderr, level="WARNING")
    errors, speaker = Errors(), Speaker()
    worker = PipelineWorker(
        Pipeline([errors, service(dialect, http), speaker]),
        cancel_on_idle_timeout=False,
        params=PipelineParams(audio_out_sample_rate=RATE),
    )
    started = asyncio.Event()

    @worker.event_handler("on_pipeline_started")
    async def _(*_: object) -> None:
        started.set()

    async def say(text: str) -> Heard:
        heard = speaker.heard = Heard()
        await worker.queue_frame(LLMFullResponseStartFrame())
        for token in text.split(" "):
            await worker.queue_frame(LLMTextFrame(f"{token} "))
        await worker.queue_frame(LLMFullResponseEndFrame())
        return heard

    async def turn(text: str) -> dict[str, object]:
        heard = await say(text)
        await asyncio.wait_for(heard.stopped.wait(), LIMIT_S)
        await asyncio.sleep(0.2)  # words come when they are due
        return heard.report()

    async def drive() -> None:
        await asyncio.wait_for(started.wait(), LIMIT_S)
        if seconds:
            until_s = time.monotonic() + seconds
            heard_s: list[object] = []
            while time.monotonic() < until_s:
                heard_s.append((await turn(SPOKEN))["audio_s"])
            print(json.dumps({"turns": heard_s, "errors": errors.seen}), flush=True)
            await worker.queue_frame(EndFrame())
            return
        report: dict[str, object] = {"turn": await turn(SPOKEN), "flush": await turn(UNENDED)}
        heard = await say(LONG)
        await asyncio.wait_for(heard.first.wait(), LIMIT_S)
        await worker.queue_frame(InterruptionFrame())
        await asyncio.sleep(0.3)
        report["interrupted"] = heard.report()
        report["again"] = await turn(SPOKEN)
        if dialect == "fish":
            report["mute"] = [await turn(text) for text in MUTE]
        report["errors"] = errors.seen
        print(json.dumps(report), flush=True)
        await worker.queue_frame(EndFrame())

    runner = WorkerRunner(handle_sigint=False)
    await runner.add_workers(worker)
    await asyncio.gather(runner.run(), drive())


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], float(sys.argv[3]) if sys.argv[3:] else 0.0))

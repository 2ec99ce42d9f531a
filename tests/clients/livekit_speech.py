"""One turn through a plugin of LiveKit's, as the scripts beside this speak it."""

from __future__ import annotations

from livekit import rtc
from livekit.agents import tts


async def turn(speaker: tts.TTS, text: str, drop: bool = False) -> list[rtc.AudioFrame]:
    """What was heard of ``text``, pushed word by word. ``drop``: no more than its first audio."""
    frames: list[rtc.AudioFrame] = []
    async with speaker.stream() as stream:
        for token in text.split(" "):
            stream.push_text(f"{token} ")
        stream.end_input()
        async for event in stream:
            frames.append(event.frame)
            if drop:
                break
    return frames


def seconds(frames: list[rtc.AudioFrame]) -> float:
    return sum(frame.duration for frame in frames)

"""Formats and prosody over the live socket, as a client asks for them and decodes them."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import soundfile

from shoal.engine.fake_tone import tone

Dial = Callable[..., Any]
TEXT = "Hello there, this is a test. And a second sentence."
SEGMENTS = (TEXT[:28], TEXT[29:])
MODEL_RATE = 24_000
FRAME_S = 0.05
SPOKEN_S = sum(len(tone(s, "", 0, MODEL_RATE, 1200)) for s in SEGMENTS) / 2 / MODEL_RATE


@pytest.mark.field_row(18, 20)
@pytest.mark.parametrize(
    ("audio_format", "rate"), [("mp3", None), ("mp3", 32_000), ("mp3", 44_100), ("opus", None)]
)
@pytest.mark.parametrize("flushes", [False, True])
async def test_compressed_sound_is_whole_at_the_finish(
    shared: Any, dial: Dial, audio_format: str, rate: int | None, flushes: bool
) -> None:
    async with dial(shared) as socket:
        await socket.start(format=audio_format, sample_rate=rate)
        for segment in SEGMENTS:
            await socket.send("text", text=segment + " ")
            if flushes:
                await socket.send("flush")
        await socket.send("stop")
        heard = await socket.hear()
    assert heard.reason == "stop" and not heard.errors
    samples, heard_rate = soundfile.read(io.BytesIO(heard.audio))
    assert heard_rate == (rate or {"mp3": 44_100, "opus": 48_000}[audio_format])
    # Tones give no pause that silence could be taken from.
    more_s = 0.15 if flushes else 0.0
    seconds = len(samples) / heard_rate
    assert SPOKEN_S - 0.001 <= seconds <= SPOKEN_S + 2 * FRAME_S + 2 * more_s
    assert np.abs(samples[: heard_rate // 5]).max() > 0.1
    assert np.abs(samples[int(heard_rate * (SPOKEN_S - 0.1)) :]).max() > 0.05


async def test_one_mp3_stream_a_turn(shared: Any, dial: Dial) -> None:
    async with dial(shared) as socket:
        for _ in range(2):
            await socket.say(TEXT, format="mp3", sample_rate=None)
            heard = await socket.hear()
            assert heard.audio[:3] == b"ID3" and heard.audio.count(b"ID3") == 1
            assert all(heard.chunks)


@pytest.mark.parametrize("name", ["ulaw", "mulaw", "alaw", "g711_alaw"])
async def test_telephone_sound_is_a_byte_a_sample_at_8_khz(
    shared: Any, dial: Dial, name: str
) -> None:
    async with dial(shared) as socket:
        await socket.start(format=name, sample_rate=None)
        await socket.send("text", text=TEXT)
        await socket.send("stop")
        heard = await socket.hear()
    assert heard.reason == "stop"
    assert len(heard.audio) / 8000 == pytest.approx(SPOKEN_S, abs=FRAME_S)


@pytest.mark.parametrize("speed", [0.5, 0.8, 1.25, 2.0])
async def test_speed_changes_the_length(shared: Any, dial: Dial, speed: float) -> None:
    async with dial(shared) as socket:
        await socket.say(TEXT, prosody={"speed": speed, "normalize_loudness": False})
        heard = await socket.hear()
    assert heard.reason == "stop"
    assert not [e for e in heard.events if e["event"] == "log"]
    assert len(heard.audio) / 2 / MODEL_RATE == pytest.approx(SPOKEN_S / speed, rel=0.02)
    assert all(1024 < len(c) <= 65_536 and len(c) % 2 == 0 for c in heard.chunks)


async def test_loudness_is_levelled_unless_it_is_not_wanted(shared: Any, dial: Dial) -> None:
    plain = b"".join(tone(s, "", 0, MODEL_RATE, 1200) for s in SEGMENTS)
    async with dial(shared) as socket:
        await socket.say(TEXT, prosody=None)
        levelled = (await socket.hear()).audio
        await socket.say(TEXT, prosody=None)
        again = (await socket.hear()).audio
        await socket.say(TEXT, prosody={"normalize_loudness": False})
        untouched = (await socket.hear()).audio
    assert untouched == plain
    assert levelled == again != plain and len(levelled) == len(plain)

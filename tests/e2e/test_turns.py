"""Whole turns over loopback with a fake engine: tones for speech, real frames on a real socket."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import soundfile

from shoal.engine.fake import FakeEngine
from shoal.engine.fake_tone import tone
from shoal.proto.request import PCM_RATES

Serve = Callable[..., Any]
Dial = Callable[..., Any]
TEXT = "Hello there, this is a test. It has a number, 3.14, and a second sentence. "


def expected(*segments: str, voice: str = "", seed: int = 0) -> bytes:
    return b"".join(tone(segment, voice, seed, 24_000, 1_200) for segment in segments)


async def test_a_turn_in_pcm(shared: Any, dial: Dial) -> None:
    async with dial(shared) as socket:
        await socket.say("Hello ", "there. ", "Two.")
        heard = await socket.hear()
    assert heard.reason == "stop" and not heard.errors
    assert heard.audio == expected("Hello there.", "Two.")
    assert all(len(chunk) > 1024 and len(chunk) % 2 == 0 for chunk in heard.chunks)
    assert len(heard.chunks[0]) >= 2 * 0.08 * 24_000
    assert all(isinstance(event["time"], int) for event in heard.events)


@pytest.mark.field_row(17, 19)
async def test_a_turn_in_wav(shared: Any, dial: Dial) -> None:
    async with dial(shared) as socket:
        await socket.say("Hello there. Two.", format="wav")
        heard = await socket.hear()
    assert heard.reason == "stop"
    header, samples = heard.audio[:44], heard.audio[44:]
    assert header[:4] == b"RIFF" and header[8:16] == b"WAVEfmt "
    assert header[20:24] == b"\x01\x00\x01\x00"  # format tag 1, mono
    assert int.from_bytes(header[24:28], "little") == 24_000
    assert header[40:44] == (0xFFFFFF00).to_bytes(4, "little")
    assert samples == expected("Hello there.", "Two.")  # and no trailer: Kokoro-FastAPI#463
    assert b"RIFF" not in samples


@pytest.mark.field_row(2, 3, 27)
@pytest.mark.parametrize("rate", PCM_RATES)
async def test_every_rate_keeps_length_and_message_rules(
    shared: Any, dial: Dial, rate: int
) -> None:
    async with dial(shared) as socket:
        await socket.say(TEXT, sample_rate=rate)
        heard = await socket.hear()
    seconds = len(expected(TEXT[:28], TEXT[28:-1])) / 2 / 24_000
    assert len(heard.audio) / 2 / rate == pytest.approx(seconds, rel=0.01)
    assert all(1024 < len(c) <= 65_536 and len(c) % 2 == 0 for c in heard.chunks)


async def test_three_turns_on_one_socket(shared: Any, dial: Dial) -> None:
    async with dial(shared) as socket:
        for text in ("One.", "Number two.", "The third."):
            await socket.say(text)
            heard = await socket.hear()
            assert (heard.reason, heard.audio) == ("stop", expected(text))


async def test_text_may_come_with_the_start(shared: Any, dial: Dial) -> None:
    async with dial(shared) as socket:
        await socket.say("there.", text="Hello ")
        assert (await socket.hear()).audio == expected("Hello there.")


@pytest.mark.field_row(26)
async def test_a_sentence_is_spoken_before_the_input_ends(shared: Any, dial: Dial) -> None:
    """elevenlabs-python#395, and plain SDK users: nobody flushes, nobody has stopped yet."""
    async with dial(shared) as socket:
        await socket.start()
        await socket.send("text", text="One sentence. And ")
        assert (await socket.next())["event"] == "audio"


@pytest.mark.field_row(1, 28)
async def test_a_flush_speaks_all_and_ends_nothing(shared: Any, dial: Dial) -> None:
    """pipecat#899, bolna#746: nothing stays in a buffer, and text after a flush is spoken."""
    async with dial(shared) as socket:
        await socket.start()
        for text in ("No period here", "and again"):
            await socket.send("text", text=text)
            await socket.send("flush")
            await socket.send("flush")  # pipecat#4126: empty, so nothing
            audio, wanted = b"", expected(text)
            while len(audio) < len(wanted):
                audio += (await socket.next())["audio"]
            assert audio == wanted
        await socket.send("stop")
        heard = await socket.hear()
        assert (heard.audio, heard.reason) == (b"", "stop")


async def test_a_tail_behind_a_resampler_is_flushed_too(shared: Any, dial: Dial) -> None:
    async with dial(shared) as socket:
        await socket.start(sample_rate=8000)
        await socket.send("text", text="No period here")
        await socket.send("flush")
        wanted = len(expected("No period here")) / 2 / 24_000
        heard_s = 0.0
        while heard_s < wanted:  # times out when the tail waits for the next sentence
            chunk = (await socket.next())["audio"]
            assert len(chunk) > 1024
            heard_s += len(chunk) / 2 / 8000
        assert heard_s < wanted + 0.15


@pytest.mark.parametrize("texts", [(), ("",), (" ",)])
async def test_a_turn_without_text_finishes_quickly(
    shared: Any, dial: Dial, texts: tuple[str, ...]
) -> None:
    async with dial(shared) as socket:
        await socket.say(*texts)
        heard = await asyncio.wait_for(socket.hear(), 5)
        assert (heard.reason, heard.audio) == ("stop", b"")


@pytest.mark.field_row(6, 32)
@pytest.mark.parametrize("text", ["...", "\U0001f600", "\0"])
async def test_unspeakable_text_is_silence_and_the_socket_lives(
    shared: Any, dial: Dial, text: str
) -> None:
    async with dial(shared) as socket:
        await socket.say(text, sample_rate=8000)
        heard = await socket.hear()
        assert heard.reason == "stop" and len(heard.audio) > 1024 and not any(heard.audio)
        await socket.say("Hello.")
        assert (await socket.hear()).audio == expected("Hello.")


async def test_a_named_voice_an_alias_and_a_seed(serve: Serve, dial: Dial) -> None:
    server = serve(voice_aliases={"hosted": "", "bob": "alice"})
    async with dial(server) as socket:
        for request, voice, seed in (
            ({"reference_id": "alice"}, "alice", 0),
            ({"reference_id": "bob"}, "alice", 0),
            ({"reference_id": "hosted"}, "", 0),
            ({"seed": 5}, "", 5),
        ):
            await socket.say("Hello.", **request)
            heard = await socket.hear()
            assert heard.audio == expected("Hello.", voice=voice, seed=seed), request


async def test_livekit_s_default_voice_is_ours(shared: Any, dial: Dial) -> None:
    async with dial(shared) as socket:
        await socket.say("Hello.", reference_id="933563129e564b19a115bedd57b7406a")
        assert (await socket.hear()).reason == "stop"


async def test_an_unknown_voice_falls_back_where_that_is_configured(
    serve: Serve, dial: Dial
) -> None:
    server = serve(fallback_voice="")
    async with dial(server) as socket:
        await server.until(lambda: bool(server.server.gateway.names.known))
        await socket.say("Hello.", reference_id="nobody")
        assert (await socket.hear()).audio == expected("Hello.")
        await socket.say("Hello.", reference_id="alice")
        assert (await socket.hear()).audio == expected("Hello.", voice="alice")


async def test_a_voice_in_the_handshake_is_taken(serve: Serve, dial: Dial) -> None:
    async with dial(serve(), "?reference_id=alice") as socket:
        await socket.say("Hello.", reference_id="alice")
        assert (await socket.hear()).audio == expected("Hello.", voice="alice")


async def test_volume_is_a_gain(shared: Any, dial: Dial) -> None:
    async with dial(shared) as socket:
        await socket.say("Hello.", prosody={"speed": 1, "volume": -20, "normalize_loudness": False})
        quiet = np.frombuffer((await socket.hear()).audio, "<i2").astype(float)
    loud = np.frombuffer(expected("Hello."), "<i2").astype(float)
    assert quiet.std() / loud.std() == pytest.approx(0.1, rel=0.01)


@pytest.mark.parametrize("speed", [0.5, 2.0])
async def test_a_long_turn_at_another_speed_ends(serve: Serve, dial: Dial, speed: float) -> None:
    """Twice the sound that a client may leave unread: it plays for longer or shorter here."""
    sentence = "This is a sentence of some length, number one."
    server = serve(FakeEngine(slots=2, speed=200.0))
    prosody = {"speed": speed, "normalize_loudness": False}
    async with dial(server) as socket:
        await socket.say(*[sentence + " "] * 10, prosody=prosody)
        heard = await socket.hear()
    assert heard.reason == "stop"
    length = 10 * len(expected(sentence)) / speed
    assert len(heard.audio) == pytest.approx(length, rel=0.02)


@pytest.mark.field_row(35)
async def test_a_short_sentence_does_not_overtake_a_long_one(serve: Serve, dial: Dial) -> None:
    """twilio-labs/call-gpt#2, GPT-SoVITS#762: in order, with neighbours on every slot."""
    server = serve(FakeEngine(slots=4, speed=50.0))
    texts = ["A" * 60 + ". ", "Bee. ", "C" * 30 + ". ", "Dee."]

    async def turn() -> None:
        async with dial(server) as socket:
            await socket.say(*texts)
            assert (await socket.hear()).audio == expected(*(text.strip() for text in texts))

    await asyncio.gather(*(turn() for _ in range(4)))


async def test_many_turns_and_sockets_leave_nothing_behind(serve: Serve, dial: Dial) -> None:
    """pipecat#3835, delayed-streams-modeling#159: slots do not leak away turn by turn."""
    server = serve(FakeEngine(slots=2, speed=500.0))

    async def caller(rounds: int) -> None:
        for _ in range(rounds):
            async with dial(server) as socket:
                await socket.say("Hello.")
                assert (await socket.hear()).reason == "stop"

    await asyncio.gather(*(caller(20) for _ in range(4)))
    await server.until(lambda: server.metric("shoal_sockets") == 0)
    assert server.metric("shoal_turns") == 0
    assert server.metric('shoal_turns_ended_total{end="stop"}') == 80
    assert server.engine.stats().streams_open == 0
    assert server.engine.stats().slots_busy == 0


async def test_a_turn_in_opus(shared: Any, dial: Dial) -> None:
    """Kokoro-FastAPI#447: the last page is there; one container, as long as the pcm is."""
    async with dial(shared) as socket:
        await socket.say(TEXT, format="opus", sample_rate=48_000, opus_bitrate=32)
        heard = await socket.hear()
    assert heard.reason == "stop"
    samples, rate = soundfile.read(io.BytesIO(heard.audio))
    seconds = len(expected(TEXT[:28], TEXT[28:-1])) / 2 / 24_000
    assert len(samples) / rate == pytest.approx(seconds, rel=0.01)
    assert heard.audio.count(b"OpusHead") == 1 and 0.1 < np.abs(samples).max() < 1.0

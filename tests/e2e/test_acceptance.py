"""What a server of Fish's protocol must pass, (a) to (k): each here, or by a test named here."""

from __future__ import annotations

import asyncio
import gc
import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fish_audio_sdk
import fishaudio
import pytest
import soundfile
from fishaudio.types import FlushEvent, TTSConfig

from shoal.engine.fake import FakeEngine
from shoal.engine.fake_tone import tone
from shoal.loadtest.own_server import free_port, is_ready
from tests.clients_runs import PYTHON, run_client
from tests.named import missing_tests

Serve = Callable[..., Any]
Dial = Callable[..., Any]

CLIENTS = "test_dialects_clients.py"
HELD = {
    # (a) every client, in every format
    "a": [
        (CLIENTS, "test_a_turn_is_heard_whole"),
        (CLIENTS, "test_livekit_synthesizes_over_http"),
        (CLIENTS, "test_js_sdk_hears_turns_over_the_socket"),
        ("test_fish_sdk.py", "test_speech_in_every_format"),
        ("test_acceptance.py", "test_a_python_sdk_hears_every_format"),
        ("test_acceptance.py", "test_a_livekit_hears_every_format"),
    ],
    # (b) one length in every format
    "b": [
        ("test_acceptance.py", "test_b_a_turn_is_as_long_in_every_format"),
        ("test_real_turn.py", "test_every_format_and_rate_is_the_same_speech"),
    ],
    # (c) three rounds of LiveKit on one handshake, without an error
    "c": [("test_acceptance.py", "test_c_livekit_speaks_three_times_on_one_handshake")],
    # (d) an interruption by pipecat: no chunk after it, the slot free within 0.1 s
    "d": [
        (CLIENTS, "test_pipecat_hears_nothing_behind_an_interruption_of_fish"),
        ("test_acceptance.py", "test_d_a_slot_is_free_at_once_after_a_close"),
    ],
    # (e) LiveKit does not read any more: what is generated all the same is bounded
    "e": [
        ("test_acceptance.py", "test_e_what_livekit_does_not_read_is_not_generated"),
        ("test_limits.py", "test_a_reader_that_stops_stops_its_generation"),
    ],
    # (f) text that cannot be spoken
    "f": [
        ("test_acceptance.py", "test_f_livekit_hears_silence_for_what_cannot_be_spoken"),
        (CLIENTS, "test_pipecat_hears_silence_of_fish_for_what_cannot_be_spoken"),
        ("test_turns.py", "test_unspeakable_text_is_silence_and_the_socket_lives"),
    ],
    # (g) messages of pcm: sizes, at 8 kHz, too
    "g": [("test_turns.py", "test_every_rate_keeps_length_and_message_rules")],
    # (h) the table of field issues
    "h": [("test_field_rows.py", "test_every_row_of_the_table_has_a_test")],
    # (i) nothing grows
    "i": [
        ("test_acceptance.py", "test_i_a_thousand_aborts_leave_nothing_behind"),
        ("test_field_rows.py", "test_memory_and_descriptors_stay_flat_over_many_sessions"),
    ],
    # (j) pongs under load
    "j": [("test_limits.py", "test_pongs_come_at_once_while_all_slots_speak")],
    # (k) SIGTERM, and the way back
    "k": [
        ("test_life.py", "test_sigterm_lets_turns_finish_refuses_new_ones_and_exits_0"),
        ("test_acceptance.py", "test_k_a_server_is_back_within_eight_seconds"),
    ],
}

TEXT = "Hello there, this is a test. And here is a second sentence, which is a longer one."
SEGMENTS = (TEXT[:28], TEXT[29:])
FORMATS = ("pcm", "wav", "mp3", "opus")
RATES = {"pcm": 24_000, "wav": 24_000, "mp3": 44_100, "opus": 48_000}


def spoken_s(*segments: str) -> float:
    """How long the fake speaks them."""
    return sum(len(tone(segment, "", 0, 24_000, 1_200)) for segment in segments) / 48_000


def seconds(audio: bytes, audio_format: str, rate: int) -> float:
    if audio_format == "pcm":
        return len(audio) / 2 / rate
    if audio_format == "wav":
        return (len(audio) - 44) / 2 / int.from_bytes(audio[24:28], "little")
    samples, heard_rate = soundfile.read(io.BytesIO(audio))
    return len(samples) / heard_rate


def test_every_letter_is_held_by_tests_that_exist() -> None:
    assert "".join(HELD) == "abcdefghijk"
    assert [letter for letter, tests in HELD.items() if not tests] == []
    assert missing_tests(named for tests in HELD.values() for named in tests) == []


# Fish's Python SDKs over the socket -------------------------------------------------------------


@pytest.mark.parametrize("audio_format", FORMATS)
@pytest.mark.parametrize("sdk", ["new", "new async", "legacy", "legacy async"])
async def test_a_python_sdk_hears_every_format(shared: Any, sdk: str, audio_format: Any) -> None:
    if sdk.startswith("legacy") and audio_format == "opus":
        audio_format = "mp3"  # it knows no opus
    words = TEXT.split(" ")
    pieces: list[str] = [f"{word} " for word in words]
    heard = b""
    if sdk == "new":

        def speak() -> bytes:
            client = fishaudio.FishAudio(api_key="key", base_url=shared.http)
            config = TTSConfig(format=audio_format)
            stream = client.tts.stream_websocket(
                iter([*pieces, FlushEvent()]), config=config, model="s2-pro"
            )
            audio = b"".join(stream)
            client.close()
            return audio

        heard = await asyncio.to_thread(speak)
    elif sdk == "new async":

        async def texts() -> Any:
            for piece in pieces:
                yield piece
            yield FlushEvent()

        async with fishaudio.AsyncFishAudio(api_key="key", base_url=shared.http) as client:
            config = TTSConfig(format=audio_format)
            async for chunk in client.tts.stream_websocket(texts(), config=config):
                heard += chunk
    elif sdk == "legacy":

        def speak_legacy() -> bytes:
            with fish_audio_sdk.WebSocketSession("key", base_url=shared.http) as session:
                request = fish_audio_sdk.TTSRequest(text="", format=audio_format)
                return b"".join(session.tts(request, iter(pieces)))

        heard = await asyncio.to_thread(speak_legacy)
    else:

        async def texts_legacy() -> Any:
            for piece in pieces:
                yield piece

        async with fish_audio_sdk.AsyncWebSocketSession("key", base_url=shared.http) as session:
            request = fish_audio_sdk.TTSRequest(text="", format=audio_format)
            async for chunk in session.tts(request, texts_legacy()):
                heard += chunk
    assert seconds(heard, audio_format, 44_100) == pytest.approx(spoken_s(*SEGMENTS), abs=0.3)


# LiveKit's plugin -------------------------------------------------------------------------------

TWO_S = spoken_s("Hello there my friend.", "How are you today?")
MUTE_S = 0.4
UNREAD_BOUND_S = 30.0
"""What the machine of a client takes while nobody reads it, the framework's queues, and ours.
Without a bound there would be 150 s: three at fifty times real time."""


@pytest.fixture(scope="module")
def livekit(make_server: Any) -> Any:
    if not PYTHON.exists():
        pytest.skip("no .clients: make test installs the clients there")
    server = make_server(FakeEngine(speed=50.0))
    yield run_client("livekit_fish_turns", server.http)
    server.stop()


def test_a_livekit_hears_every_format(livekit: dict[str, Any]) -> None:
    assert sorted(livekit["formats"]) == sorted(FORMATS)
    for audio_s in livekit["formats"].values():
        assert audio_s == pytest.approx(TWO_S, abs=0.06)


def test_c_livekit_speaks_three_times_on_one_handshake(livekit: dict[str, Any]) -> None:
    assert livekit["rounds"] == pytest.approx([TWO_S] * 3)
    assert livekit["handshakes"] == 1
    assert livekit["errors"] == []


def test_e_what_livekit_does_not_read_is_not_generated(livekit: dict[str, Any]) -> None:
    assert livekit["generated_frames"] * 0.05 < UNREAD_BOUND_S
    assert livekit["again"] == pytest.approx(TWO_S)


def test_f_livekit_hears_silence_for_what_cannot_be_spoken(livekit: dict[str, Any]) -> None:
    assert livekit["mute"] == pytest.approx([MUTE_S] * 3)
    assert livekit["errors"] == []


# The rest ---------------------------------------------------------------------------------------


async def test_b_a_turn_is_as_long_in_every_format(shared: Any, dial: Dial) -> None:
    text = TEXT + " " + "One more sentence is spoken here, so that a frame counts little. " * 4
    lengths: dict[str, float] = {}
    for name, rate in RATES.items():
        async with dial(shared) as socket:
            await socket.say(text, format=name, sample_rate=rate, seed=5)
            heard = await socket.hear()
        assert heard.reason == "stop"
        lengths[name] = seconds(heard.audio, name, rate)
    assert lengths["pcm"] > 10
    assert lengths == pytest.approx(dict.fromkeys(FORMATS, lengths["pcm"]), rel=0.01)


async def test_d_a_slot_is_free_at_once_after_a_close(serve: Serve, dial: Dial) -> None:
    server = serve(FakeEngine(slots=1, speed=20.0))
    taken_s: list[float] = []

    def is_free() -> bool:
        return server.engine.stats().slots_busy == 0

    for _ in range(5):  # the machine is shared: the best of a few
        async with dial(server) as socket:
            await socket.start()
            await socket.send("text", text="a" * 600)
            await socket.send("flush")
            await socket.next()
            await socket.send("stop")
            closing = asyncio.create_task(socket.socket.close())
            taken_s.append(await server.until(is_free))
            await closing
    assert min(taken_s) < 0.1


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


async def test_i_a_thousand_aborts_leave_nothing_behind(serve: Serve, dial: Dial) -> None:
    server = serve(FakeEngine(slots=4, speed=200.0))

    async def cycle(number: int) -> None:
        async with dial(server) as socket:
            if number % 4:
                await socket.start()
            if number % 4 > 1:
                await socket.send("text", text="One sentence is enough. And another.")
            if number % 4 > 2:
                await socket.send("stop")
            socket.vanish()

    async def cycles(count: int) -> tuple[int, int]:
        for first in range(0, count, 10):
            await asyncio.gather(*(cycle(first + number) for number in range(10)))
        await server.until(lambda: server.engine.stats().streams_open == 0)
        await server.until(lambda: server.metric("shoal_sockets") == 0)
        gc.collect()
        return resident_bytes(), len(os.listdir("/proc/self/fd"))

    await cycles(200)
    memory, descriptors = await cycles(200)
    memory_after, descriptors_after = await cycles(600)
    assert descriptors_after <= descriptors + 2
    assert memory_after - memory < 8 << 20
    assert server.engine.stats().slots_busy == 0


BACK_S = 8.0
"""pipecat tries for so long, and then gives up for good."""


def test_k_a_server_is_back_within_eight_seconds() -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-P", "-m", "shoal.realtime", "serve", "--engine", "fake"]

    def start() -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--port", str(port)], stderr=subprocess.DEVNULL
        )
        until_s = time.monotonic() + 60.0
        while not is_ready(url):
            assert process.poll() is None and time.monotonic() < until_s
            time.sleep(0.02)
        return process

    process = start()
    for _ in range(3):  # the machine is shared: the best of a few
        began_s = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert process.wait(60.0) == 0
        process = start()
        back_s = time.monotonic() - began_s
        if back_s < BACK_S:
            break
    process.terminate()
    assert process.wait(60.0) == 0
    assert back_s < BACK_S

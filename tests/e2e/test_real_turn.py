"""The built-in voice through a real server process: whole turns, and ratios inside one run.

Times are never compared with constants here: the machine may be slow. What must hold on any
machine is how figures of one run relate to each other.
"""

from __future__ import annotations

import asyncio
import io
import os
import urllib.request
import wave
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import soundfile
from numpy.typing import NDArray

from shoal.loadtest import demo
from shoal.loadtest.bench_turn import Figures, Plan, bench
from shoal.loadtest.measure.unpack import WavUnpacker
from shoal.loadtest.one_turn import Take, take_turn, target
from shoal.loadtest.own_server import own_server
from shoal.loadtest.plan.voices import Voice
from shoal.realtime import cli

pytestmark = pytest.mark.timeout(900)  # a model on processors that others use, too
SENTENCE = "The museum is closed on Mondays, but the library stays open until six."
FORMATS = (
    ("pcm", 8_000),
    ("pcm", 16_000),
    ("pcm", 44_100),
    ("wav", 22_050),
    ("wav", 24_000),
    ("wav", 48_000),
    ("opus", 48_000),
    ("mp3", 32_000),
    ("mp3", 44_100),
)


@pytest.fixture(scope="module")
def address(built_in: str) -> str:
    return built_in


@pytest.fixture(scope="module")
def figures(address: str) -> Figures:
    return asyncio.run(
        bench(address, "", Plan(turns=6, streams=6, realtime_turns=1, prebuffer_s=0.2))
    )


async def speak(address: str, text: str, **request: object) -> Take:
    connection = await target(address, **request).connect(Voice())
    try:
        return await take_turn(connection, text, prefill_wait_s=0)
    finally:
        await connection.close()


async def test_a_sentence_sounds_like_speech(address: str) -> None:
    take = await speak(address, SENTENCE, seed=1)
    samples = np.frombuffer(take.pcm, "<i2").astype(np.float64)
    assert 2.5 < take.audio_s < 8.0
    loud = np.abs(samples) > 300
    assert 0.3 < loud.mean() < 0.99, "neither silence nor noise"
    assert np.abs(samples).max() > 3000
    # Speech has its energy low; noise of the same level would have most of it above 4 kHz.
    power = np.abs(np.fft.rfft(samples)) ** 2
    assert power[: int(4000 * take.audio_s)].sum() > 0.8 * power.sum()


async def test_a_seed_gives_the_same_speech_alone_and_in_company(address: str) -> None:
    alone = await speak(address, SENTENCE, seed=3)
    company = [speak(address, f"Somebody else talks about {n}.", seed=n) for n in range(3)]
    beside, *_ = await asyncio.gather(speak(address, SENTENCE, seed=3), *company)
    other = await speak(address, SENTENCE, seed=4)
    assert beside.audio_s == alone.audio_s
    one, two = (np.frombuffer(take.pcm, "<i2").astype(np.int32) for take in (alone, beside))
    assert np.abs(one - two).max() <= 2, "the codes are equal, the sound up to rounding"
    assert other.pcm != alone.pcm


@pytest.mark.field_row(18)
async def test_every_format_and_rate_is_the_same_speech(
    address: str, dial: Callable[..., Any]
) -> None:
    """One seed, one text: as long in every container, as loud, and with the same envelope."""
    server = SimpleNamespace(live=address.replace("http", "ws", 1) + "/v1/tts/live")
    usual = await speak(address, SENTENCE, seed=1)
    expected = envelope(np.frombuffer(usual.pcm, "<i2") / 32768, 24_000)
    for name, rate in FORMATS:
        async with dial(server) as socket:
            await socket.say(SENTENCE, format=name, sample_rate=rate, seed=1, prosody=None)
            heard = await socket.hear()
        assert heard.reason == "stop"
        if name == "pcm":
            samples = np.frombuffer(heard.audio, "<i2") / 32768
        elif name == "wav":
            assert heard.audio.count(b"RIFF") == 1
            file = WavUnpacker()
            samples = np.frombuffer(file.feed(heard.audio)[1], "<i2") / 32768
            assert file.header_rate == rate
        else:
            samples, declared = soundfile.read(io.BytesIO(heard.audio))
            assert declared == rate
        assert len(samples) / rate == pytest.approx(usual.audio_s, abs=0.05), (name, rate)
        likeness = np.corrcoef(expected, envelope(samples, rate)[: len(expected)])[0, 1]
        # At 8 kHz most of the hissing sounds is above what there is.
        assert likeness > (0.94 if rate == 8_000 else 0.99), (name, rate)


def speaks(address: str) -> bool:
    with urllib.request.urlopen(f"{address}/metrics", timeout=30) as page:
        return b"\nshoal_turns 1.0\n" in page.read()


async def test_a_signal_lets_a_turn_end(address: str) -> None:
    text = " ".join([SENTENCE] * 2)
    whole = await speak(address, text, seed=2)
    with ExitStack() as stack:
        leaving = await asyncio.to_thread(stack.enter_context, own_server())
        connection = await target(leaving, seed=2).connect(Voice())
        turn = asyncio.create_task(take_turn(connection, text, prefill_wait_s=0))
        while not await asyncio.to_thread(speaks, leaving):
            assert not turn.done()
            await asyncio.sleep(0.02)
        await asyncio.to_thread(stack.close)  # SIGTERM, and waiting for the process
        assert (await turn).audio_s == whole.audio_s
        await connection.close()


def envelope(samples: NDArray[np.float64], rate: int) -> NDArray[np.float64]:
    """RMS of every 50 ms; a last piece that is not whole counts as filled with silence."""
    block = rate // 20
    whole = np.pad(samples, (0, -len(samples) % block)).reshape(-1, block)
    return np.sqrt(np.mean(whole**2, axis=1))


def test_audio_comes_long_before_the_turn_is_over(figures: Figures) -> None:
    assert figures.ttfa_p50_s < 0.5 * figures.single_wall_p50_s


def test_a_sentence_is_spoken_faster_than_it_is_heard(figures: Figures) -> None:
    assert figures.single_rtf < 1.0


def test_six_at_once_share_the_steps(figures: Figures) -> None:
    # Three on an idle machine; a busy one takes more from six, who would use all of it.
    assert figures.batch_gain > 1.2


def test_the_end_of_a_sentence_is_found_without_a_flush(figures: Figures) -> None:
    assert figures.ttfa_unflushed_p50_s < figures.single_wall_p50_s


@pytest.mark.field_row(4)
def test_whatever_arrives_keeps_the_prebuffer(figures: Figures) -> None:
    """Where the machine can speak for six at all, nobody of them hears a hole."""
    if figures.together_speed > 2 * figures.streams:
        assert figures.stalls == 0


def test_the_demo_writes_what_it_says(
    address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.wav"
    assert demo.main(["--url", address, "-o", str(out)]) == 0
    printed = capsys.readouterr().out
    for figure in ("first audio", "audio  ", "real-time factor"):
        assert figure in printed
    with wave.open(str(out)) as file:
        seconds = file.getnframes() / file.getframerate()
    assert f"{seconds:.2f} s" in printed


def test_a_voice_that_is_added_is_spoken_with_and_forgotten_again(
    address: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("SHOAL_VOICES", str(tmp_path / "voices"))
    recording = tmp_path / "voice.wav"
    take = asyncio.run(speak(address, SENTENCE, seed=5))
    demo.write_wav(recording, take)
    add = ["voice", "add", "ann", str(recording), "--text", SENTENCE]
    assert cli.main(add) == 0
    assert "ann: " in capsys.readouterr().out
    assert cli.main(add) == 1
    assert "exists already" in capsys.readouterr().err
    assert cli.main([*add, "--replace"]) == 0
    capsys.readouterr()
    assert cli.main(["voice", "list"]) == 0
    assert capsys.readouterr().out.startswith("ann\t")
    out = tmp_path / "ann.wav"
    say = ["say", "Hello there.", "--local", "--seed", "1", "-o", str(out)]
    assert cli.main([*say, "--voice", "ann"]) == 0
    with_ann = out.read_bytes()
    assert cli.main(say) == 0
    assert out.read_bytes() != with_ann
    assert cli.main(["voice", "remove", "ann"]) == 0
    assert cli.main([*say, "--voice", "ann"]) == 1
    assert "not found" in capsys.readouterr().err.splitlines()[-1]
    assert not any(name.startswith("codes") for _, _, names in os.walk(tmp_path) for name in names)

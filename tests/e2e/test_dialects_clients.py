"""Clients as they are, but for the address: pipecat, LiveKit, Fish's and other vendors' SDKs.

Each script of ``tests/clients`` runs once, in an environment of its own and against a server of
its own, and says what it heard; the tests look at that. The fake's audio tells by its length what
was spoken.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import soundfile

from shoal.engine.fake import FakeEngine
from shoal.engine.fake_tone import tone
from shoal.engine.voices import VoiceStore
from tests.clients_runs import PYTHON, run_client, run_javascript

DIALECTS = ("elevenlabs", "deepgram", "cartesia", "openai")
TIMED = ("elevenlabs", "cartesia")
FRAMEWORKS = ("pipecat_turns", "livekit_turns")
FRAMED = (*DIALECTS, "fish")
"""What the frameworks speak; Fish's Python SDKs are in ``test_fish_sdk.py`` and
``test_acceptance.py``."""
SPEED = 4.0
"""So fast does the fake speak: a client has the time to interrupt it."""
TIDY_S = 0.03
"""Some of the clients cut audio into steps of 10 ms and fill the last one up, or ask for MP3,
which is made of frames."""
MP3_S = 0.08
"""LiveKit asks ElevenLabs and OpenAI for MP3 where nothing is set: frames of 26 ms."""

Run = tuple[str, str]
RUNS: tuple[Run, ...] = (
    *((script, dialect) for script in FRAMEWORKS for dialect in FRAMED),
    *(("sdk_turns", dialect) for dialect in DIALECTS),
    ("fish_turns", "fish"),
)


@dataclass(frozen=True)
class Outcome:
    report: dict[str, Any]
    cancelled: float
    """Turns that the server counts as cancelled."""
    slots_busy: int


@pytest.fixture(scope="module")
def clients() -> None:
    if not PYTHON.exists():
        pytest.skip("no .clients: make test installs the clients there")


@pytest.fixture(scope="module")
def outcomes(
    clients: None, make_server: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[Run, Future[Outcome]]]:
    """All scripts, a few at a time; each has a server of its own."""
    recording = tmp_path_factory.mktemp("recording") / "tone.wav"
    at = np.arange(48_000)
    soundfile.write(recording, 0.25 * np.sin(at / 20) * np.sin(at / 2000), 24_000)

    def work(script: str, dialect: str) -> Outcome:
        folder = tmp_path_factory.mktemp("voices")
        engine = FakeEngine(speed=SPEED, voices=("alice",), store=VoiceStore(folder))
        server = make_server(engine, voices_dir=folder)
        try:
            if script == "fish_turns":
                report = run_javascript(script, server.http, str(recording))
            else:
                report = run_client(script, dialect, server.http)
            cancelled = server.metric('shoal_turns_ended_total{end="cancelled"}')
            return Outcome(report, cancelled, engine.stats().slots_busy)
        finally:
            server.stop()

    with ThreadPoolExecutor(3) as pool:
        yield {run: pool.submit(work, *run) for run in RUNS}


def seconds(*segments: str) -> float:
    """How long the fake speaks them."""
    return sum(len(tone(text, "", 0, 24_000, 1_200)) for text in segments) / 48_000


TWO = seconds("Hello there my friend.", "How are you today?")
UNENDED = seconds("and this has no end")
LONG = 16 * seconds("This is a sentence that goes on and on.")
WORDS = "Hello there my friend. How are you today?".split()


def rises_inside(words: list[Any], audio_s: float) -> None:
    starts = [word[1] for word in words]
    assert starts == sorted(starts)
    assert len(set(starts)) == len(starts)
    assert 0.0 <= starts[0] and starts[-1] < audio_s
    ends = [word[2] for word in words if len(word) > 2]
    assert ends == sorted(ends)
    assert all(end <= audio_s + 0.001 for end in ends)


@pytest.mark.parametrize("dialect", FRAMED)
@pytest.mark.parametrize("script", FRAMEWORKS)
class TestFrameworks:
    def test_a_turn_is_heard_whole(self, outcomes: Any, script: str, dialect: str) -> None:
        report = outcomes[script, dialect].result().report
        assert report["turn"]["audio_s"] == pytest.approx(TWO, abs=TIDY_S)
        assert report["errors"] == []

    def test_a_flush_speaks_what_has_no_end(self, outcomes: Any, script: str, dialect: str) -> None:
        report = outcomes[script, dialect].result().report
        assert report["flush"]["audio_s"] == pytest.approx(UNENDED, abs=TIDY_S)

    def test_a_barge_in_ends_the_speech(self, outcomes: Any, script: str, dialect: str) -> None:
        outcome = outcomes[script, dialect].result()
        assert 0 < outcome.report["interrupted"]["audio_s"] < LONG / 2
        assert outcome.cancelled >= 1
        assert outcome.slots_busy == 0

    def test_the_turn_after_it_has_none_of_the_old(
        self, outcomes: Any, script: str, dialect: str
    ) -> None:
        report = outcomes[script, dialect].result().report
        assert report["again"]["audio_s"] == pytest.approx(TWO, abs=TIDY_S)


@pytest.mark.parametrize("dialect", TIMED)
@pytest.mark.parametrize("script", FRAMEWORKS)
def test_words_rise_and_end_inside_the_audio(outcomes: Any, script: str, dialect: str) -> None:
    report = outcomes[script, dialect].result().report
    for turn in ("turn", "again"):
        words, audio_s = report[turn]["words"], report[turn]["audio_s"]
        assert [word[0] for word in words] == WORDS
        rises_inside(words, audio_s)


@pytest.mark.parametrize("dialect", FRAMED)
def test_livekit_synthesizes_over_http(outcomes: Any, dialect: str) -> None:
    report = outcomes["livekit_turns", dialect].result().report
    assert report["whole"]["audio_s"] == pytest.approx(TWO, abs=TIDY_S)


@pytest.mark.parametrize("dialect", FRAMED)
def test_livekit_speaks_with_nothing_set_but_the_address(outcomes: Any, dialect: str) -> None:
    report = outcomes["livekit_turns", dialect].result().report
    assert report["bare"]["audio_s"] == pytest.approx(TWO, abs=MP3_S)


def test_pipecat_hears_nothing_behind_an_interruption_of_fish(outcomes: Any) -> None:
    """Of other dialects, too; theirs keep the socket."""
    for dialect in FRAMED:
        report = outcomes["pipecat_turns", dialect].result().report
        assert report["interrupted"]["late_chunks"] == 0, dialect


def test_pipecat_hears_silence_of_fish_for_what_cannot_be_spoken(outcomes: Any) -> None:
    report = outcomes["pipecat_turns", "fish"].result().report
    assert [mute["audio_s"] for mute in report["mute"]] == pytest.approx([0.4, 0.4])
    assert report["errors"] == []


# Fish's JS SDK ----------------------------------------------------------------------------------


def test_js_sdk_hears_turns_over_the_socket(outcomes: Any) -> None:
    report = outcomes["fish_turns", "fish"].result().report
    assert report["turn_s"] == report["again_s"] == pytest.approx(TWO)
    assert report["flush_s"] == pytest.approx(UNENDED)
    assert report["mp3_bytes"] == pytest.approx(8000 * TWO, rel=0.05)


def test_js_sdk_hangs_up(outcomes: Any) -> None:
    outcome = outcomes["fish_turns", "fish"].result()
    assert 0 < outcome.report["interrupted_s"] < LONG / 2
    assert outcome.cancelled >= 1
    assert outcome.slots_busy == 0


def test_js_sdk_speaks_over_http(outcomes: Any) -> None:
    report = outcomes["fish_turns", "fish"].result().report
    assert report["convert_s"] == pytest.approx(TWO)
    assert report["wav_bytes"] == pytest.approx(44 + 48_000 * TWO)


def test_js_sdk_is_told_what_is_wrong(outcomes: Any) -> None:
    report = outcomes["fish_turns", "fish"].result().report
    assert report["refused"]["status"] == report["nobody"]["status"] == 400
    assert "unknown variant" in report["refused"]["body"]["message"]
    assert report["nobody"]["body"] == {"status": 400, "message": "Reference not found"}


def test_js_sdk_keeps_a_voice(outcomes: Any) -> None:
    voices = outcomes["fish_turns", "fish"].result().report["voices"]
    assert voices["made"] == ["t", "trained", ["x"], "d"]
    assert voices["renamed"] == "t2" and voices["listed"]
    assert voices["spoken_s"] == pytest.approx(TWO)
    assert voices["gone"]["status"] == 404


def test_js_sdk_has_money(outcomes: Any) -> None:
    report = outcomes["fish_turns", "fish"].result().report
    assert float(report["credit"]) > 0 and report["balance"] > 0


# The vendors' SDKs ------------------------------------------------------------------------------


def test_openai_sdk_hears_every_format(outcomes: Any) -> None:
    report = outcomes["sdk_turns", "openai"].result().report
    heads = {"mp3": b"ID3", "opus": b"OggS", "flac": b"fLaC", "wav": b"RIFF"}
    for name, head in heads.items():
        assert bytes.fromhex(report[f"{name}_head"]).startswith(head)
        assert report[f"{name}_bytes"] > 2000
    types = {name: report[f"{name}_type"] for name in ("mp3", "opus", "wav", "pcm")}
    assert types == {
        "mp3": "audio/mpeg",
        "opus": "audio/ogg",
        "wav": "audio/wav",
        "pcm": "audio/pcm",
    }
    assert report["turn_s"] == report["compat_s"] == pytest.approx(TWO)


def test_openai_sdk_hears_events(outcomes: Any) -> None:
    report = outcomes["sdk_turns", "openai"].result().report
    assert report["sse_s"] == pytest.approx(TWO)
    assert report["sse_last"] == "speech.audio.done"


def test_openai_sdk_speaks_faster(outcomes: Any) -> None:
    report = outcomes["sdk_turns", "openai"].result().report
    assert report["fast_s"] == pytest.approx(TWO / 2, rel=0.05)


def test_openai_sdk_is_told_what_is_wrong(outcomes: Any) -> None:
    outcome = outcomes["sdk_turns", "openai"].result()
    assert "response_format must be one of" in outcome.report["refused"]["aac"]
    assert "Reference not found" in outcome.report["refused"]["nobody"]
    assert outcome.report["models"] == ["fake-tone"]
    assert outcome.cancelled == 1, "the one whose answer was dropped"


def test_elevenlabs_sdk_streams_text_in(outcomes: Any) -> None:
    report = outcomes["sdk_turns", "elevenlabs"].result().report
    assert report["turn_s"] == pytest.approx(TWO)


def test_elevenlabs_sdk_speaks_over_http(outcomes: Any) -> None:
    report = outcomes["sdk_turns", "elevenlabs"].result().report
    assert report["convert_s"] == pytest.approx(TWO)
    assert report["ulaw_bytes"] == pytest.approx(8000 * TWO)
    assert report["stream_bytes"] == pytest.approx(16_000 * TWO, rel=0.05)
    assert "alice" in report["voices"]


def test_elevenlabs_sdk_hears_when_each_character_is_spoken(outcomes: Any) -> None:
    report = outcomes["sdk_turns", "elevenlabs"].result().report
    assert report["timed_s"] == pytest.approx(TWO)
    assert report["text"].strip() == "Hello there my friend. How are you today?"
    starts, ends = report["starts"], report["ends"]
    assert starts == sorted(starts) and ends == sorted(ends)
    assert all(start <= end for start, end in zip(starts, ends, strict=True))
    assert ends[-1] == pytest.approx(TWO, abs=0.001)


def test_deepgram_sdk_has_every_flush_numbered(outcomes: Any) -> None:
    report = outcomes["sdk_turns", "deepgram"].result().report
    assert report["turn_s"] == pytest.approx(TWO)
    assert report["empty_flush_s"] == 0.0
    assert report["flushed"] == [1, 2, 4], "the third was cleared"


def test_deepgram_sdk_clears(outcomes: Any) -> None:
    outcome = outcomes["sdk_turns", "deepgram"].result()
    assert outcome.report["cleared_s"] < LONG / 2
    assert outcome.report["again_s"] == pytest.approx(TWO)
    assert outcome.cancelled >= 1


def test_deepgram_sdk_speaks_over_http(outcomes: Any) -> None:
    report = outcomes["sdk_turns", "deepgram"].result().report
    assert report["http_bytes"] == pytest.approx(48_000 * TWO)
    assert report["mulaw_bytes"] == pytest.approx(8000 * TWO)
    assert report["mp3_bytes"] == pytest.approx(8000 * TWO, rel=0.05)


def test_cartesia_sdk_hears_words_flushes_and_the_end(outcomes: Any) -> None:
    turn = outcomes["sdk_turns", "cartesia"].result().report["turn"]
    assert turn["audio_s"] == pytest.approx(TWO)
    assert set(turn["kinds"]) == {"chunk", "timestamps", "flush_done", "done"}
    assert [word[0] for word in turn["words"]] == WORDS
    rises_inside(turn["words"], turn["audio_s"])


def test_cartesia_sdk_cancels_and_uses_a_name_again(outcomes: Any) -> None:
    outcome = outcomes["sdk_turns", "cartesia"].result()
    assert outcome.report["again"]["audio_s"] == pytest.approx(TWO)
    assert outcome.report["again"]["words"] == [], "nobody asked for them"
    assert outcome.cancelled >= 1
    assert outcome.report["bytes_s"] == pytest.approx(TWO)


# With a real voice ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def real_turns(clients: None, built_in: str) -> dict[str, Any]:
    return run_client("pipecat_turns", "elevenlabs", built_in)


def test_pipecat_hears_the_built_in_voice(real_turns: dict[str, Any]) -> None:
    assert real_turns["errors"] == []
    assert 1.0 < real_turns["turn"]["audio_s"] < 8.0
    assert real_turns["interrupted"]["audio_s"] < 10.0
    for turn in ("turn", "again"):
        assert [word[0] for word in real_turns[turn]["words"]] == WORDS
        rises_inside(real_turns[turn]["words"], real_turns[turn]["audio_s"])

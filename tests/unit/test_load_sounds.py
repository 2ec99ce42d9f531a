"""Excerpts of the worst turns: from the right place, in the right order, within their room."""

from __future__ import annotations

import base64
import io
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from shoal.loadtest.report.sounds import EXCERPT_S, embedded

RATE = 24000


def saved(folder: Path, name: str, seconds: float, rate: int = RATE) -> None:
    """A tone that rises by 100 Hz a second: 200 Hz at first."""
    hz = 200 + 100 * np.floor(np.arange(round(seconds * rate)) / rate)
    pcm = (9000 * np.sin(2 * np.pi * np.cumsum(hz) / rate)).astype("<i2")
    with wave.open(str(folder / name), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(pcm.tobytes())


def turn(wav: str, **changes: Any) -> dict[str, Any]:
    return {
        "wav": wav, "audio_s": 10.0, "stalls": [], "play_start_s": 0.1, "ending": "finished",
        "faults": [], **changes,
    }  # fmt: skip


def result(*runs: list[dict[str, Any]]) -> dict[str, Any]:
    return {"runs": [{"worst": list(turns)} for turns in runs]}


def heard(address: str) -> tuple[float, float]:
    """How long it is, and the pitch one second in."""
    kind, _, data = address.partition(";base64,")
    assert kind == "data:audio/mpeg"
    samples, rate = soundfile.read(io.BytesIO(base64.b64decode(data)), dtype="float32")
    part = samples[round(0.9 * rate) : round(1.4 * rate)]
    spectrum = np.abs(np.fft.rfft(part * np.hanning(len(part))))
    return len(samples) / rate, float(np.argmax(spectrum) * rate / len(part))


@pytest.mark.parametrize(
    ("changes", "from_s"),
    [
        ({}, 0.0),
        # plays from 0.1 s on, dry at 6.6: after 6.5 s of audio, heard from 5.0 on
        ({"stalls": [[6.6, 0.3], [9.0, 0.2]]}, 5.0),
        ({"stalls": [[0.4, 0.3]]}, 0.0),
        ({"ending": "broken"}, 6.0),
        ({"faults": ["abrupt_tail"]}, 6.0),
    ],
)
def test_an_excerpt_is_of_the_place_that_matters(
    changes: dict[str, Any], from_s: float, tmp_path: Path
) -> None:
    saved(tmp_path, "a.wav", 10.0)
    length_s, pitch_hz = heard(embedded(result([turn("a.wav", **changes)]), tmp_path)["a.wav"])
    assert length_s == pytest.approx(EXCERPT_S, abs=0.2)
    assert pitch_hz == pytest.approx(200 + 100 * (from_s + 1), abs=15)


@pytest.mark.parametrize("rate", [8000, 16000, 24000, 44100, 48000])
def test_every_rate_sounds_as_it_is_and_is_small(rate: int, tmp_path: Path) -> None:
    saved(tmp_path, "a.wav", 10.0, rate)
    address = embedded(result([turn("a.wav")]), tmp_path)["a.wav"]
    length_s, pitch_hz = heard(address)
    assert length_s == pytest.approx(EXCERPT_S, abs=0.2)
    assert pitch_hz == pytest.approx(300, abs=15)
    assert len(address) < 30_000


def test_a_short_turn_is_whole(tmp_path: Path) -> None:
    saved(tmp_path, "a.wav", 2.0)
    length_s, _ = heard(embedded(result([turn("a.wav", audio_s=2.0)]), tmp_path)["a.wav"])
    assert length_s == pytest.approx(2.0, abs=0.2)


def test_the_worst_of_each_level_comes_before_the_second_of_any(tmp_path: Path) -> None:
    names = ["a1.wav", "a2.wav", "b1.wav", "b2.wav"]
    for name in names:
        saved(tmp_path, name, 4.0)
    found = result([turn("a1.wav"), turn("a2.wav")], [turn("b1.wav"), turn("b2.wav")])
    everything = embedded(found, tmp_path)
    assert list(everything) == ["a1.wav", "b1.wav", "a2.wav", "b2.wav"]
    room = sum(len(everything[name]) for name in ("a1.wav", "b1.wav"))
    some = embedded(found, tmp_path, room)
    assert list(some) == ["a1.wav", "b1.wav"]
    assert sum(map(len, some.values())) <= room


def test_a_file_that_is_gone_or_none_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "bad.wav").write_bytes(b"no wave file")
    (tmp_path / "empty.wav").write_bytes(b"")
    turns = [turn("gone.wav"), turn("bad.wav"), turn("empty.wav"), turn("")]
    assert embedded(result(turns), tmp_path) == {}

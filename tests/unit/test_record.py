"""What is written of a turn, and what is not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shoal.realtime.record import TurnRecorder
from shoal.realtime.trace import BothTraces, NoTraces, TurnTimes

SAID: dict[str, str | int | float] = {
    "shoal.end": "stop",
    "shoal.chars": 11,
    "shoal.audio_s": 1.5,
    "shoal.priority": "live",
}


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_turn_is_a_line(tmp_path: Path) -> None:
    path = tmp_path / "turns"
    recorder = TurnRecorder(path)
    times = TurnTimes(100.0, sent_s=100.6, voice="ann", pieces=[(100.5, 5), (100.75, 6)])
    recorder.turn().end(times, 102.5, SAID, False)
    recorder.turn().end(TurnTimes(103.0), 104.0, {**SAID, "shoal.priority": "batch"}, True)
    recorder.close()
    first, second = lines(path)
    began = first.pop("at")
    assert 0.4 < second["at"] - began < 1.6 + 1.0
    assert first == {
        "pieces": [[0.5, 5], [0.75, 6]],
        "chars": 11,
        "voice": "ann",
        "batch": False,
        "first_s": 0.6,
        "audio_s": 1.5,
        "seconds": 2.5,
        "end": "stop",
    }
    assert second["batch"] and second["first_s"] is None and second["pieces"] == []


def test_it_is_added_to_and_has_a_largest_size_and_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "turns"
    for _ in range(2):
        recorder = TurnRecorder(path, most_bytes=700)
        for number in range(5):
            recorder.turn().end(TurnTimes(float(number)), number + 1.0, SAID, False)
        recorder.close()
        recorder.close()
    written = lines(path)
    assert 3 <= len(written) <= 6 and path.stat().st_size <= 700


def test_a_file_that_cannot_be_written_is_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(OSError):
        TurnRecorder(tmp_path / "no" / "turns")


def test_two_may_be_told_of_a_turn(tmp_path: Path) -> None:
    one, other = TurnRecorder(tmp_path / "1"), TurnRecorder(tmp_path / "2")
    both = BothTraces(BothTraces(one, NoTraces()), other)
    both.turn().end(TurnTimes(1.0), 2.0, SAID, False)
    one.close()
    other.close()
    assert len(lines(tmp_path / "1")) == len(lines(tmp_path / "2")) == 1

"""A recording: read as it is, played as it came, and grown to a day."""

from __future__ import annotations

import json
import random
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.loadtest.measure.timeline import Kind
from shoal.loadtest.plan.recorded import (
    BadRecording,
    again_and_again,
    live_by_second,
    mean_live,
    read_recording,
    turn_plan,
    turn_text,
)
from shoal.loadtest.plan.voices import Voice
from shoal.loadtest.simulate.trace import Day, replayed
from shoal.realtime.cli import main

RECORDING = Path(__file__).parents[1] / "data" / "turns.jsonl"


def line(at: float, **other: Any) -> str:
    entry = {
        "at": at,
        "pieces": [[0.5, 5], [0.75, 6]],
        "chars": 11,
        "voice": "",
        "batch": False,
        "first_s": 0.6,
        "audio_s": 1.5,
        "seconds": 2.5,
        "end": "stop",
        **other,
    }
    return json.dumps(entry) + "\n"


def recorded(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "turns.jsonl"
    path.write_text("".join(lines))
    return path


def test_turns_are_read_in_the_order_in_which_their_text_came(tmp_path: Path) -> None:
    path = recorded(
        tmp_path,
        line(1010.0, voice="b"),
        line(1000.0, voice="a", end="cancelled"),
        line(1004.0, voice="a"),
        line(1001.0, batch=True),
        line(1002.0, pieces=[]),
    )
    turns = read_recording(path)
    assert [turn.at_s for turn in turns] == [0.0, 4.0, 10.0]
    assert [turn.voice_rank for turn in turns] == [0, 0, 1]
    assert turns[0].pieces == ((0.0, 5), (0.25, 6))
    assert turns[0].cut_after_s == pytest.approx(1.9) and turns[1].cut_after_s is None
    assert turns[0].held_s == 2.0


@pytest.mark.parametrize("bad", ["", "x\n", "{}\n", line(1.0, batch=True), line(1.0, pieces=3)])
def test_what_is_no_recording_is_told_so(tmp_path: Path, bad: str) -> None:
    with pytest.raises(BadRecording):
        read_recording(recorded(tmp_path, bad))
    with pytest.raises(BadRecording):
        read_recording(tmp_path / "nothing")


def test_it_is_played_faster_and_again_when_it_is_over(tmp_path: Path) -> None:
    turns = read_recording(recorded(tmp_path, line(0.0), line(4.0), line(10.0)))
    times = [turn.at_s for turn in islice(again_and_again(turns, 2.0), 7)]
    assert times == [0.0, 2.0, 5.0, 7.5, 9.5, 12.5, 15.0]
    assert [turn.pieces for turn in islice(again_and_again(turns, 2.0), 1)] == [turns[0].pieces]


def test_what_is_said_is_as_long_piece_by_piece_and_something_else(tmp_path: Path) -> None:
    turns = read_recording(RECORDING)
    rng = random.Random(1)
    texts: set[str] = set()
    for number, turn in enumerate(turns):
        plan = turn_plan(turn, number, 0, 7.0, Kind.WARM, Voice(), rng)
        assert [(piece.offset_s, len(piece.text)) for piece in plan.pieces] == list(turn.pieces)
        assert plan.scheduled_s == 7.0 and plan.cut_after_s == turn.cut_after_s
        texts.add("".join(piece.text for piece in plan.pieces))
    assert len(texts) == len(turns)
    assert turn_text(turns[0], random.Random(2)) == turn_text(turns[0], random.Random(2))


def test_live_turns_are_those_between_text_and_end(tmp_path: Path) -> None:
    turns = read_recording(recorded(tmp_path, line(0.0), line(1.0), line(10.0)))
    assert live_by_second(turns) == [1, 2, 1, 0, 0, 0, 0, 0, 0, 0, 1, 1, 0]
    assert mean_live(turns) == pytest.approx(6.0 / 15.0)


def test_a_recording_becomes_a_day_with_its_form_and_the_asked_for_peak() -> None:
    turns = read_recording(RECORDING)
    day, expected = replayed(Day(peak_turns=900.0), turns)
    assert len(expected) == day.seconds
    assert (expected * day.turn_s).max() == pytest.approx(900.0)
    assert day.turn_s == pytest.approx(sum(turn.held_s for turn in turns) / len(turns))
    live = np.array(live_by_second(turns), float)
    crowded = live.argmax() / len(live)
    assert abs(expected.argmax() / len(expected) - crowded) < 0.1
    assert expected[: day.seconds // 10].mean() < 0.3 * expected.max()


def test_a_fleet_is_simulated_on_a_recording(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["load", "fleet", "--gpus", "20", "--hours", "2", "--out", str(tmp_path)]
    assert main([*asked, "--replay", str(RECORDING)]) == 0
    found = json.loads((tmp_path / "fleet.json").read_text())
    assert found["recorded_turns"] == 84 and found["hours"] == 2.0
    assert "2 hours, as 84 recorded ones came" in (tmp_path / "fleet.html").read_text()
    capsys.readouterr()
    assert main([*asked, "--replay", str(tmp_path / "nothing")]) != 0
    assert "No such file" in capsys.readouterr().err

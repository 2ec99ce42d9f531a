"""Evaluation: what can be said of utterances without listening, and the recordings it leaves."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import soundfile

from shoal.engine.training import __main__ as commands
from shoal.engine.training.evaluate import Utterance, account, main

VOICE = Path(__file__).parents[2] / "engine" / "builtin_voice"


def said(text: str, frames: int, ended: bool = True) -> Utterance:
    codes = [np.zeros(8, np.int32)] * frames
    return Utterance(text, np.zeros((1, 9), np.int32), 0, codes, ended)


def test_runaways_and_cut_offs_are_counted() -> None:
    text = "Twenty letters here."
    usual = [said(text, 30 + i % 3) for i in range(9)]
    found = account([*usual, said(text, 112, False), said(text, 5), said(text, 0)], 0.05, 2.0)
    assert (found.utterances, found.runaways, found.cut_off) == (12, 1, 2)
    assert found.seconds == pytest.approx(0.05 * (9 * 31 + 117))
    assert "1 runaways, 2 cut off" in str(found)


def test_a_short_word_is_not_a_cut_off() -> None:
    assert account([said("Yes.", 3), *[said("Twenty letters here.", 30)] * 3], 0.05, 1).cut_off == 0


def test_the_limit_leaves_room_for_slow_speech() -> None:
    assert said("a" * 100, 0).limit == 320


@pytest.mark.usefixtures("one_thread")
def test_the_voice_speaks_alone_and_like_a_recording(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = tmp_path / "texts.txt"
    texts.write_text("Good morning to you.\n\nIt is 5 o'clock.\n")
    flags = ["tts", "--model", str(VOICE), "--texts", str(texts), "--out", str(tmp_path)]
    assert commands.main(["eval", *flags]) == 0
    assert "default: 2 utterances, 0 runaways, 0 cut off" in capsys.readouterr().out
    sound, rate = soundfile.read(tmp_path / "default" / "00.wav")
    assert rate == 24000 and 0.6 < len(sound) / rate < 4
    assert (tmp_path / "default" / "texts.txt").read_text().splitlines()[1] == "It is 5 o'clock."

    recording = tmp_path / "me.wav"
    soundfile.write(recording, sound, rate)
    recording.with_suffix(".txt").write_text("Good morning to you.")
    assert main([*flags, "--reference", str(recording), "--limit", "1"]) == 0
    assert "me: 1 utterances" in capsys.readouterr().out
    assert (tmp_path / "me" / "00.wav").is_file()


def test_an_unknown_command_is_told_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert commands.main(["train"]) == 2
    assert "align|teacher|codec|encode|ar|export|eval|like" in capsys.readouterr().out

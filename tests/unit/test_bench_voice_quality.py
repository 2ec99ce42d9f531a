"""The bench of a voice's quality: what it keeps, when it measures again, and what it is told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shoal.engine.config import BUILTIN_VOICE
from shoal.loadtest import bench_voice_quality, bench_voice_shape
from shoal.loadtest.bench_voice_parts import PARTS, RECORDINGS, WHOLE, Bench, LeftOut, Size
from shoal.loadtest.bench_voice_quality import MINUTES, print_of, run_part
from shoal.loadtest.voice_table import Row


def bench(out: Path, size: Size = WHOLE) -> Bench:
    return Bench(BUILTIN_VOICE, out, size, None, None, RECORDINGS, 0)


def test_every_part_says_how_long_it_takes() -> None:
    assert MINUTES.keys() == PARTS.keys()


def test_a_part_is_measured_once_for_the_same_weights_and_size(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = run_part("files", bench(tmp_path), "one")
    assert rows == [Row("all files", pytest.approx(29.6, abs=0.5), "MB", at_most=30.0)]
    kept = json.loads((tmp_path / "part_files.json").read_text())
    kept["rows"][0]["value"] = 7.0
    (tmp_path / "part_files.json").write_text(json.dumps(kept))
    assert capsys.readouterr().err
    assert run_part("files", bench(tmp_path), "one")[0].value == 7.0
    assert not capsys.readouterr().err
    assert run_part("files", bench(tmp_path, Size(many=3)), "one")[0].value != 7.0
    (tmp_path / "part_files.json").write_text(json.dumps(kept))
    assert run_part("files", bench(tmp_path), "other")[0].value != 7.0


def test_other_weights_have_another_name(tmp_path: Path) -> None:
    (tmp_path / "codec.pth").write_bytes(b"one")
    before = print_of(tmp_path)
    assert print_of(tmp_path) == before
    (tmp_path / "codec.pth").write_bytes(b"two")
    assert print_of(tmp_path) != before


def test_the_codec_is_left_out_without_a_recital(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(LeftOut, match="--recital"):
        PARTS["codec"](bench(tmp_path))
    arguments = ["--out", str(tmp_path), "--quick", "--parts", "files", "codec"]
    assert bench_voice_quality.main(arguments) == 1
    shown = capsys.readouterr().out
    assert "| all files | 2" in shown and "| codec | - |  |  | not measured |" in shown
    told = json.loads((tmp_path / "quality.json").read_text())
    assert [row["verdict"] for row in told["rows"]] == ["good", "not measured"]


def test_recordings_of_the_repository_are_voices_to_be_like(tmp_path: Path) -> None:
    voices = bench(tmp_path).voices()
    assert set(voices) == {"default", "george", "michael"}
    (george,) = voices["george"]
    assert george.text.endswith(".") and 3 < len(george.samples) / 24_000 < 6


def test_turns_of_the_built_in_voice_join_in_a_pause(tmp_path: Path) -> None:
    text = "Nobody on board said a word until the light was gone. Then they all went to sleep."
    (turn,) = bench_voice_shape.speak_turns(BUILTIN_VOICE, [text], 0)
    assert len(turn.seams) == 1 and turn.rate == 24_000
    verdicts = {row.what: row.verdict for row in bench_voice_shape.rows_of([turn])}
    assert len(verdicts) == 9 and set(verdicts.values()) == {"good"}

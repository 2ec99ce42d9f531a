"""Which voices are alike, judged from recordings of people."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import soundfile

from shoal.engine.training.likeness import BANDS, FFT, RATE, main, slaney_filters, without_pauses

RECORDINGS = Path(__file__).parents[1] / "data" / "voices"
needs_weights = pytest.mark.skipif(
    importlib.util.find_spec("resemblyzer") is None, reason="Resemblyzer is not installed"
)


@needs_weights
@pytest.mark.usefixtures("one_thread")
def test_halves_of_a_voice_are_closer_than_two_voices(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths: list[str] = []
    for name in ("george", "michael"):
        sound, rate = soundfile.read(RECORDINGS / f"{name}.ogg", dtype="float32")
        for number, half in enumerate(np.array_split(sound, 2)):
            folder = tmp_path / f"{name}{number}"
            folder.mkdir()
            for part, piece in enumerate(np.array_split(half, 2)):
                soundfile.write(folder / f"{part:02d}.wav", piece, rate)
            paths.append(str(folder))
    assert main([*paths, "--windows-s", "1.9"]) == 0
    lines = capsys.readouterr().out.splitlines()
    table = np.array([[float(x) for x in line.split()[:4]] for line in lines[:4]])
    assert np.allclose(table, table.T) and np.allclose(table.diagonal(), 1)
    assert min(table[0, 1], table[2, 3]) > table[:2, 2:].max()
    assert all(line.startswith("drift 1.00") for line in lines[4:])


@needs_weights
def test_what_says_nothing_of_a_voice_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    soundfile.write(tmp_path / "00.wav", np.zeros(RATE * 3, np.float32), RATE)
    assert main([str(tmp_path)]) == 1
    assert "too few to tell" in capsys.readouterr().out
    (tmp_path / "00.wav").unlink()
    assert main([str(tmp_path)]) == 1
    assert "holds no .wav" in capsys.readouterr().out


def test_pauses_are_cut_and_what_is_near_sound_is_kept() -> None:
    samples = np.zeros(RATE, np.float32)
    samples[4800:8000] = 0.5
    kept = without_pauses(samples)
    assert len(kept) == 3200 + 2 * 7 * 160
    assert (kept == 0.5).sum() == 3200


def test_the_bands_cover_the_spectrum() -> None:
    filters = slaney_filters(RATE, FFT, BANDS)
    assert filters.shape == (40, 201)
    assert (filters.sum(1) > 0).all()
    assert (np.diff(filters.argmax(1)) >= 0).all()

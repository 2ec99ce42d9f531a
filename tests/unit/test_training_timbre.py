"""Voices are told apart by their cepstra, whatever the loudness and whatever is said."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import soundfile
import soxr

from shoal.engine.training.likeness import RATE, without_pauses
from shoal.engine.training.timbre import CEPSTRA, Matrix, cepstra, divergence, nearness

RECORDINGS = Path(__file__).parents[1] / "data" / "voices"


def halves(name: str, gain: float = 1.0) -> tuple[Matrix, Matrix]:
    sound, rate = soundfile.read(RECORDINGS / f"{name}.ogg", dtype="float32")
    sound = without_pauses(soxr.resample(sound, rate, RATE).astype(np.float32))
    one, other = np.array_split(sound, 2)
    return cepstra(one), cepstra(gain * other)


def test_a_voice_is_nearest_to_itself() -> None:
    voices: dict[str, Matrix] = {}
    copies: dict[str, Matrix] = {}
    for name in ("george", "michael", "default"):
        voices[name], copies[name] = halves(name)
    found = nearness(voices, copies)
    assert found.keys() == voices.keys() and max(found.values()) < 0.5
    swapped = {"george": copies["michael"], "michael": copies["george"]}
    assert min(nearness(voices, swapped).values()) > 2


def test_loudness_is_no_voice() -> None:
    same, quiet = halves("george"), halves("george", 0.25)
    assert divergence(*quiet) == pytest.approx(divergence(*same), rel=1e-3)


def test_a_voice_is_no_distance_from_itself_and_as_far_as_the_other_is_from_it() -> None:
    one, other = halves("george")
    assert one.shape[1] == CEPSTRA and divergence(one, one) == pytest.approx(0, abs=1e-9)
    assert divergence(one, other) == pytest.approx(divergence(other, one))
    assert divergence(one, other) > 0.01
    with pytest.raises(ValueError, match="half a second"):
        divergence(one, other[:49])
    with pytest.raises(ValueError, match="half a second"):
        divergence(one, cepstra(np.zeros(100, np.float32)))

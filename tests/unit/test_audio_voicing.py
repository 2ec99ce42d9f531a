"""What a request asks of the voice: untouched bytes where that is nothing."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.proto.messages import Prosody
from shoal.realtime.audio.voicing import Voicing
from tests.speech import RATE, builtin_voice, db

SPEECH = np.rint(builtin_voice() * 32767).astype("<i2").tobytes()


def shaped(prosody: Prosody, piece: int = 2400) -> bytes:
    voicing = Voicing(prosody, RATE)
    out = [voicing.shape(SPEECH[at : at + piece]) for at in range(0, len(SPEECH), piece)]
    return b"".join([*out, voicing.flush()])


def test_nothing_asked_for_nothing_done() -> None:
    voicing = Voicing(Prosody(normalize_loudness=False), RATE)
    assert voicing.shape(SPEECH) is SPEECH and voicing.flush() == b"" and not voicing.dear


@pytest.mark.parametrize("speed", [0.5, 0.8, 1.2, 2.0])
def test_speed_changes_the_length_and_not_the_loudness(speed: float) -> None:
    out = shaped(Prosody(speed=speed, normalize_loudness=False))
    assert len(out) // 2 == round(len(SPEECH) / 2 / speed)
    samples = np.frombuffer(out, "<i2") / np.float32(32768)
    assert db(samples) == pytest.approx(db(builtin_voice()), abs=1.0)
    assert Voicing(Prosody(speed=speed), RATE).dear


def test_loudness_is_levelled_by_default_without_delay() -> None:
    out = shaped(Prosody())
    assert len(out) == len(SPEECH)
    assert db(np.frombuffer(out, "<i2") / np.float32(32768)) > db(builtin_voice()) + 3
    assert not Voicing(Prosody(), RATE).dear


def test_the_same_samples_give_the_same_sound_however_they_come() -> None:
    for prosody in (Prosody(), Prosody(speed=1.3)):
        assert shaped(prosody, 2400) == shaped(prosody, 7002)


def test_half_a_sample_is_refused() -> None:
    with pytest.raises(ValueError, match="whole 16-bit samples"):
        Voicing(Prosody(), RATE).shape(b"abc")

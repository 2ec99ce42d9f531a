"""FLAC by what a decoder makes of it."""

from __future__ import annotations

import io

import numpy as np
import pytest
import soundfile

from shoal.realtime.audio.flac import FlacEncoder
from shoal.realtime.audio.samples import Samples
from tests.speech import RATE, builtin_voice

SPEECH = np.rint(builtin_voice() * 32767).astype("<i2").tobytes()


def with_length(stream: bytes, samples: int) -> io.BytesIO:
    """The stream as if its header said how long it is, which our decoder wants to know."""
    head = int.from_bytes(stream[18:26], "big")
    assert stream[:4] == b"fLaC" and head & (1 << 36) - 1 == 0
    return io.BytesIO(stream[:18] + (head | samples).to_bytes(8, "big") + stream[26:])


def test_every_sample_comes_back() -> None:
    flac = FlacEncoder(Samples(RATE, RATE))
    out = [flac.encode(SPEECH[at : at + 2400]) for at in range(0, len(SPEECH), 2400)]
    stream = b"".join([*out, flac.finish()])
    samples, rate = soundfile.read(with_length(stream, len(SPEECH) // 2), dtype="int16")
    assert rate == flac.sample_rate == RATE and samples.tobytes() == SPEECH
    assert len(stream) < 0.7 * len(SPEECH)
    assert flac.encoded_s == len(SPEECH) / 2 / RATE


@pytest.mark.parametrize("rate", [16_000, 24_000, 44_100])
def test_what_was_handed_out_can_be_played_and_little_is_held_back(rate: int) -> None:
    flac, out, given_s = FlacEncoder(Samples(RATE, rate)), b"", 0.0
    for at in range(0, 48_000, 2400):
        out += flac.encode(SPEECH[at : at + 2400])
        given_s += 0.05
        assert given_s - flac.encoded_s < 0.12
    heard = round(flac.encoded_s * rate)
    samples, _ = soundfile.read(with_length(out, heard), dtype="int16")
    assert len(samples) == heard > 0.8 * rate


def test_no_message_before_there_is_sound() -> None:
    flac = FlacEncoder(Samples(RATE, RATE))
    assert flac.encode(SPEECH[:2000]) == b""
    assert flac.encode(SPEECH[2000:4800])[:4] == b"fLaC"


def test_an_empty_stream_has_its_header() -> None:
    assert FlacEncoder(Samples(RATE, RATE)).finish()[:4] == b"fLaC"

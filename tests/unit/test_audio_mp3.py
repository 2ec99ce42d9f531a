"""MP3 by what a decoder makes of it."""

from __future__ import annotations

import io
import subprocess
import sys

import numpy as np
import pytest
import soundfile

from shoal.loadtest.measure.compressed import Mp3Counter
from shoal.realtime.audio.mp3 import MP3_KBPS, MP3_RATES, Mp3Encoder
from shoal.realtime.audio.samples import Samples, quiet_samples
from tests.speech import RATE, builtin_voice

DECODER_DELAY = 1105
SPEECH = np.rint(builtin_voice() * 32767).astype("<i2").tobytes()
KBPS = (64, 128, 192)


def encoder(rate: int = 44_100, kbps: int = 128) -> Mp3Encoder:
    return Mp3Encoder(Samples(RATE, rate), kbps)


def spoken(of: Mp3Encoder, pcm: bytes, piece: int = 2400) -> list[bytes]:
    out = [of.encode(pcm[at : at + piece]) for at in range(0, len(pcm), piece)]
    return [*out, of.finish()]


def frames(stream: bytes) -> list[bytes]:
    """The frames of MPEG-1 layer III, which must be all there is behind the tag."""
    assert stream[:3] == b"ID3"
    at = 10 + stream[9]
    found: list[bytes] = []
    kbps = (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320)
    while at < len(stream):
        assert stream[at] == 0xFF and stream[at + 1] >> 1 == 0b1111101, "MPEG-1, layer III"
        rate = (44_100, 48_000, 32_000)[stream[at + 2] >> 2 & 3]
        size = 144_000 * kbps[stream[at + 2] >> 4] // rate + (stream[at + 2] >> 1 & 1)
        found.append(stream[at : at + size])
        assert len(found[-1]) == size, "cut in the middle of a frame"
        at += size
    return found


@pytest.mark.parametrize("rate", [32_000, 44_100])
@pytest.mark.parametrize("kbps", KBPS)
def test_a_tag_then_whole_frames_of_the_bitrate(rate: int, kbps: int) -> None:
    out = spoken(encoder(rate, kbps), SPEECH)
    found = frames(b"".join(out))
    assert not any(b"Xing" in f or b"Info" in f for f in found[:2])
    seconds = len(found) * 1152 / rate
    assert sum(map(len, found)) * 8 / seconds == pytest.approx(kbps * 1000, rel=0.01)
    # Whole frames in every message, so that what was received can be played.
    assert all(part[:2] in (b"", b"\xff\xfb", b"ID") for part in out)


@pytest.mark.parametrize("rate", MP3_RATES)
def test_the_sound_is_where_it_was_and_as_long(rate: int) -> None:
    stream = b"".join(spoken(encoder(rate), SPEECH))
    samples, heard_rate = soundfile.read(io.BytesIO(stream))
    assert heard_rate == rate
    long_s = len(samples) / rate - len(SPEECH) / 2 / RATE
    assert -0.001 < long_s < 1152 / rate + 0.001
    plain = Samples(RATE, rate)
    pcm = plain.convert(SPEECH) + plain.rest()
    wanted = np.frombuffer(pcm, "<i2") / 32768
    late = max(0, DECODER_DELAY - quiet_samples(pcm))
    assert late / rate < 0.002, "this recording begins quietly for long enough"
    samples = samples[late:][: len(wanted)]
    error = np.sqrt(((samples - wanted[: len(samples)]) ** 2).mean() / (wanted**2).mean())
    assert error < 0.1, "a shift of a millisecond would be an error of one half"


def test_where_the_sound_begins_at_once_only_the_coder_s_delay_is_before_it() -> None:
    loud = np.full(24_000, 8000, "<i2").tobytes()
    samples, _ = soundfile.read(io.BytesIO(b"".join(spoken(encoder(), loud))))
    assert abs(int(np.argmax(samples > 0.1)) - DECODER_DELAY) < 30
    assert 0 <= len(samples) - 44_100 - DECODER_DELAY < 1152


@pytest.mark.parametrize(("rate", "kbps", "most_s"), [(44_100, 128, 0.15), (44_100, 64, 0.18)])
def test_what_it_holds_back(rate: int, kbps: int, most_s: float) -> None:
    mp3, given_s, most = encoder(rate, kbps), 0.0, 0.0
    out = b""
    for at in range(0, len(SPEECH), 480):
        out += mp3.encode(SPEECH[at : at + 480])
        given_s += len(SPEECH[at : at + 480]) / 2 / RATE
        most = max(most, given_s - mp3.encoded_s)
    assert most < most_s
    mp3.finish()
    assert mp3.encoded_s == pytest.approx(given_s, abs=0.001)


def test_what_a_player_hears_so_far_is_what_is_said() -> None:
    mp3 = encoder()
    part = b"".join(mp3.encode(SPEECH[at : at + 480]) for at in range(0, 48_000, 480))
    counter = Mp3Counter()
    counter.feed(part)
    samples, _ = soundfile.read(io.BytesIO(part))
    skipped_s = mp3.encoded_s - (len(samples) - DECODER_DELAY) / 44_100
    assert 0 <= skipped_s <= (DECODER_DELAY + 1) / 44_100


def test_no_message_before_there_is_a_frame() -> None:
    mp3 = encoder()
    assert mp3.encode(SPEECH[:480]) == b""
    first = next(
        out for at in range(480, 48_000, 480) if (out := mp3.encode(SPEECH[at : at + 480]))
    )
    assert first[:3] == b"ID3" and frames(first)


def test_an_empty_stream_is_a_tag() -> None:
    assert encoder().finish()[:3] == b"ID3"


@pytest.mark.parametrize("seconds", [0.0001, 0.01, 0.2])
def test_a_very_short_one(seconds: float) -> None:
    loud = np.full(max(1, int(24_000 * seconds)), 8000, "<i2").tobytes()
    samples, _ = soundfile.read(io.BytesIO(b"".join(spoken(encoder(), loud))))
    assert len(samples) >= DECODER_DELAY + 44_100 * seconds - 1


def test_any_cut_gives_the_same_stream() -> None:
    a, b = (b"".join(spoken(encoder(), SPEECH[:96_000], piece)) for piece in (478, 9600))
    assert a == b


def test_a_bitrate_that_the_rate_does_not_have() -> None:
    with pytest.raises(ValueError, match="no bitrate of 192 kbps at 24000"):
        encoder(24_000, 192)
    for kbps in MP3_KBPS:
        encoder(44_100, kbps)


WITHOUT_LAME = """
import sys
sys.modules["lameenc"] = None
from shoal.realtime.audio import FormatUnavailable, make_encoder
make_encoder("wav", 24000, 24000)
try:
    make_encoder("mp3", 24000, 44100)
except FormatUnavailable as error:
    assert "lameenc" in str(error)
else:
    raise SystemExit("mp3 was made from nothing")
"""


def test_without_lame_all_but_mp3_works() -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-c", WITHOUT_LAME], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr

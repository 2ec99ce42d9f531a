"""Encoders by what a player makes of their bytes."""

from __future__ import annotations

import io
import struct
import subprocess
import sys
from typing import get_args

import numpy as np
import numpy.typing as npt
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.proto.messages import AudioFormat
from shoal.proto.request import PCM_RATES, RATES, default_rate
from shoal.realtime.audio import (
    AudioEncoder,
    check_format,
    make_encoder,
    opus_bits_per_second,
)
from shoal.realtime.speaking import CONTENT_TYPES

Samples = npt.NDArray[np.float64]


def tone(rate: int, seconds: float, hz: float = 440.0) -> bytes:
    t = np.arange(round(rate * seconds)) / rate
    return np.rint(12000 * np.sin(2 * np.pi * hz * t)).astype("<i2").tobytes()


def spoken(encoder: AudioEncoder, pcm: bytes, chunk_bytes: int = 2400) -> list[bytes]:
    """The outputs of all calls, the end last."""
    out = [encoder.encode(pcm[at : at + chunk_bytes]) for at in range(0, len(pcm), chunk_bytes)]
    return [*out, encoder.finish()]


def played(audio_format: str, stream: bytes, sample_rate: int) -> Samples:
    """Samples as a player gets them, full scale 1."""
    if audio_format == "pcm":
        return np.frombuffer(stream, "<i2") / 32768
    data, rate = soundfile.read(io.BytesIO(stream))
    assert rate == sample_rate
    return data


def distance_from_tone(samples: Samples, rate: int, hz: float = 440.0) -> float:
    """RMS of what is left when the best-fitting tone is taken out, relative to the tone."""
    t = np.arange(len(samples)) / rate
    basis = np.stack([np.sin(2 * np.pi * hz * t), np.cos(2 * np.pi * hz * t)], 1)
    fit, *_ = np.linalg.lstsq(basis, samples, rcond=None)
    model = basis @ fit
    return float(np.sqrt(((samples - model) ** 2).mean() / (model**2).mean()))


@pytest.mark.parametrize("model_rate", [24_000, 44_100])
@pytest.mark.parametrize("sample_rate", PCM_RATES)
@pytest.mark.parametrize("audio_format", ["pcm", "wav"])
def test_samples_at_every_rate(audio_format: str, sample_rate: int, model_rate: int) -> None:
    encoder = make_encoder(audio_format, model_rate, sample_rate)
    out = spoken(encoder, tone(model_rate, 1.0))
    assert all(len(part) % 2 == 0 for part in out)
    samples = played(audio_format, b"".join(out), sample_rate)
    assert len(samples) == sample_rate
    assert encoder.sample_rate == sample_rate
    assert distance_from_tone(samples[sample_rate // 8 : -sample_rate // 8], sample_rate) < 1e-3
    assert abs(np.abs(samples).max() - 12000 / 32768) < 0.01


@pytest.mark.parametrize("model_rate", [24_000, 44_100])
@pytest.mark.parametrize("sample_rate", PCM_RATES)
def test_a_resampler_holds_little_back(sample_rate: int, model_rate: int) -> None:
    encoder = make_encoder("pcm", model_rate, sample_rate)
    first = encoder.encode(tone(model_rate, 0.05))
    assert len(first) / 2 / sample_rate >= 0.0195


def test_equal_rates_pass_bytes_through() -> None:
    pcm = tone(24_000, 0.3)
    assert b"".join(spoken(make_encoder("pcm", 24_000, 24_000), pcm)) == pcm


@settings(max_examples=20)
@given(sizes=st.lists(st.integers(0, 4000), max_size=12))
def test_any_cut_gives_the_same_samples(sizes: list[int]) -> None:
    pcm = tone(24_000, 1.0)
    whole = b"".join(spoken(make_encoder("pcm", 24_000, 44_100), pcm, len(pcm)))
    encoder, out, at = make_encoder("pcm", 24_000, 44_100), b"", 0
    for size in [*sizes, len(pcm)]:
        out += encoder.encode(pcm[at : at + 2 * size])
        at += 2 * size
    out += encoder.finish()
    a, b = (np.frombuffer(x, "<i2").astype(int) for x in (whole, out))
    assert len(a) == len(b) and np.abs(a - b).max() <= 1


def test_one_wav_header_with_the_sizes_of_a_live_stream() -> None:
    encoder = make_encoder("wav", 24_000, 24_000)
    pcm = tone(24_000, 0.2)
    out = b"".join(spoken(encoder, pcm))
    assert out[44:] == pcm
    assert out[:44] == (
        b"RIFF"
        + struct.pack("<I", 0xFFFFFF24)
        + b"WAVEfmt "
        + struct.pack("<IHHIIHH", 16, 1, 1, 24_000, 48_000, 2, 16)
        + b"data"
        + struct.pack("<I", 0xFFFFFF00)
    )
    assert make_encoder("wav", 24_000, 24_000).finish() == out[:44]


@pytest.mark.parametrize("model_rate", [16_000, 24_000, 44_100, 48_000])
@pytest.mark.parametrize("seconds", [0.05, 0.4, 1.0, 1.2345])
def test_opus_is_as_long_as_what_was_spoken(model_rate: int, seconds: float) -> None:
    encoder = make_encoder("opus", model_rate, 48_000)
    stream = b"".join(spoken(encoder, tone(model_rate, seconds)))
    samples = played("opus", stream, 48_000)
    wanted = round(model_rate * seconds) / model_rate * 48_000
    assert abs(len(samples) - wanted) <= 3
    assert (encoder.sample_rate, encoder.content_type) == (48_000, "audio/ogg")
    if seconds >= 0.4:
        assert distance_from_tone(samples[4800:-4800], 48_000) < 0.15


def test_opus_begins_where_the_sound_does() -> None:
    """Pre-skip: the tone that starts after 0.5 s of silence is neither early nor late."""
    pcm = bytes(2 * 12_000) + tone(24_000, 0.5)
    stream = b"".join(spoken(make_encoder("opus", 24_000, 48_000), pcm))
    samples = np.abs(played("opus", stream, 48_000))
    onset = int(np.argmax(samples > 0.1)) / 48_000
    assert abs(onset - 0.5) < 0.005


def pages(stream: bytes) -> list[tuple[int, int]]:
    """(flags, granule) of every page."""
    found: list[tuple[int, int]] = []
    at = 0
    while at < len(stream):
        assert stream[at : at + 4] == b"OggS"
        flags, granule = struct.unpack_from("<xBq", stream, at + 4)
        found.append((flags, granule))
        segments = stream[at + 26]
        at += 27 + segments + sum(stream[at + 27 : at + 27 + segments])
    return found


def test_every_call_hands_out_whole_pages_of_at_most_100_ms() -> None:
    out = spoken(make_encoder("opus", 24_000, 48_000), tone(24_000, 2.0), 2 * 6000)
    found = [page for part in out for page in pages(part)]
    granules = [granule for _, granule in found[2:]]
    assert max(b - a for a, b in zip([0, *granules], granules, strict=False)) <= 4800
    assert granules == sorted(granules)
    assert [flags for flags, _ in found] == [2, 0, *[0] * (len(found) - 3), 4]
    # 250 ms in: two headers, and all twelve whole packets of it at once.
    assert pages(out[0])[-1][1] == 12 * 960
    assert granules[-1] == 96_000 + 312


def test_an_empty_opus_stream_is_a_stream() -> None:
    stream = make_encoder("opus", 24_000, 48_000).finish()
    assert [flags for flags, _ in pages(stream)] == [2, 0, 4]


def test_opus_streams_differ_in_their_serial() -> None:
    a, b = (make_encoder("opus", 24_000, 48_000).finish()[14:18] for _ in range(2))
    assert a != b


def test_opus_bitrate_is_what_was_asked_for() -> None:
    noise = np.random.default_rng(0).normal(0, 5000, 48_000).astype("<i2").tobytes()
    sizes = [
        len(b"".join(spoken(make_encoder("opus", 24_000, 48_000, opus_bitrate=rate), noise)))
        for rate in (24, 32_000, 64_000)
    ]
    for size, rate in zip(sizes, (24_000, 32_000, 64_000), strict=True):
        assert rate * 2 / 8 * 0.8 < size < rate * 2 / 8 * 1.25


@pytest.mark.parametrize(
    ("given_rate", "bits"),
    [(-1000, -1000), (24, 24_000), (32.0, 32_000), (64_000, 64_000), (48_000.0, 48_000)],
)
def test_opus_bitrate_in_bits_or_kilobits(given_rate: float, bits: int) -> None:
    assert opus_bits_per_second(given_rate) == bits


@pytest.mark.parametrize("bitrate", [0, -1, 25, 63_999, float("nan")])
def test_an_unknown_opus_bitrate(bitrate: float) -> None:
    with pytest.raises(ValueError, match="opus_bitrate must be one of -1000, 24000"):
        make_encoder("opus", 24_000, 48_000, opus_bitrate=bitrate)


def test_all_formats_of_a_turn_are_equally_long() -> None:
    """Within one frame (50 ms); in fact within a millisecond."""
    pcm = tone(24_000, 1.7321)
    for audio_format in ("pcm", "wav", "opus"):
        for rate in RATES[audio_format]:
            stream = b"".join(spoken(make_encoder(audio_format, 24_000, rate), pcm))
            seconds = len(played(audio_format, stream, rate)) / rate
            assert abs(seconds - 1.7321) < 0.001, (audio_format, rate)


@pytest.mark.parametrize("sample_rate", [24_000, 48_000])
@pytest.mark.parametrize(("volume_db", "factor"), [(-6.0206, 0.5), (6.0206, 2.0), (-20.0, 0.1)])
def test_volume(volume_db: float, factor: float, sample_rate: int) -> None:
    encoder = make_encoder("pcm", 24_000, sample_rate, volume_db=volume_db)
    samples = played("pcm", b"".join(spoken(encoder, tone(24_000, 0.5))), sample_rate)
    assert abs(np.abs(samples[5000:-5000]).max() - factor * 12000 / 32768) < 0.003


def test_volume_stops_at_full_scale() -> None:
    encoder = make_encoder("pcm", 24_000, 24_000, volume_db=20.0)
    samples = np.frombuffer(b"".join(spoken(encoder, tone(24_000, 0.1))), "<i2")
    assert samples.max() == 32767 and samples.min() == -32768


@pytest.mark.parametrize("audio_format", ["pcm", "wav", "opus"])
def test_half_a_sample_is_refused(audio_format: str) -> None:
    encoder = make_encoder(audio_format, 24_000, RATES[audio_format][-1])
    with pytest.raises(ValueError, match="whole 16-bit samples"):
        encoder.encode(b"abc")


@pytest.mark.parametrize(
    ("audio_format", "rate", "message"),
    [
        ("aac", 44_100, r"unknown variant `aac`, expected one of .*`pcm`.*`wav`.*`mp3`.*`opus`"),
        ("pcm", 11_025, "sample_rate must be one of 8000, .*48000 for pcm"),
        ("wav", 0, "for wav"),
        ("opus", 24_000, "sample_rate must be one of 48000 for opus"),
        ("mp3", 8000, "16000, .*44100, 48000 for mp3"),
        ("ulaw", 24_000, "8000, 16000 for ulaw"),
    ],
)
def test_what_the_protocol_does_not_know(audio_format: str, rate: int, message: str) -> None:
    for refuse in (
        lambda: check_format(audio_format, rate),
        lambda: make_encoder(audio_format, 24_000, rate),
    ):
        with pytest.raises(ValueError, match=message):
            refuse()


def test_every_pair_of_the_protocol_is_known() -> None:
    for audio_format, rates in RATES.items():
        for rate in rates:
            check_format(audio_format, rate)


WITHOUT_LIBOPUS = """
import ctypes.util, sys
ctypes.util.find_library = lambda name: None
from shoal.realtime.audio import FormatUnavailable, make_encoder
assert "opuslib" not in sys.modules
for name in ("pcm", "wav"):
    assert make_encoder(name, 24000, 24000).encode(bytes(96)).endswith(bytes(96))
try:
    make_encoder("opus", 24000, 48000)
except FormatUnavailable as error:
    assert "libopus0" in str(error)
else:
    raise SystemExit("opus was made from nothing")
"""


def test_without_libopus_all_but_opus_works() -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-c", WITHOUT_LIBOPUS], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr


def test_the_content_types_of_http_are_those_of_the_encoders() -> None:
    assert set(CONTENT_TYPES) == set(RATES)
    for audio_format in get_args(AudioFormat):
        encoder = make_encoder(audio_format, 24_000, default_rate(audio_format))
        assert encoder.content_type == CONTENT_TYPES[audio_format]
        assert encoder.sample_rate == default_rate(audio_format)

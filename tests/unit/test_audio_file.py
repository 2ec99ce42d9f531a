from __future__ import annotations

import io
import struct
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st

from shoal.engine.audio_file import (
    AudioFileError,
    AudioTooLong,
    AudioTooShort,
    EmptyAudio,
    Limits,
    NotAudio,
    NoVoice,
    SilentAudio,
    read_audio,
)

VIDEO = Path(__file__).parents[1] / "data" / "black.mp4"
Samples = npt.NDArray[np.float32]


def tone(rate: int, seconds: float = 1.0, hz: float = 440.0, peak: float = 0.5) -> Samples:
    """One that comes and goes four times a second, as syllables do."""
    return (steady(rate, seconds, hz, peak) * swell(rate, seconds)).astype(np.float32)


def steady(rate: int, seconds: float = 1.0, hz: float = 440.0, peak: float = 0.5) -> Samples:
    t = np.arange(round(rate * seconds)) / rate
    return (peak * np.sin(2 * np.pi * hz * t)).astype(np.float32)


def swell(rate: int, seconds: float) -> Samples:
    return np.sin(2 * np.pi * 2 * np.arange(round(rate * seconds)) / rate).astype(np.float32)


def encoded(samples: npt.NDArray[Any], rate: int, kind: str, subtype: str | None = None) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, samples, rate, format=kind, subtype=subtype)
    return file.getvalue()


def loudest_hz(samples: Samples, rate: int) -> float:
    spectrum = np.abs(np.fft.rfft(samples * np.hanning(len(samples))))
    return float(spectrum.argmax() * rate / len(samples))


def within(samples: Samples, length: int) -> Samples:
    """Silence of ``length`` with ``samples`` in its middle."""
    out = np.zeros(length, np.float32)
    start = (length - len(samples)) // 2
    out[start : start + len(samples)] = samples
    return out


NOISE = (0.1 * np.random.default_rng(1).standard_normal(48000)).astype(np.float32)


@pytest.mark.parametrize("rate_out", [24000, 44100])
@pytest.mark.parametrize(
    ("kind", "subtype", "rate"),
    [
        ("WAV", "PCM_16", 8000),
        ("WAV", "PCM_24", 48000),
        ("WAV", "FLOAT", 22050),
        ("WAVEX", "PCM_16", 44100),
        ("FLAC", "PCM_16", 96000),
        ("MP3", None, 44100),
        ("MP3", None, 24000),
        ("OGG", "VORBIS", 32000),
        ("OGG", "OPUS", 48000),
    ],
)
@pytest.mark.parametrize("channels", [1, 2])
def test_every_kind_at_any_rate(
    kind: str, subtype: str | None, rate: int, channels: int, rate_out: int
) -> None:
    samples = np.stack([tone(rate)] * channels, 1)
    got = read_audio(encoded(samples, rate, kind, subtype), rate_out)
    assert got.dtype == np.float32 and got.ndim == 1
    assert abs(len(got) - rate_out) <= rate_out * 0.06  # mp3 pads to its frames
    middle = got[len(got) // 4 : -len(got) // 4]
    assert abs(loudest_hz(middle, rate_out) - 440) < 5
    assert abs(np.sqrt((middle**2).mean()) - 0.5 / 2) < 0.03


def test_channels_are_averaged() -> None:
    left = tone(24000)
    both = encoded(np.stack([left, np.zeros_like(left)], 1), 24000, "WAV", "FLOAT")
    np.testing.assert_allclose(read_audio(both, 24000), left / 2, atol=1e-6)


@pytest.mark.parametrize("kind", ["WAV", "FLAC", "MP3", "OGG"])
def test_channels_that_cancel_each_other_are_not_silence(kind: str) -> None:
    left = tone(24000, 2.0)
    both = encoded(np.stack([0.5 * left, -left], 1), 24000, kind)
    opposite = encoded(np.stack([left, -left], 1), 24000, kind)
    plain = read_audio(encoded(np.stack([left, left], 1), 24000, kind), 24000)
    for data, least in ((both, 0.2), (opposite, 0.9)):
        got = read_audio(data, 24000)
        ratio = np.sqrt((got**2).mean() / (plain**2).mean())
        assert least < ratio < 1.1
        assert abs(len(got) - len(plain)) < 24000 * 0.1


def test_a_file_at_the_codec_s_rate_is_not_changed() -> None:
    samples = tone(24000)
    got = read_audio(encoded(samples, 24000, "WAV", "FLOAT"), 24000)
    assert np.array_equal(got, samples)


def test_a_streamed_wav_with_placeholder_sizes() -> None:
    pcm = (tone(24000) * 32767).astype("<i2").tobytes()
    head = b"RIFF" + struct.pack("<I", 0xFFFFFF24) + b"WAVEfmt "
    head += struct.pack("<IHHIIHH", 16, 1, 1, 24000, 48000, 2, 16)
    head += b"data" + struct.pack("<I", 0xFFFFFF00)
    assert len(read_audio(head + pcm, 24000)) == 24000


def test_samples_over_full_scale_are_scaled_down() -> None:
    got = read_audio(encoded(tone(24000, peak=8.0), 24000, "WAV", "FLOAT"), 24000)
    assert abs(np.abs(got).max() - 1.0) < 1e-6


def test_a_resampler_s_overshoot_stays_within_full_scale() -> None:
    square = np.sign(steady(8000, hz=331)) * swell(8000, 1.0)
    got = read_audio(encoded(square, 8000, "WAV", "FLOAT"), 24000, Limits(clipped=1.0))
    assert np.abs(got).max() <= 1.0


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", EmptyAudio),
        (encoded(np.zeros(0, np.float32), 24000, "WAV"), EmptyAudio),
        (b"hello, this is text", NotAudio),
        (b"RIFF" + bytes(60), NotAudio),
        (b"OggS" + bytes(60), NotAudio),
        (b"fLaC" + bytes(60), NotAudio),
        (b"\x89PNG\r\n\x1a\n" + bytes(100), NotAudio),
        (encoded(tone(24000), 24000, "AIFF"), NotAudio),
        (encoded(tone(24000), 24000, "FLAC")[:200], NotAudio),
        (encoded(np.zeros((24000, 9), np.float32), 24000, "WAV"), NotAudio),
        (encoded(tone(24000), 2000, "WAV"), NotAudio),
        (encoded(np.full(24000, np.nan, np.float32), 24000, "WAV", "FLOAT"), NotAudio),
        (encoded(np.full(24000, np.inf, np.float32), 24000, "WAV", "FLOAT"), NotAudio),
        (encoded(tone(24000, 0.99), 24000, "WAV"), AudioTooShort),
        (encoded(tone(8000, 60.01), 8000, "WAV"), AudioTooLong),
        (encoded(np.zeros(24000, np.float32), 24000, "WAV"), SilentAudio),
        (encoded(tone(24000, peak=5e-4), 24000, "WAV", "FLOAT"), SilentAudio),
        (encoded(NOISE, 24000, "WAV"), NoVoice),
        (encoded(np.clip(100 * tone(24000), -1, 1), 24000, "WAV"), NoVoice),
        (encoded(steady(24000, 3.0), 24000, "WAV"), NoVoice),
        (encoded(within(tone(24000), 24000 * 40), 24000, "WAV"), SilentAudio),
    ],
)
def test_what_cannot_be_used_says_why(data: bytes, error: type[AudioFileError]) -> None:
    with pytest.raises(error, match="reference audio"):
        read_audio(data, 24000)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"\0\0\0\x20ftypisom\0\0\2\0isomiso2avc1mp41", r"a video file \(mp4\); send its sound as"),
        (b"\0\0\0\x14ftypqt  \0\0\2\0qt  ", r"a video file \(mov\)"),
        (b"\0\0\0\x20ftypM4A \0\0\2\0", r"an AAC file \(m4a\)"),
        (
            VIDEO.read_bytes(),
            r"a video file \(mp4\); send its sound as a wav, mp3, flac or ogg file",
        ),
        (b"\x1aE\xdf\xa3\x9fB\x86\x81\x01", "webm or mkv"),
        (b"G@\x11\x10\x00B\xf0%", r"a video file \(mpeg\)"),
        (b"RIFF\x10\0\0\0AVI LIST", r"a video file \(avi\)"),
        (b"\xff\xf1\x50\x80\x02\x1f\xfc", "an AAC file"),
        (encoded(tone(24000), 24000, "AIFF"), "an AIFF file"),
        (encoded(tone(24000), 2000, "WAV"), "at 2000 Hz; at most 8 at 4000 to 384000 Hz"),
        (encoded(NOISE, 24000, "WAV"), "no voice can be made out above the noise"),
        (encoded(np.clip(100 * tone(24000), -1, 1), 24000, "WAV"), r"clipped: \d\d+ % of its loud"),
        (encoded(steady(8000, 2.0), 8000, "WAV"), "a steady tone without a voice"),
        (encoded(steady(24000, 2.0, 5000), 24000, "WAV"), "holds nothing below 4 kHz"),
        (encoded(steady(8000, 2.0, 50), 8000, "WAV"), "a steady tone without a voice"),
        (
            encoded(within(tone(24000), 24000 * 40), 24000, "WAV"),
            r"almost all silence: of its 40.0 s only (0.9|1.0) s are sound",
        ),
        (
            encoded(within(tone(24000, 0.25), 24000 * 2), 24000, "WAV"),
            r"of its 2.0 s only 0.[23] s are sound",
        ),
    ],
)
def test_the_answer_names_what_was_sent(data: bytes, says: str) -> None:
    with pytest.raises(AudioFileError, match=says):
        read_audio(data, 24000)


def test_the_limits_themselves_are_accepted() -> None:
    limits = Limits(max_bytes=200_000, min_s=1.0, max_s=2.0)
    for seconds in (1.0, 2.0):
        data = encoded(tone(24000, seconds), 24000, "WAV")
        assert len(read_audio(data, 24000, limits)) == 24000 * seconds


def test_too_many_bytes_are_refused_before_they_are_looked_at() -> None:
    with pytest.raises(AudioTooLong, match="1001 bytes"):
        read_audio(bytes(1001), 24000, Limits(max_bytes=1000))


def test_a_small_file_of_an_hour_is_not_unpacked() -> None:
    data = encoded(np.zeros(8000 * 3600, np.int16), 8000, "FLAC")
    assert len(data) < 500_000
    with pytest.raises(AudioTooLong, match="longer than 60 s"):
        read_audio(data, 24000)


@given(
    head=st.sampled_from([b"", b"RIFF", b"OggS", b"fLaC", b"ID3\x04", b"\xff\xfb\x90"]),
    tail=st.binary(max_size=400),
)
def test_any_bytes_are_audio_or_an_error_of_ours(head: bytes, tail: bytes) -> None:
    try:
        samples = read_audio(head + tail, 24000)
    except AudioFileError:
        return
    assert len(samples) > 0


@given(data=st.data())
def test_a_damaged_file_is_audio_or_an_error_of_ours(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(["WAV", "FLAC", "OGG", "MP3"]))
    whole = bytearray(encoded(tone(24000, 1.2), 24000, kind))
    for _ in range(data.draw(st.integers(1, 5))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(1, len(whole)))
    try:
        samples = read_audio(bytes(whole[:cut]), 24000)
    except AudioFileError:
        return
    assert np.isfinite(samples).all() and np.abs(samples).max() <= 1.0

"""Bytes to samples, however the messages are cut."""

from __future__ import annotations

import io
import struct
import wave
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.loadtest.measure.unpack import PcmUnpacker, UnreadableAudio, WavUnpacker


def wav(samples: bytes, rate: int = 22050, channels: int = 1) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(channels)
        out.setsampwidth(2)
        out.setframerate(rate)
        out.writeframes(samples)
    return file.getvalue()


def placeholder(header: bytes) -> bytes:
    return header[:40] + struct.pack("<I", 0xFFFFFF00) + header[44:]


@given(st.binary(max_size=64), st.lists(st.integers(0, 64), max_size=6))
def test_pcm_comes_out_whole_wherever_it_is_cut(data: bytes, cuts: list[int]) -> None:
    unpacker = PcmUnpacker()
    edges = [0, *sorted(min(c, len(data)) for c in cuts), len(data)]
    parts = [unpacker.feed(data[a:b]) for a, b in pairwise(edges)]
    assert b"".join(pcm for _, pcm in parts) == data[: len(data) & ~1]
    assert sum(samples for samples, _ in parts) == len(data) // 2
    assert unpacker.leftover_bytes == len(data) % 2


@given(st.lists(st.integers(0, 300), max_size=8))
def test_wav_comes_out_whole_wherever_it_is_cut(cuts: list[int]) -> None:
    samples = bytes(range(256))
    data = wav(samples)
    unpacker = WavUnpacker()
    edges = [0, *sorted(min(c, len(data)) for c in cuts), len(data)]
    parts = [unpacker.feed(data[a:b]) for a, b in pairwise(edges)]
    assert b"".join(pcm for _, pcm in parts) == samples
    assert unpacker.header_rate == 22050
    assert unpacker.declared_s == pytest.approx(128 / 22050)


def test_a_header_alone_makes_nothing_decodable() -> None:
    unpacker = WavUnpacker()
    data = placeholder(wav(b"", 24000))
    assert unpacker.feed(data) == (0, b"")
    assert unpacker.header_rate == 24000
    assert unpacker.declared_s is None
    assert unpacker.feed(b"\x01\x02\x03\x04") == (2, b"\x01\x02\x03\x04")


def test_a_repeated_header_is_counted_and_removed() -> None:
    unpacker = WavUnpacker()
    data = wav(b"\x01\x02")
    unpacker.feed(data)
    assert unpacker.feed(data) == (1, b"\x01\x02")
    assert unpacker.repeated_headers == 1


def test_of_two_channels_the_first_is_kept() -> None:
    unpacker = WavUnpacker()
    assert unpacker.feed(wav(b"AAbbCCdd", channels=2)) == (2, b"AACC")
    assert unpacker.declared_s == pytest.approx(2 / 22050)


def test_a_chunk_before_the_data_is_skipped() -> None:
    plain = wav(b"\x01\x02")
    extra = b"LIST" + struct.pack("<I", 3) + b"abc\x00"
    unpacker = WavUnpacker()
    assert unpacker.feed(plain[:36] + extra + plain[36:]) == (1, b"\x01\x02")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"OggS" + bytes(40), "does not begin with a WAV header"),
        (b"RIFF\0\0\0\0WAVEdata\0\0\0\0", "no format before its data"),
        (wav(b"")[:34] + b"\x08\x00" + wav(b"")[36:], "declares 8 bits"),
        (b"RIFF\0\0\0\0WAVEjunk\xff\xff\xff\x7f" + bytes(70000), "does not end"),
    ],
)
def test_what_is_no_wav_is_said_to_be_none(data: bytes, reason: str) -> None:
    with pytest.raises(UnreadableAudio, match=reason):
        WavUnpacker().feed(data)

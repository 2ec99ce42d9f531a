"""Samples counted from the headers of MP3 frames and Ogg pages."""

from __future__ import annotations

import struct

import pytest

from shoal.loadtest.measure.compressed import Mp3Counter, OggOpusCounter, unpacker
from shoal.loadtest.measure.unpack import PcmUnpacker, UnreadableAudio, WavUnpacker

# MPEG-1 layer III, 128 kbit/s, 44.1 kHz: 144 * 128000 / 44100 = 417 bytes, 1152 samples
MP3_FRAME = bytes.fromhex("fffb9000") + bytes(413)
# MPEG-2 layer III, 64 kbit/s, 24 kHz: 72 * 64000 / 24000 = 192 bytes, 576 samples
MP3_SLOW_FRAME = bytes.fromhex("fff38400") + bytes(188)
ID3 = b"ID3\x04\x00\x00" + bytes([0, 0, 1, 2]) + bytes(130)


def page(granule: int, body: bytes) -> bytes:
    lacing = bytes([255] * (len(body) // 255) + [len(body) % 255])
    return (
        b"OggS\x00\x00"
        + struct.pack("<qIII", granule, 1, 0, 0)
        + bytes([len(lacing)])
        + lacing
        + body
    )


HEAD = page(0, b"OpusHead\x01\x01" + struct.pack("<HIHB", 312, 48000, 0, 0))
TAGS = page(0, b"OpusTags" + bytes(20))


def test_an_mp3_frame_counts_when_it_is_whole() -> None:
    counter = Mp3Counter()
    assert counter.feed(MP3_FRAME[:416]) == (0, b"")
    assert counter.feed(MP3_FRAME[416:] + MP3_FRAME) == (2304, b"")
    assert counter.header_rate == 44100
    assert counter.leftover_bytes == 0


def test_lower_rates_have_shorter_frames() -> None:
    counter = Mp3Counter()
    assert counter.feed(MP3_SLOW_FRAME * 3) == (3 * 576, b"")
    assert counter.header_rate == 24000


def test_a_tag_in_front_is_skipped_even_in_pieces() -> None:
    counter = Mp3Counter()
    stream = ID3 + MP3_FRAME
    total = sum(counter.feed(stream[i : i + 7])[0] for i in range(0, len(stream), 7))
    assert total == 1152


def test_junk_between_frames_is_passed_over() -> None:
    counter = Mp3Counter()
    assert counter.feed(MP3_FRAME + b"\x00\x01" + MP3_FRAME)[0] == 2304


def test_bytes_without_any_frame_are_no_mp3() -> None:
    with pytest.raises(UnreadableAudio, match="no MP3 frames"):
        Mp3Counter().feed(bytes(70000))


def test_opus_samples_are_the_granules_less_the_preskip() -> None:
    counter = OggOpusCounter()
    assert counter.feed(HEAD + TAGS) == (0, b"")
    assert counter.header_rate == 48000
    first, second = page(312 + 960, bytes(300)), page(312 + 2880, bytes(10))
    assert counter.feed(first[:-1]) == (0, b"")
    assert counter.feed(first[-1:] + second) == (2880, b"")
    assert counter.leftover_bytes == 0


def test_a_second_opus_head_is_a_repeated_header() -> None:
    counter = OggOpusCounter()
    counter.feed(HEAD + TAGS + HEAD)
    assert counter.repeated_headers == 1


def test_what_is_no_ogg_is_said_to_be_none() -> None:
    with pytest.raises(UnreadableAudio, match="not made of Ogg pages"):
        OggOpusCounter().feed(bytes(27))


def test_every_format_has_its_unpacker() -> None:
    kinds = {name: type(unpacker(name)) for name in ("pcm", "wav", "mp3", "opus")}
    assert kinds == {
        "pcm": PcmUnpacker,
        "wav": WavUnpacker,
        "mp3": Mp3Counter,
        "opus": OggOpusCounter,
    }
    with pytest.raises(ValueError, match="flac"):
        unpacker("flac")

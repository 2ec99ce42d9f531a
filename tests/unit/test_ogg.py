from __future__ import annotations

import struct
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from shoal.realtime.audio.ogg import OggOpusWriter, checksum


@dataclass(frozen=True)
class Page:
    flags: int
    granule: int
    serial: int
    number: int
    packets: list[bytes]


def plain_checksum(page: bytes) -> int:
    """As the standard words it: bit by bit, most significant first."""
    register = 0
    for byte in page:
        register ^= byte << 24
        for _ in range(8):
            register = register << 1 ^ (0x04C11DB7 if register & 0x80000000 else 0)
            register &= 0xFFFFFFFF
    return register


def pages(stream: bytes) -> list[Page]:
    """All pages of ``stream``, which must hold nothing else."""
    found: list[Page] = []
    while stream:
        magic, version, flags, granule, serial, number, crc, segments = struct.unpack_from(
            "<4sBBqIIIB", stream
        )
        assert magic == b"OggS" and version == 0
        lacing = stream[27 : 27 + segments]
        size = 27 + segments + sum(lacing)
        blank = stream[:22] + bytes(4) + stream[26:size]
        assert crc == plain_checksum(blank)
        packets, packet, at = list[bytes](), b"", 27 + segments
        for length in lacing:
            packet += stream[at : at + length]
            at += length
            if length < 255:
                packets.append(packet)
                packet = b""
        assert packet == b""
        found.append(Page(flags, granule, serial, number, packets))
        stream = stream[size:]
    return found


def writer() -> OggOpusWriter:
    return OggOpusWriter(serial=0xDEADBEEF, pre_skip=312, input_rate=24000)


@given(st.binary(max_size=400))
def test_checksum(data: bytes) -> None:
    assert checksum(data) == plain_checksum(data)


def test_headers_come_once_on_pages_of_their_own() -> None:
    ogg = writer()
    head, tags = pages(ogg.headers())
    assert (head.flags, head.granule, head.number) == (2, 0, 0)
    assert head.packets == [b"OpusHead" + struct.pack("<BBHIhB", 1, 1, 312, 24000, 0, 0)]
    assert (tags.flags, tags.granule, tags.number) == (0, 0, 1)
    assert tags.packets == [b"OpusTags\x05\0\0\0shoal\0\0\0\0"]
    assert head.serial == tags.serial == 0xDEADBEEF
    assert ogg.headers() == b""


def test_a_page_holds_at_most_100_ms() -> None:
    ogg = writer()
    out = ogg.headers()
    for i in range(12):
        out += ogg.packet(bytes([i]) * 60, 960)
    out += ogg.finish(11_000)
    sound = pages(out)[2:]
    assert [len(page.packets) for page in sound] == [5, 5, 2]
    assert [page.granule for page in sound] == [4800, 9600, 11_312]
    assert [page.flags for page in sound] == [0, 0, 4]
    assert [page.number for page in sound] == [2, 3, 4]


def test_flush_sends_what_there_is() -> None:
    ogg = writer()
    ogg.headers()
    assert ogg.flush() == b""
    assert ogg.packet(b"a", 960) == b""
    (page,) = pages(ogg.flush())
    assert (page.packets, page.granule, page.flags) == ([b"a"], 960, 0)
    assert ogg.flush() == b""


def test_the_end_is_never_after_what_was_encoded() -> None:
    ogg = writer()
    ogg.headers()
    ogg.packet(b"a", 960)
    (page,) = pages(ogg.finish(100_000))
    assert (page.granule, page.flags) == (960, 4)


@given(st.lists(st.integers(0, 1275), min_size=1, max_size=40))
def test_packets_of_any_size_come_back(sizes: list[int]) -> None:
    packets = [bytes([i % 256]) * size for i, size in enumerate(sizes)]
    ogg = writer()
    out = ogg.headers()
    for packet in packets:
        out += ogg.packet(packet, 120)
    out += ogg.finish(120 * len(packets))
    sound = pages(out)[2:]
    assert [packet for page in sound for packet in page.packets] == packets
    assert all(len(page.packets) <= 40 for page in sound)

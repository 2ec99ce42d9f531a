"""Opus packets to an Ogg stream (RFC 3533, RFC 7845): the container, nothing of the codec.

Pages are cut by their duration, so that a page never holds sound back for long. Pure bytes; one
object a stream, used by whichever thread encodes that stream.
"""

from __future__ import annotations

import struct
import zlib
from typing import Final

_GRANULE_RATE: Final = 48_000
"""Ogg Opus counts time in these whatever rate was encoded."""
_MAX_PAGE_SAMPLES: Final = _GRANULE_RATE // 10
_FIRST, _LAST = 0x02, 0x04
_MAX_SEGMENTS: Final = 255
_MIRRORED = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))


class OggOpusWriter:
    """One mono stream. ``packet`` for each packet in order, then ``finish`` once."""

    def __init__(
        self, *, serial: int, pre_skip: int, input_rate: int, vendor: str = "shoal"
    ) -> None:
        """``serial``: 32 bits, different for streams that may be joined. ``pre_skip``: samples at
        48 kHz that a player drops at the start. ``input_rate``: for information only."""
        self._serial = serial
        self._pre_skip = pre_skip
        self._page_number = 0
        self._granule = 0
        self._packets: list[bytes] = []
        self._segments = 0
        self._page_samples = 0
        head = b"OpusHead" + struct.pack("<BBHIhB", 1, 1, pre_skip, input_rate, 0, 0)
        name = vendor.encode()
        tags = b"OpusTags" + struct.pack("<I", len(name)) + name + struct.pack("<I", 0)
        self._headers = self._page([head], _FIRST, 0) + self._page([tags], 0, 0)

    def headers(self) -> bytes:
        """The two header pages, the first time; nothing after that."""
        headers, self._headers = self._headers, b""
        return headers

    def packet(self, data: bytes, samples: int) -> bytes:
        """Add a packet of ``samples`` at 48 kHz; returns the page it completes, mostly nothing."""
        segments = len(data) // 255 + 1
        full = self._segments + segments > _MAX_SEGMENTS
        if self._packets and (full or self._page_samples + samples > _MAX_PAGE_SAMPLES):
            page = self.flush()
        else:
            page = b""
        self._packets.append(data)
        self._segments += segments
        self._page_samples += samples
        self._granule += samples
        return page

    def flush(self) -> bytes:
        """Close the page that is being filled, so that all sound so far can be sent.

        The last packet of a stream must still be in hand at ``finish``.
        """
        return self._close(0, self._granule) if self._packets else b""

    def finish(self, samples: int) -> bytes:
        """The last page. ``samples`` at 48 kHz is what the stream shall play: what its packets
        hold beyond pre-skip and that is padding which a player drops."""
        return self._close(_LAST, min(self._granule, self._pre_skip + samples))

    def _close(self, flags: int, granule: int) -> bytes:
        page = self._page(self._packets, flags, granule)
        self._packets = []
        self._segments = self._page_samples = 0
        return page

    def _page(self, packets: list[bytes], flags: int, granule: int) -> bytes:
        lacing = b"".join(
            b"\xff" * (len(packet) // 255) + bytes((len(packet) % 255,)) for packet in packets
        )
        head = struct.pack(
            "<4sBBqIIIB",
            b"OggS",
            0,
            flags,
            granule,
            self._serial,
            self._page_number,
            0,
            len(lacing),
        )
        self._page_number += 1
        page = bytearray(head + lacing + b"".join(packets))
        page[22:26] = checksum(page).to_bytes(4, "little")
        return bytes(page)


def checksum(page: bytes | bytearray) -> int:
    """Ogg's CRC-32: zlib's polynomial, but most significant bit first and without inversion.

    Mirroring every byte and the result turns zlib's into it, which keeps the loop in C.
    """
    mirrored = zlib.crc32(page.translate(_MIRRORED), 0xFFFFFFFF) ^ 0xFFFFFFFF
    return int.from_bytes(mirrored.to_bytes(4, "little").translate(_MIRRORED), "big")

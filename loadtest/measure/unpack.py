"""Bytes from the wire -> samples that a player could use now, message by message. Pure.

PCM and WAV are unpacked here; :mod:`.compressed` counts what MP3 and Ogg Opus bytes hold.
"""

from __future__ import annotations

import struct
from typing import Protocol


class UnreadableAudio(Exception):
    """The bytes are not the audio they should be; the message is in the client's terms."""


class Unpacker(Protocol):
    """Fed the payload of each message; knows what a player could decode after it.

    ``header_rate`` is what the stream declares (``None``: nothing yet, or headerless),
    ``declared_s`` the length its header claims. ``compressed``: samples are counted, not
    decoded, and the PCM stays empty.
    """

    header_rate: int | None
    declared_s: float | None
    repeated_headers: int
    compressed: bool

    @property
    def leftover_bytes(self) -> int:
        """Bytes that belong to no whole sample or frame so far."""
        ...

    def feed(self, data: bytes) -> tuple[int, bytes]:
        """(samples that became decodable, their mono int16 PCM or nothing)."""
        ...


class PcmUnpacker:
    """Headerless mono s16le; a sample may be split over two messages."""

    compressed = False

    def __init__(self) -> None:
        self.header_rate: int | None = None
        self.declared_s: float | None = None
        self.repeated_headers = 0
        self._odd = b""

    @property
    def leftover_bytes(self) -> int:
        return len(self._odd)

    def feed(self, data: bytes) -> tuple[int, bytes]:
        data = self._odd + data
        whole = len(data) & ~1
        self._odd = data[whole:]
        return whole // 2, data[:whole]


_PLACEHOLDER_SIZE = 0x7F000000
_MAX_HEADER = 65536


class WavUnpacker:
    """One RIFF/WAVE header, then 16-bit samples; of several channels the first is kept.

    A further header at the start of a message is counted and removed. Sizes of 0 or about 2 GiB
    and more are the placeholders of a stream, not a declared length.
    """

    compressed = False

    def __init__(self) -> None:
        self.header_rate: int | None = None
        self.declared_s: float | None = None
        self.repeated_headers = 0
        self._head = bytearray()
        self._channels = 1
        self._body = b""

    @property
    def leftover_bytes(self) -> int:
        return len(self._body)

    def feed(self, data: bytes) -> tuple[int, bytes]:
        if self.header_rate is None:
            self._head += data
            if (start := self._parse_head()) is None:
                return 0, b""
            data = bytes(self._head[start:])
            self._head.clear()
        elif (
            data[:4] == b"RIFF" and data[8:12] == b"WAVE" and (at := data.find(b"data", 12, 64)) > 0
        ):
            self.repeated_headers += 1
            data = data[at + 8 :]
        data = self._body + data
        width = 2 * self._channels
        whole = len(data) // width * width
        self._body = data[whole:]
        pcm = data[:whole]
        if self._channels > 1:
            pcm = b"".join(pcm[i : i + 2] for i in range(0, whole, width))
        return whole // width, pcm

    def _parse_head(self) -> int | None:
        """Offset of the first sample, or ``None`` while the header is incomplete."""
        head = bytes(self._head)
        if len(head) < 12:
            return None
        if head[:4] != b"RIFF" or head[8:12] != b"WAVE":
            raise UnreadableAudio("the stream does not begin with a WAV header")
        at, rate = 12, 0
        while len(head) >= at + 8:
            name, size = head[at : at + 4], struct.unpack_from("<I", head, at + 4)[0]
            if name == b"data":
                if not rate:
                    raise UnreadableAudio("the WAV header has no format before its data")
                self.header_rate = rate
                if 0 < size < _PLACEHOLDER_SIZE:
                    self.declared_s = size / (2 * self._channels * rate)
                return at + 8
            if name == b"fmt ":
                if len(head) < at + 24:
                    return None
                _, self._channels, rate, _, _, bits = struct.unpack_from("<HHIIHH", head, at + 8)
                if bits != 16 or not rate or not self._channels:
                    raise UnreadableAudio(f"the WAV header declares {bits} bits at {rate} Hz")
            at += 8 + size + (size & 1)
        if len(head) > _MAX_HEADER:
            raise UnreadableAudio("the WAV header does not end")
        return None

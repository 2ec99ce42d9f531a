"""How many samples the bytes of an MP3 or Ogg Opus stream hold, frame by frame. Pure.

No decoder: the headers tell. A first frame counts as decodable when it is whole. What the
samples sound like is found out after the turn, by whoever has a decoder.
"""

from __future__ import annotations

import struct

from .unpack import PcmUnpacker, Unpacker, UnreadableAudio, WavUnpacker

_MP3_KBPS_V1 = (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320)
_MP3_KBPS_V2 = (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160)
_MP3_RATES = (44100, 48000, 32000)
_MAX_JUNK = 65536
_OPUS_RATE = 48000


class Mp3Counter:
    """MPEG-1, 2 and 2.5 layer III; an ID3v2 tag in front is skipped."""

    compressed = True

    def __init__(self) -> None:
        self.header_rate: int | None = None
        self.declared_s: float | None = None
        self.repeated_headers = 0
        self._data = bytearray()
        self._skip = 0
        self._junk = 0

    @property
    def leftover_bytes(self) -> int:
        return len(self._data)

    def feed(self, data: bytes) -> tuple[int, bytes]:
        self._data += data
        samples = 0
        while True:
            if self._skip:
                gone = min(self._skip, len(self._data))
                del self._data[:gone]
                self._skip -= gone
            if len(self._data) < 10:
                return samples, b""
            if self._data.startswith(b"ID3"):
                size = 0
                for byte in self._data[6:10]:
                    size = size << 7 | byte & 0x7F
                self._skip = 10 + size
                continue
            frame = self._frame()
            if frame is None:
                del self._data[:1]
                self._junk += 1
                if self._junk > _MAX_JUNK:
                    raise UnreadableAudio("the stream holds no MP3 frames")
                continue
            length, count, rate = frame
            if len(self._data) < length:
                return samples, b""
            self.header_rate = rate
            samples += count
            del self._data[:length]

    def _frame(self) -> tuple[int, int, int] | None:
        """(bytes, samples, rate) of the frame at the front, or ``None`` if there is none."""
        (word,) = struct.unpack_from(">I", self._data)
        version, layer = word >> 19 & 3, word >> 17 & 3
        kbps_index, rate_index = word >> 12 & 15, word >> 10 & 3
        if word >> 21 != 0x7FF or version == 1 or layer != 1:
            return None
        if kbps_index in (0, 15) or rate_index == 3:
            return None
        newest = version == 3
        kbps = (_MP3_KBPS_V1 if newest else _MP3_KBPS_V2)[kbps_index]
        rate = _MP3_RATES[rate_index] >> (0 if newest else 1 if version == 2 else 2)
        samples = 1152 if newest else 576
        return samples // 8 * kbps * 1000 // rate + (word >> 9 & 1), samples, rate


class OggOpusCounter:
    """One logical Ogg Opus stream; a page counts when it is whole. Always 48 kHz."""

    compressed = True

    def __init__(self) -> None:
        self.header_rate: int | None = None
        self.declared_s: float | None = None
        self.repeated_headers = 0
        self._data = bytearray()
        self._granule = 0

    @property
    def leftover_bytes(self) -> int:
        return len(self._data)

    def feed(self, data: bytes) -> tuple[int, bytes]:
        self._data += data
        samples = 0
        while len(self._data) >= 27:
            if not self._data.startswith(b"OggS"):
                raise UnreadableAudio("the stream is not made of Ogg pages")
            segments = self._data[26]
            if len(self._data) < 27 + segments:
                break
            body = 27 + segments
            size = body + sum(self._data[27:body])
            if len(self._data) < size:
                break
            if self._data.startswith(b"OpusHead", body):
                self.repeated_headers += self.header_rate is not None
                self.header_rate = _OPUS_RATE
                self._granule = struct.unpack_from("<H", self._data, body + 10)[0]
            granule = struct.unpack_from("<q", self._data, 6)[0]
            if granule > self._granule:
                samples += granule - self._granule
                self._granule = granule
            del self._data[:size]
        return samples, b""


def unpacker(container: str) -> Unpacker:
    """The unpacker for "pcm", "wav", "mp3" or "opus"."""
    match container:
        case "pcm":
            return PcmUnpacker()
        case "wav":
            return WavUnpacker()
        case "mp3":
            return Mp3Counter()
        case "opus":
            return OggOpusCounter()
        case _:
            raise ValueError(f"unknown audio format {container!r}: pcm, wav, mp3 or opus")

"""MP3 through LAME: constant bitrate, an ID3v2 tag first, no Xing frame, whole frames only.

What LAME and a decoder delay the sound by cannot be marked in a stream without a Xing frame, so a
player hears 1,105 samples before it. They replace as much of the quiet that the sound itself
begins with, if it does, and the end is cut at the last frame in which there is sound.
"""

from __future__ import annotations

from typing import Any, Final, cast

from .encoder import FormatUnavailable
from .samples import Samples, quiet_samples

MP3_RATES: Final = (16_000, 22_050, 24_000, 32_000, 44_100, 48_000)
MP3_KBPS: Final = (32, 48, 64, 96, 128, 160, 192)
_V1_KBPS: Final = (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 0)
_V2_KBPS: Final = (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160, 0)
_V1_LEAST_RATE: Final = 32_000
# A tenth of a second more of a core per minute than the fastest, and no worse than the best.
_QUALITY: Final = 5
_DELAY: Final = 576 + 529
"""Samples: LAME's delay and that of every decoder."""
_ID3: Final = b"ID3\x04\0\0" + bytes((0, 0, 0, 21)) + b"TSSE\0\0\0\x0b\0\0\x03shoal live"
_LEAST_FRAMES: Final = 2
"""Decoders take a single frame for chance."""
_FLUSH_SAMPLES: Final = 1152


class Mp3Encoder:
    """See the module. MPEG-1 from 32 kHz on, MPEG-2 below."""

    content_type = "audio/mpeg"

    def __init__(self, samples: Samples, kbps: int) -> None:
        """:raises ValueError: layer III has no such bitrate at this rate."""
        rate = samples.rate
        newest = rate >= _V1_LEAST_RATE
        if kbps not in (_V1_KBPS if newest else _V2_KBPS):
            raise ValueError(f"mp3 has no bitrate of {kbps} kbps at {rate} Hz")
        lame = _lameenc().Encoder()
        lame.silence()
        lame.set_channels(1)
        lame.set_in_sample_rate(rate)
        lame.set_out_sample_rate(rate)
        lame.set_bit_rate(kbps)
        lame.set_quality(_QUALITY)
        self._lame: Any = lame
        self.sample_rate = rate
        self._samples = samples
        self._kbps = _V1_KBPS if newest else _V2_KBPS
        self._frame_samples = 1152 if newest else 576
        self._header = _ID3
        self._partial = bytearray()
        self._skippable = _DELAY
        self._skipped = 0
        self._taken = 0
        self._frames = 0

    @property
    def encoded_s(self) -> float:
        heard = min(self._frames * self._frame_samples - _DELAY, self._taken)
        return (self._skipped + max(0, heard)) / self.sample_rate

    def encode(self, pcm: bytes) -> bytes:
        return self._out(self._take(self._samples.convert(pcm)))

    def finish(self) -> bytes:
        out = self._out(self._take(self._samples.rest()))
        needed = -(-(self._taken + _DELAY) // self._frame_samples) if self._taken else 0
        needed = max(needed, _LEAST_FRAMES if needed else 0)
        while self._frames < needed:
            silence = bytes(self._lame.encode(bytes(2 * _FLUSH_SAMPLES)))
            out += self._out(silence, needed - self._frames)
        return out or self._header

    def _take(self, pcm: bytes) -> bytes:
        if self._skippable:
            pcm = self._less_quiet(pcm)
        if not pcm:
            return b""
        self._taken += len(pcm) // 2
        return bytes(self._lame.encode(pcm))

    def _less_quiet(self, pcm: bytes) -> bytes:
        """Without the quiet at the beginning that the delay stands for."""
        quiet = quiet_samples(pcm)
        skip = min(quiet, self._skippable)
        self._skippable = self._skippable - skip if 2 * quiet == len(pcm) else 0
        self._skipped += skip
        return pcm[2 * skip :]

    def _out(self, data: bytes, most: int | None = None) -> bytes:
        """The whole frames of what waits and ``data``, ``most`` of them."""
        self._partial += data
        at = frames = 0
        while frames != most and at + 4 <= len(self._partial):
            size = self._frame_bytes(at)
            if at + size > len(self._partial):
                break
            at += size
            frames += 1
        self._frames += frames
        whole = bytes(self._partial[:at])
        del self._partial[:at]
        if not whole:
            return b""
        header, self._header = self._header, b""
        return header + whole

    def _frame_bytes(self, at: int) -> int:
        head = int.from_bytes(self._partial[at : at + 4], "big")
        assert head >> 21 == 0x7FF, "LAME's stream is frame after frame"
        bits = self._kbps[head >> 12 & 0xF] * 1000
        return self._frame_samples // 8 * bits // self.sample_rate + (head >> 9 & 1)


def _lameenc() -> Any:
    try:
        import lameenc  # pyright: ignore[reportMissingTypeStubs]
    except ImportError as error:
        raise FormatUnavailable(
            "mp3 needs the package lameenc: install it, or ask for opus, wav or pcm"
        ) from error
    return cast(Any, lameenc)

"""Ogg Opus through libopus, which is loaded when the first stream starts: all else works without.

20 ms packets; every call closes the page it wrote to, so nothing waits in the container.
"""

from __future__ import annotations

import secrets
from typing import Any, Final, cast

from .encoder import FormatUnavailable
from .ogg import OggOpusWriter
from .samples import Samples

OPUS_CLOCK: Final = 48_000
_OPUS_RATES: Final = (8_000, 12_000, 16_000, 24_000, 48_000)
_PACKETS_A_SECOND: Final = 50
# Half the time of the default for speech that sounds the same: 0.2 ms of a core per 20 ms.
_COMPLEXITY: Final = 5


def coded_rate(model_rate: int) -> int:
    """The rate to give Opus: the model's own where it can, as a decoder plays any at 48 kHz."""
    return model_rate if model_rate in _OPUS_RATES else OPUS_CLOCK


class OpusEncoder:
    """See the module."""

    content_type = "audio/ogg"
    sample_rate = OPUS_CLOCK

    def __init__(self, samples: Samples, bits_per_second: int) -> None:
        """``samples`` come out at :func:`coded_rate`."""
        opus = _opuslib()
        rate = samples.rate
        self._encoder = opus.Encoder(rate, 1, opus.APPLICATION_AUDIO)
        self._encoder.bitrate = bits_per_second
        self._encoder.complexity = _COMPLEXITY
        self._encoder.signal = opus.SIGNAL_VOICE
        self._samples = samples
        self._clock = OPUS_CLOCK // rate
        self._packet_samples = rate // _PACKETS_A_SECOND
        self._lookahead = int(self._encoder.lookahead)
        self._writer = OggOpusWriter(
            serial=secrets.randbits(32),
            pre_skip=self._lookahead * self._clock,
            # Some players offer the sound at this rate, and this one was asked for.
            input_rate=OPUS_CLOCK,
        )
        self._waiting = bytearray()
        self._taken = 0
        self._packets = 0

    @property
    def encoded_s(self) -> float:
        heard = min(self._packets * self._packet_samples - self._lookahead, self._taken)
        return max(0, heard) / self._samples.rate

    def encode(self, pcm: bytes) -> bytes:
        out = bytearray(self._writer.headers())
        data = self._samples.convert(pcm)
        self._taken += len(data) // 2
        out += self._take(data)
        out += self._writer.flush()
        return bytes(out)

    def finish(self) -> bytes:
        out = bytearray(self._writer.headers())
        rest = self._samples.rest()
        self._taken += len(rest) // 2
        out += self._take(rest)
        # The decoder is behind by the lookahead, so this much silence pushes the end out of it;
        # it is never nothing, and so the last page always has a packet.
        missing = 2 * self._lookahead + -(len(self._waiting) + 2 * self._lookahead) % (
            2 * self._packet_samples
        )
        out += self._take(bytes(missing))
        out += self._writer.finish(self._taken * self._clock)
        return bytes(out)

    def _take(self, data: bytes) -> bytes:
        """Encode the whole packets of what waits and ``data``; the pages that are full."""
        self._waiting += data
        size = 2 * self._packet_samples
        whole = len(self._waiting) // size * size
        out = bytearray()
        for at in range(0, whole, size):
            packet = self._encoder.encode(bytes(self._waiting[at : at + size]), size // 2)
            out += self._writer.packet(packet, self._packet_samples * self._clock)
            self._packets += 1
        del self._waiting[:whole]
        return bytes(out)


def _opuslib() -> Any:
    try:
        import opuslib  # pyright: ignore[reportMissingTypeStubs]
    except Exception as error:  # opuslib raises a bare one where the C library is missing
        raise FormatUnavailable(
            "opus needs the C library libopus: install the package libopus0 (Debian, Ubuntu),"
            " or ask for wav or pcm"
        ) from error
    return cast(Any, opuslib)

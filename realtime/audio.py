"""From the model's samples to the bytes of one audio stream: pcm, wav or Ogg Opus at any rate.

Owns the formats, and the resampling and volume before them. Knows nothing of sessions, messages or
sockets. An encoder belongs to one turn and is used by one thread at a time; libopus is loaded when
the first Opus stream starts, so that all else works without it.
"""

from __future__ import annotations

import secrets
import struct
from typing import Any, Final, Protocol, cast

import numpy as np
import numpy.typing as npt
import soxr  # pyright: ignore[reportMissingTypeStubs]

from shoal.proto.request import OPUS_BITRATES, OPUS_KBPS, RATES

from .ogg import OggOpusWriter

_OPUS_RATES: Final = (8_000, 12_000, 16_000, 24_000, 48_000)
_OPUS_CLOCK: Final = 48_000
_OPUS_PACKETS_A_SECOND: Final = 50
# Half the time of the default for speech that sounds the same: 0.2 ms of a core per 20 ms.
_OPUS_COMPLEXITY: Final = 5
# What the hosted service writes where a stream's length is not known yet.
_WAV_UNKNOWN_BYTES: Final = 0xFFFFFF00


class FormatUnavailable(Exception):
    """This machine or version cannot encode the format; the message says what would help."""


class AudioEncoder(Protocol):
    """One stream of one format."""

    content_type: str
    sample_rate: int
    """The rate that a player will see."""

    def encode(self, pcm: bytes) -> bytes:
        """Mono s16le at the model's rate in, whole samples; what is ready of the stream out,
        maybe nothing. Raises ValueError for half a sample."""
        ...

    def finish(self) -> bytes:
        """The rest of the stream. Called once, last."""
        ...


def make_encoder(
    audio_format: str,
    model_rate: int,
    sample_rate: int,
    *,
    opus_bitrate: float = -1000,
    volume_db: float = 0.0,
) -> AudioEncoder:
    """An encoder for ``pcm``, ``wav`` or ``opus``.

    ``opus_bitrate``: bits or kilobits a second, -1000 for automatic. ``volume_db``: gain.

    Raises ValueError for what the protocol does not know, FormatUnavailable for what it does but
    this machine cannot make.
    """
    check_format(audio_format, sample_rate)
    match audio_format:
        case "pcm":
            return PcmEncoder(_Samples(model_rate, sample_rate, volume_db), sample_rate)
        case "wav":
            return WavEncoder(_Samples(model_rate, sample_rate, volume_db), sample_rate)
        case "opus":
            rate = model_rate if model_rate in _OPUS_RATES else _OPUS_CLOCK
            samples = _Samples(model_rate, rate, volume_db)
            return OpusEncoder(samples, rate, opus_bits_per_second(opus_bitrate))
        case _:
            raise FormatUnavailable(f"{audio_format} is not available; opus, wav and pcm are")


def check_format(audio_format: str, sample_rate: int) -> None:
    """Raises ValueError, in the protocol's words, unless the format knows the rate."""
    if audio_format not in RATES:
        known = ", ".join(f"`{name}`" for name in RATES)
        raise ValueError(f"format: unknown variant `{audio_format}`, expected one of {known}")
    rates = RATES[audio_format]
    if sample_rate not in rates:
        known = ", ".join(map(str, rates))
        raise ValueError(f"sample_rate must be one of {known} for {audio_format}")


def opus_bits_per_second(bitrate: float) -> int:
    """A bitrate that came in bits or kilobits a second as bits; -1000 stays (automatic).

    Raises ValueError for a rate that is not one of the protocol's.
    """
    if bitrate in OPUS_KBPS:
        return int(bitrate) * 1000
    if bitrate in OPUS_BITRATES:
        return int(bitrate)
    known = ", ".join(map(str, OPUS_BITRATES))
    raise ValueError(f"opus_bitrate must be one of {known}")


class PcmEncoder:
    """Headerless s16le."""

    content_type = "audio/pcm"

    def __init__(self, samples: _Samples, sample_rate: int) -> None:
        self.sample_rate = sample_rate
        self._samples = samples

    def encode(self, pcm: bytes) -> bytes:
        return self._samples.convert(pcm)

    def finish(self) -> bytes:
        return self._samples.rest()


class WavEncoder:
    """A 44-byte header once, of unknown length and never corrected, then s16le."""

    content_type = "audio/wav"

    def __init__(self, samples: _Samples, sample_rate: int) -> None:
        self.sample_rate = sample_rate
        self._samples = samples
        self._header = wav_header(sample_rate)

    def encode(self, pcm: bytes) -> bytes:
        return self._with_header(self._samples.convert(pcm))

    def finish(self) -> bytes:
        return self._with_header(self._samples.rest())

    def _with_header(self, data: bytes) -> bytes:
        header, self._header = self._header, b""
        return header + data


def wav_header(sample_rate: int) -> bytes:
    """The header of mono 16-bit PCM of unknown length."""
    return struct.pack(
        "<4sI8sIHHIIHH4sI",
        b"RIFF",
        _WAV_UNKNOWN_BYTES + 36,
        b"WAVEfmt ",
        16,
        1,
        1,
        sample_rate,
        2 * sample_rate,
        2,
        16,
        b"data",
        _WAV_UNKNOWN_BYTES,
    )


class OpusEncoder:
    """Ogg Opus, 20 ms packets; every call closes the page it wrote to, so nothing waits in it."""

    content_type = "audio/ogg"
    sample_rate = _OPUS_CLOCK

    def __init__(self, samples: _Samples, rate: int, bits_per_second: int) -> None:
        """``rate``: one of those that Opus encodes, and what ``samples`` come out at."""
        opus = _opuslib()
        self._encoder = opus.Encoder(rate, 1, opus.APPLICATION_AUDIO)
        self._encoder.bitrate = bits_per_second
        self._encoder.complexity = _OPUS_COMPLEXITY
        self._encoder.signal = opus.SIGNAL_VOICE
        self._samples = samples
        self._clock = _OPUS_CLOCK // rate
        self._packet_samples = rate // _OPUS_PACKETS_A_SECOND
        self._lookahead = int(self._encoder.lookahead)
        self._writer = OggOpusWriter(
            serial=secrets.randbits(32),
            pre_skip=self._lookahead * self._clock,
            # Some players offer the sound at this rate, and this one was asked for.
            input_rate=_OPUS_CLOCK,
        )
        self._waiting = bytearray()
        self._taken = 0

    def encode(self, pcm: bytes) -> bytes:
        out = bytearray(self._writer.headers())
        out += self._take(self._samples.convert(pcm))
        out += self._writer.flush()
        return bytes(out)

    def finish(self) -> bytes:
        out = bytearray(self._writer.headers())
        out += self._take(self._samples.rest())
        # The decoder is behind by the lookahead, so this much silence pushes the end out of it;
        # it is never nothing, and so the last page always has a packet.
        missing = 2 * self._lookahead + -(len(self._waiting) + 2 * self._lookahead) % (
            2 * self._packet_samples
        )
        real = self._taken
        out += self._take(bytes(missing))
        out += self._writer.finish(real * self._clock)
        return bytes(out)

    def _take(self, data: bytes) -> bytes:
        """Encode the whole packets of what waits and ``data``; the pages that are full."""
        self._waiting += data
        self._taken += len(data) // 2
        size = 2 * self._packet_samples
        whole = len(self._waiting) // size * size
        out = bytearray()
        for at in range(0, whole, size):
            packet = self._encoder.encode(bytes(self._waiting[at : at + size]), size // 2)
            out += self._writer.packet(packet, self._packet_samples * self._clock)
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


class _Samples:
    """Mono s16le from one rate to another, with a gain, as a stream.

    The resampler's variable-rate mode at a constant ratio: its other mode works in blocks, which
    would hold the first sound back by up to 70 ms instead of 5 to 30.
    """

    def __init__(self, rate_in: int, rate_out: int, volume_db: float) -> None:
        self._gain = np.float32(10.0 ** (volume_db / 20.0))
        self._changes = rate_in != rate_out or volume_db != 0.0
        self._resampler = (
            None if rate_in == rate_out else soxr.ResampleStream(rate_in, rate_out, 1, vr=True)
        )

    def convert(self, pcm: bytes) -> bytes:
        if len(pcm) % 2:
            raise ValueError("pcm must be whole 16-bit samples")
        if not pcm or not self._changes:
            return pcm
        return self._through(np.frombuffer(pcm, "<i2").astype(np.float32), last=False)

    def rest(self) -> bytes:
        """What the resampler still holds."""
        return self._through(np.zeros(0, np.float32), last=True) if self._resampler else b""

    def _through(self, samples: npt.NDArray[np.float32], *, last: bool) -> bytes:
        if self._resampler is not None:
            samples = self._resampler.resample_chunk(samples, last=last)
        louder = np.rint(samples * self._gain)
        return np.clip(louder, -32768, 32767).astype("<i2").tobytes()

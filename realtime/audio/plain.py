"""Formats in which every sample is a number of its own: pcm, wav, 32-bit float, mu-law, A-law."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

import numpy as np

from .g711 import alaw, ulaw
from .samples import Samples

# What the hosted service writes where a stream's length is not known yet.
_WAV_UNKNOWN_BYTES: Final = 0xFFFFFF00
_TELEPHONE_RATE: Final = 8000


class PlainEncoder:
    """Samples written one after another, behind a header where there is one."""

    def __init__(
        self,
        samples: Samples,
        content_type: str,
        write: Callable[[bytes], bytes] | None = None,
        header: bytes = b"",
    ) -> None:
        """``write``: s16le to the format's bytes; without it they are the format."""
        self.content_type = content_type
        self.sample_rate = samples.rate
        self._samples = samples
        self._write = write
        self._header = header
        self._written = 0

    @property
    def encoded_s(self) -> float:
        return self._written / self.sample_rate

    def encode(self, pcm: bytes) -> bytes:
        return self._out(self._samples.convert(pcm))

    def finish(self) -> bytes:
        return self._out(self._samples.rest())

    def _out(self, pcm: bytes) -> bytes:
        self._written += len(pcm) // 2
        header, self._header = self._header, b""
        return header + (pcm if self._write is None else self._write(pcm))


def pcm_encoder(samples: Samples) -> PlainEncoder:
    """Headerless s16le."""
    return PlainEncoder(samples, "audio/pcm")


def wav_encoder(samples: Samples) -> PlainEncoder:
    """A 44-byte header once, of unknown length and never corrected, then s16le."""
    return PlainEncoder(samples, "audio/wav", header=wav_header(samples.rate))


def float_encoder(samples: Samples) -> PlainEncoder:
    """Headerless 32-bit floats, little-endian, full scale 1."""
    return PlainEncoder(samples, "application/octet-stream", _floats)


def ulaw_encoder(samples: Samples) -> PlainEncoder:
    """Headerless G.711 mu-law, as telephones in America and Japan have it."""
    plain = samples.rate == _TELEPHONE_RATE
    kind = "audio/basic" if plain else f"audio/PCMU;rate={samples.rate}"
    return PlainEncoder(samples, kind, ulaw)


def alaw_encoder(samples: Samples) -> PlainEncoder:
    """Headerless G.711 A-law, as telephones elsewhere have it."""
    plain = samples.rate == _TELEPHONE_RATE
    kind = "audio/x-alaw-basic" if plain else f"audio/PCMA;rate={samples.rate}"
    return PlainEncoder(samples, kind, alaw)


def _floats(pcm: bytes) -> bytes:
    return (np.frombuffer(pcm, "<i2") / np.float32(32768)).astype("<f4").tobytes()


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

"""FLAC through libsndfile, as a stream: nothing is corrected once it was handed out."""

from __future__ import annotations

import os
from typing import Any, Final, cast

import numpy as np

from .encoder import FormatUnavailable
from .samples import Samples

_BLOCK_SAMPLES: Final = 1152
"""Of libFLAC's fastest level, which is why it is used: others have 93 ms blocks."""


class FlacEncoder:
    """See the module. Its header says that the length is unknown, which players take."""

    content_type = "audio/flac"

    def __init__(self, samples: Samples) -> None:
        soundfile = _soundfile()
        self.sample_rate = samples.rate
        self._samples = samples
        self._bytes = _OnlyForward()
        self._file: Any = soundfile.SoundFile(
            self._bytes,
            "w",
            samplerate=samples.rate,
            channels=1,
            format="FLAC",
            subtype="PCM_16",
            compression_level=0.0,
        )
        self._taken = 0
        self._finished = False

    @property
    def encoded_s(self) -> float:
        if self._finished:
            return self._taken / self.sample_rate
        # A block is closed by the first sample after it.
        return max(0, self._taken - 1) // _BLOCK_SAMPLES * _BLOCK_SAMPLES / self.sample_rate

    def encode(self, pcm: bytes) -> bytes:
        self._write(self._samples.convert(pcm))
        # A header alone would be a first message in which nothing sounds.
        return self._bytes.new() if self.encoded_s else b""

    def finish(self) -> bytes:
        # libsndfile writes no header before there is a sample.
        self._write(self._samples.rest() or (b"" if self._taken else bytes(2)))
        self._file.close()
        self._finished = True
        return self._bytes.new()

    def _write(self, pcm: bytes) -> None:
        if pcm:
            self._taken += len(pcm) // 2
            self._file.write(np.frombuffer(pcm, "<i2"))


class _OnlyForward:
    """A file that keeps what is appended and drops what would change what is already gone."""

    def __init__(self) -> None:
        self._new = bytearray()
        self._end: int = 0
        self._at: int = 0

    def new(self) -> bytes:
        """What was appended since the last time."""
        new = bytes(self._new)
        self._new.clear()
        return new

    def write(self, data: bytes) -> int:
        data = bytes(data)
        if self._at == self._end:
            self._new += data
            self._end += len(data)
        self._at += len(data)
        return len(data)

    def read(self, size: int = -1) -> bytes:
        del size
        return b""

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._end}[whence]
        self._at = start + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def flush(self) -> None:
        pass


def _soundfile() -> Any:
    try:
        import soundfile  # pyright: ignore[reportMissingTypeStubs]
    except (ImportError, OSError) as error:
        raise FormatUnavailable(
            "flac needs the C library libsndfile: install the package libsndfile1, or ask for wav"
        ) from error
    return cast(Any, soundfile)

"""Reference recordings: the bytes of an audio file to samples that the codec can encode.

Owns which files are accepted and why one is refused; the messages are for the person who sent the
file. Knows nothing of the codec but its sample rate. Any thread; no torch. A file is decoded in
blocks and never past the longest duration, so a small file cannot unpack into a large array.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import soundfile  # pyright: ignore[reportMissingTypeStubs]
import soxr  # pyright: ignore[reportMissingTypeStubs]

from .soundcheck import clipped_share, is_above_voices, is_noise, is_tone, sound_s, voice_band

Float32Array = npt.NDArray[np.float32]

_BLOCK_FRAMES = 65536
_MAX_CHANNELS = 8
_MIN_RATE, _MAX_RATE = 4_000, 384_000
_CANCELLED = 0.1
"""Power of a mix in that of the mix of unrelated channels: what has less is in opposite phase."""
_FORMATS = frozenset({"WAV", "WAVEX", "RF64", "FLAC", "OGG", "MP3"})
_SIGNATURES = (b"RIFF", b"RF64", b"fLaC", b"OggS", b"ID3")
_OTHER_KINDS = (
    (4, b"ftypM4A", "an AAC file (m4a)"),
    (4, b"ftypqt", "a video file (mov)"),
    (4, b"ftyp", "a video file (mp4)"),
    (0, b"\x1aE\xdf\xa3", "a webm or mkv file"),
    (0, b"RIFF", "a video file (avi)"),
    (0, b"G@", "a video file (mpeg)"),
    (0, b"FLV", "a video file (flv)"),
    (0, b"\x00\x00\x01\xba", "a video file (mpeg)"),
    (0, b"\xff\xf1", "an AAC file"),
    (0, b"\xff\xf9", "an AAC file"),
    (0, b"FORM", "an AIFF file"),
    (0, b"caff", "a CAF file"),
    (0, b"#!AMR", "an AMR file"),
    (0, b"%PDF", "a PDF file"),
    (0, b"\x89PNG", "a picture"),
    (0, b"\xff\xd8\xff", "a picture"),
)


class AudioFileError(Exception):
    """The recording cannot be used; ``str(error)`` tells its sender why."""


class NotAudio(AudioFileError):
    """Not a file of an accepted kind, or a damaged one."""


class EmptyAudio(AudioFileError):
    """No bytes, or a file without a single sample."""


class AudioTooShort(AudioFileError):
    pass


class AudioTooLong(AudioFileError):
    """Too many seconds or too many bytes."""


class SilentAudio(AudioFileError):
    pass


class NoVoice(AudioFileError):
    """Noise, a tone, or what a limit cut off: nothing that a voice could be learnt from."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a recording may be. ``silence_peak``: no sample above it means silence (1 is full).
    ``clipped``: of its loud samples, what may be cut off at the peak. ``min_sound_s`` and
    ``min_sound_share``: what must not be silence."""

    max_bytes: int = 32 * 1024 * 1024
    min_s: float = 1.0
    max_s: float = 60.0
    silence_peak: float = 1e-3
    clipped: float = 0.4
    min_sound_s: float = 0.5
    min_sound_share: float = 0.1


def read_audio(data: bytes, sample_rate: int, limits: Limits | None = None) -> Float32Array:
    """The recording in ``data`` (wav, mp3, flac, ogg vorbis or opus; any rate; several channels
    are averaged, or where they cancel each other the loudest is taken) as mono float32 [N] at
    ``sample_rate``, no sample beyond -1 .. 1.

    Raises AudioFileError, one subclass for each reason.
    """
    limits = limits or Limits()
    if not data:
        raise EmptyAudio("reference audio is empty")
    if len(data) > limits.max_bytes:
        raise AudioTooLong(
            f"reference audio is {len(data)} bytes, more than {limits.max_bytes} are not accepted"
        )
    if not _may_be_audio(data):
        raise NotAudio(_what_else(data))
    samples, rate = _decoded(data, limits)
    if len(samples) == 0:
        raise EmptyAudio("reference audio holds no sound")
    seconds = len(samples) / rate
    if seconds < limits.min_s:
        raise AudioTooShort(
            f"reference audio is {seconds:.2f} s long, at least {limits.min_s:g} s are needed"
        )
    peak = float(np.abs(samples).max())
    if not np.isfinite(peak):
        raise NotAudio("reference audio holds samples that are not numbers")
    if peak < limits.silence_peak:
        raise SilentAudio("reference audio is silent")
    cut_off = clipped_share(samples)
    if cut_off > limits.clipped:
        raise NoVoice(
            f"reference audio is clipped: {100 * cut_off:.0f} % of its loud samples are cut off; "
            "record it again with less gain"
        )
    band = voice_band(samples, rate)
    if is_above_voices(band, samples, rate):
        raise NoVoice("reference audio holds nothing below 4 kHz, where voices are")
    if is_noise(band):
        raise NoVoice("in reference audio no voice can be made out above the noise")
    if is_tone(band):
        raise NoVoice("reference audio is a steady tone without a voice")
    heard_s = sound_s(samples, rate)
    if heard_s < max(limits.min_sound_s, limits.min_sound_share * seconds):
        raise SilentAudio(
            f"reference audio is almost all silence: of its {seconds:.1f} s only {heard_s:.1f} s "
            "are sound; cut the silence away, or record more speech"
        )
    if peak > 1.0:
        samples = samples / np.float32(peak)
    if rate == sample_rate:
        return samples
    resampled = cast(Float32Array, soxr.resample(samples, rate, sample_rate, "VHQ"))
    # A resampler overshoots a little where the recording is at full scale.
    return np.clip(resampled, -1.0, 1.0)


def _may_be_audio(data: bytes) -> bool:
    if data.startswith(b"RIFF") and data[8:12] == b"AVI ":
        return False
    return data.startswith(_SIGNATURES) or _starts_mp3_frame(data)


def _starts_mp3_frame(data: bytes) -> bool:
    # Layer 0 is reserved: such a header is AAC's.
    return len(data) > 1 and data[0] == 0xFF and data[1] & 0xE0 == 0xE0 and data[1] & 0x06 != 0


def _what_else(data: bytes) -> str:
    """Why bytes of no accepted kind are refused, by name where their kind is known."""
    kind = next((name for at, mark, name in _OTHER_KINDS if data.startswith(mark, at)), None)
    if kind is None:
        return "reference audio is not a wav, mp3, flac or ogg file"
    return f"reference audio is {kind}; send its sound as a wav, mp3, flac or ogg file"


def _decoded(data: bytes, limits: Limits) -> tuple[Float32Array, int]:
    """Mono samples at the file's own rate, and that rate."""
    try:
        # The package has no types; this is the one place that touches it.
        with cast(Any, soundfile).SoundFile(io.BytesIO(data)) as file:
            rate, channels = int(file.samplerate), int(file.channels)
            if file.format not in _FORMATS:
                raise NotAudio("reference audio is not a wav, mp3, flac or ogg file")
            if channels > _MAX_CHANNELS or not _MIN_RATE <= rate <= _MAX_RATE:
                raise NotAudio(
                    f"reference audio has {channels} channels at {rate} Hz; "
                    f"at most {_MAX_CHANNELS} at {_MIN_RATE} to {_MAX_RATE} Hz are accepted"
                )
            most = int(limits.max_s * rate)
            blocks: list[Float32Array] = []
            count = 0
            mixed, apart = 0.0, np.zeros(channels)
            for block in _blocks(file):
                blocks.append(block.mean(axis=1, dtype=np.float32))
                mixed += float(np.square(blocks[-1], dtype=np.float64).sum())
                apart += np.square(block, dtype=np.float64).sum(axis=0)
                count += len(block)
                if count > most:
                    raise AudioTooLong(
                        f"reference audio is longer than {limits.max_s:g} s, which is not accepted"
                    )
            if mixed < _CANCELLED * apart.sum() / channels**2:
                file.seek(0)
                loudest = int(apart.argmax())
                blocks = [np.ascontiguousarray(block[:, loudest]) for block in _blocks(file)]
    # The package reports what it cannot open, read or find a position in by several types.
    except (RuntimeError, ValueError, TypeError, OSError) as error:
        raise NotAudio("reference audio is damaged or of an unknown encoding") from error
    samples = np.concatenate(blocks) if blocks else np.zeros(0, np.float32)
    return samples, rate


def _blocks(file: Any) -> Iterator[Float32Array]:
    """float32 [N, channels], one after another."""
    while True:
        block = cast(Float32Array, file.read(_BLOCK_FRAMES, dtype="float32", always_2d=True))
        if len(block) == 0:
            return
        yield block

"""Which encoder makes which format, and what each can make."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from shoal.proto.request import OPUS_BITRATES, OPUS_KBPS, RATES

from .encoder import AudioEncoder
from .flac import FlacEncoder
from .mp3 import MP3_RATES, Mp3Encoder
from .opus import OpusEncoder, coded_rate
from .plain import alaw_encoder, float_encoder, pcm_encoder, ulaw_encoder, wav_encoder
from .samples import Samples

ENCODER_RATES: Final[Mapping[str, tuple[int, ...]]] = {**RATES, "mp3": MP3_RATES}
"""More than Fish's protocol allows, for dialects that allow more."""


def make_encoder(
    audio_format: str,
    model_rate: int,
    sample_rate: int,
    *,
    opus_bitrate: float = -1000,
    mp3_kbps: int = 128,
    volume_db: float = 0.0,
) -> AudioEncoder:
    """An encoder for any format of the protocol.

    ``opus_bitrate``: bits or kilobits a second, -1000 for automatic. ``volume_db``: gain.

    Raises ValueError for what no encoder knows, FormatUnavailable for what this machine cannot
    make.
    """
    check_format(audio_format, sample_rate)
    if audio_format == "opus":
        samples = Samples(model_rate, coded_rate(model_rate), volume_db)
        return OpusEncoder(samples, opus_bits_per_second(opus_bitrate))
    samples = Samples(model_rate, sample_rate, volume_db)
    match audio_format:
        case "pcm":
            return pcm_encoder(samples)
        case "wav":
            return wav_encoder(samples)
        case "mp3":
            return Mp3Encoder(samples, mp3_kbps)
        case "flac":
            return FlacEncoder(samples)
        case "ulaw":
            return ulaw_encoder(samples)
        case "alaw":
            return alaw_encoder(samples)
        case _:
            assert audio_format == "pcm_f32le", "every format of the table has an encoder"
            return float_encoder(samples)


def check_format(audio_format: str, sample_rate: int) -> None:
    """Raises ValueError, in the protocol's words, unless an encoder knows format and rate."""
    if audio_format not in ENCODER_RATES:
        known = ", ".join(f"`{name}`" for name in ENCODER_RATES)
        raise ValueError(f"format: unknown variant `{audio_format}`, expected one of {known}")
    rates = ENCODER_RATES[audio_format]
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

"""From the model's samples to the bytes of one audio stream, in any format at any rate.

One module a format; ``formats`` chooses. Nothing here knows sessions, messages or sockets.
"""

from __future__ import annotations

from .encoder import AudioEncoder, FormatUnavailable
from .formats import ENCODER_RATES, check_format, make_encoder, opus_bits_per_second

__all__ = (
    "ENCODER_RATES",
    "AudioEncoder",
    "FormatUnavailable",
    "check_format",
    "make_encoder",
    "opus_bits_per_second",
)

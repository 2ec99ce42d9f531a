"""The neural codec: frames of codes to sound and back, for the S2 checkpoint layout.

``load_codec`` reads a checkpoint; ``StreamDecoder`` decodes many streams, exactly and frame by
frame; ``encode_codes`` turns a reference recording into codes.
"""

from __future__ import annotations

from .config import CodecConfig, CodecError
from .load import Codec, load_codec
from .stream import StreamDecoder, decode_codes, encode_codes

__all__ = [
    "Codec",
    "CodecConfig",
    "CodecError",
    "StreamDecoder",
    "decode_codes",
    "encode_codes",
    "load_codec",
]

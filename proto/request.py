"""``start.request`` (and the body of an HTTP request) -> :class:`TtsRequest`.

Lenient where clients differ: numbers come as int or float, nulls mean absent, unknown keys are
ignored, most ranges are clamped. What a client must be told about is a ``BAD_REQUEST``.
"""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Mapping, Sequence
from typing import Final, NoReturn, TypeVar, cast, get_args

from .errors import Code, ProtocolError
from .messages import (
    MAX_ID_CHARS,
    MAX_REFERENCES,
    MAX_TEXT_CHARS,
    AudioFormat,
    LatencyMode,
    Prosody,
    Reference,
    TtsRequest,
)

PCM_RATES: Final = (8000, 12_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000)
RATES: Final[Mapping[str, tuple[int, ...]]] = {
    "pcm": PCM_RATES,
    "wav": PCM_RATES,
    "mp3": (32_000, 44_100),
    "opus": (48_000,),
    "flac": PCM_RATES,
    "ulaw": (8000, 16_000),
    "alaw": (8000, 16_000),
    "pcm_f32le": PCM_RATES,
}
"""The sample rates of each format; where a request names none, it gets :func:`default_rate`."""
FORMAT_ALIASES: Final[Mapping[str, AudioFormat]] = {
    "mulaw": "ulaw",
    "mu-law": "ulaw",
    "pcm_mulaw": "ulaw",
    "pcmu": "ulaw",
    "g711_ulaw": "ulaw",
    "a-law": "alaw",
    "pcm_alaw": "alaw",
    "pcma": "alaw",
    "g711_alaw": "alaw",
    "pcm_s16le": "pcm",
    "linear16": "pcm",
}
"""Other names that clients have for the same bytes."""
MP3_BITRATES: Final = (64, 128, 192)
OPUS_BITRATES: Final = (-1000, 24_000, 32_000, 48_000, 64_000)
OPUS_KBPS: Final = (24, 32, 48, 64)
PIECE_CHARS: Final = 256 << 10
"""Of base64 that is decoded at a time: no other thread of the process runs meanwhile."""

_SPEAKER = re.compile(r"<\|speaker:(\d{1,3})\|>")
_Choice = TypeVar("_Choice", bound=str)


def default_rate(audio_format: AudioFormat) -> int:
    """The rate of a format where a request names none."""
    match audio_format:
        case "opus":
            return 48_000
        case "ulaw" | "alaw":
            return 8000
        case _:
            return 44_100


def format_of(name: str) -> AudioFormat | None:
    """The format that goes by this name, which may be an alias."""
    for known in get_args(AudioFormat):
        if name == known:
            return known
    return FORMAT_ALIASES.get(name)


def is_voice_id(text: str) -> bool:
    """Whether a voice could have this id: it may become a file's name, and no path."""
    plain = text.isprintable() and not set(text) & set("/\\") and not text.startswith(".")
    return plain and 0 < len(text) <= MAX_ID_CHARS


def parse_request(fields: Mapping[str, object]) -> TtsRequest:
    """Check and complete the fields of a request.

    :raises ProtocolError: ``BAD_REQUEST``, or ``TOO_BIG`` for text over the limit.
    """
    audio_format = _format(fields)
    text = _text(fields, "text")
    reference_id, references, speakers = _voices(fields)
    named = max((int(number) for number in _SPEAKER.findall(text)), default=0)
    if speakers and named >= len(speakers):
        _bad(f"text: <|speaker:{named}|> has no voice, there are {len(speakers)}, counted from 0")
    return TtsRequest(
        text=text,
        format=audio_format,
        sample_rate=_one_of(
            fields, "sample_rate", RATES[audio_format], default_rate(audio_format), audio_format
        ),
        mp3_bitrate_kbps=_one_of(fields, "mp3_bitrate", MP3_BITRATES, 128)
        if audio_format == "mp3"
        else 128,
        opus_bitrate_bps=_opus_bitrate(fields) if audio_format == "opus" else -1000,
        chunk_length=_clamped_int(fields, "chunk_length", 100, 1000, 300),
        min_chunk_length=_clamped_int(fields, "min_chunk_length", 0, 100, 50),
        latency=_choice(fields, "latency", get_args(LatencyMode), "normal"),
        normalize=_flag(fields, "normalize", True),
        prosody=_prosody(fields),
        reference_id=reference_id,
        references=references,
        speakers=speakers,
        temperature=_clamped(fields, "temperature", 0.0, 1.0),
        top_p=_clamped(fields, "top_p", 0.01, 1.0),
        repetition_penalty=_clamped(fields, "repetition_penalty", 0.9, 2.0),
        max_new_tokens=_max_new_tokens(fields),
        condition_on_previous_chunks=_flag(fields, "condition_on_previous_chunks", True),
        seed=_seed(fields),
        # Ours alone: what others may mean by it is nothing to us.
        priority="batch" if fields.get("priority") == "batch" else "live",
    )


def _bad(message: str) -> NoReturn:
    raise ProtocolError(Code.BAD_REQUEST, message)


def _number(fields: Mapping[str, object], key: str) -> float | int | None:
    value = fields.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        _bad(f"{key} must be a number")
    return None if isinstance(value, float) and math.isnan(value) else value


def _clamped(fields: Mapping[str, object], key: str, low: float, high: float) -> float | None:
    value = _number(fields, key)
    return None if value is None else float(min(max(value, low), high))


def _clamped_int(fields: Mapping[str, object], key: str, low: int, high: int, default: int) -> int:
    value = _number(fields, key)
    return default if value is None else int(min(max(value, low), high))


def _one_of(
    fields: Mapping[str, object],
    key: str,
    allowed: Sequence[int],
    default: int,
    audio_format: str = "",
) -> int:
    value = _number(fields, key)
    if value is None:
        return default
    if value not in allowed:
        choices = ", ".join(map(str, allowed))
        where = f" for {audio_format}" if audio_format else ""
        _bad(f"{key} must be one of {choices}{where}")
    return int(value)


def _format(fields: Mapping[str, object]) -> AudioFormat:
    name = fields.get("format")
    if isinstance(name, str) and name in FORMAT_ALIASES:
        return FORMAT_ALIASES[name]
    return _choice(fields, "format", get_args(AudioFormat), "mp3")


def _choice(
    fields: Mapping[str, object], key: str, variants: Sequence[_Choice], default: _Choice
) -> _Choice:
    value = fields.get(key)
    if value is None:
        return default
    if not isinstance(value, str):
        _bad(f"{key} must be a string")
    for variant in variants:
        if value == variant:
            return variant
    expected = ", ".join(f"`{variant}`" for variant in variants)
    _bad(f"{key}: unknown variant, expected one of {expected}")


def _flag(fields: Mapping[str, object], key: str, default: bool) -> bool:
    value = fields.get(key)
    if value is None:
        return default
    if isinstance(value, (bool, int, float)):
        return bool(value)
    _bad(f"{key} must be true or false")


def _text(fields: Mapping[str, object], key: str) -> str:
    value = fields.get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        _bad(f"{key} must be a string")
    if len(value) > MAX_TEXT_CHARS:
        raise ProtocolError(Code.TOO_BIG, f"{key} is longer than {MAX_TEXT_CHARS} characters")
    return value


def _opus_bitrate(fields: Mapping[str, object]) -> int:
    value = _number(fields, "opus_bitrate")
    if value in OPUS_KBPS:
        return int(cast(float, value)) * 1000
    return _one_of(fields, "opus_bitrate", OPUS_BITRATES, -1000)


def _max_new_tokens(fields: Mapping[str, object]) -> int | None:
    limit = _clamped_int(fields, "max_new_tokens", 0, 1 << 20, 0)
    return limit or None


def _seed(fields: Mapping[str, object]) -> int | None:
    value = _number(fields, "seed")
    if value is None or value in (math.inf, -math.inf):
        return None
    return int(value) & ((1 << 63) - 1)


def _prosody(fields: Mapping[str, object]) -> Prosody:
    value = fields.get("prosody")
    if value is None:
        return Prosody()
    if not isinstance(value, Mapping):
        _bad("prosody must be a map")
    inner = cast("Mapping[str, object]", value)
    speed = _number(inner, "speed")
    if speed is not None and not 0.5 <= speed <= 2.0:
        _bad("speed must be in 0.5..2.0")
    volume_db = _clamped(inner, "volume", -20.0, 20.0)
    return Prosody(
        speed=1.0 if speed is None else float(speed),
        volume_db=0.0 if volume_db is None else volume_db,
        normalize_loudness=_flag(inner, "normalize_loudness", True),
    )


def _voices(
    fields: Mapping[str, object],
) -> tuple[str | None, tuple[Reference, ...], tuple[str | tuple[Reference, ...], ...]]:
    """``reference_id``, ``references`` and ``speakers`` of a request."""
    ids = _list(fields.get("reference_id"))
    if ids is not None and len(ids) > 1:
        if len(ids) > MAX_REFERENCES:
            _bad(f"at most {MAX_REFERENCES} voices")
        return None, (), tuple(_voice_id(voice) for voice in ids)
    value = fields.get("reference_id") if ids is None else (ids[0] if ids else None)
    reference_id = None if value is None or value == "" else _voice_id(value)
    recordings = fields.get("references")
    entries = () if recordings is None else _list(recordings)
    if entries is None:
        _bad("references must be a list")
    lists = [_list(entry) for entry in entries]
    nested = [one for one in lists if one is not None]
    if sum(len(one) for one in nested) + lists.count(None) > MAX_REFERENCES:
        _bad(f"at most {MAX_REFERENCES} references")
    if not nested:
        return reference_id, _references(entries, "references"), ()
    if len(nested) < len(lists) or not all(nested):
        _bad("references must be recordings, or one list of recordings for each speaker")
    voices = tuple(_references(one, f"references[{i}]") for i, one in enumerate(nested))
    if reference_id is not None or len(voices) == 1:
        return reference_id, voices[0], ()
    return None, (), voices


def _list(value: object) -> Sequence[object] | None:
    return cast("Sequence[object]", value) if isinstance(value, (list, tuple)) else None


def _voice_id(value: object) -> str:
    if not isinstance(value, str):
        _bad("reference_id must be a string, or a list of strings")
    if not is_voice_id(value):
        _bad("Reference not found")
    return value


def _references(entries: Sequence[object], where: str) -> tuple[Reference, ...]:
    return tuple(_reference(entry, f"{where}[{i}]") for i, entry in enumerate(entries))


def _reference(entry: object, where: str) -> Reference:
    if not isinstance(entry, Mapping):
        _bad(f"{where} must be a map")
    inner = cast("Mapping[str, object]", entry)
    audio = inner.get("audio")
    if isinstance(audio, str):
        try:
            audio = _from_base64(audio)
        except ValueError:
            _bad(f"{where}.audio is neither bytes nor base64")
    if not isinstance(audio, bytes) or not audio:
        _bad(f"{where}.audio must be the bytes of an audio file")
    return Reference(audio, _text(inner, "text"))


def _from_base64(text: str) -> bytes:
    """:raises ValueError: it is none."""
    last = (len(text.rstrip("=")) - 1) // PIECE_CHARS * PIECE_CHARS
    pieces: list[bytes] = []
    for begin in range(0, last, PIECE_CHARS):
        piece = text[begin : begin + PIECE_CHARS]
        if "=" in piece:
            raise ValueError("padding before the end")
        pieces.append(base64.b64decode(piece, validate=True))
    pieces.append(base64.b64decode(text[max(last, 0) :], validate=True))
    return b"".join(pieces)

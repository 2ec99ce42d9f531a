"""What a checkpoint folder says besides weights: its JSON files and the voice's defaults.

Owns :class:`CheckpointError`, the one error every loader of this layer raises, and
``voice_config.json``, a small file of ours that may lie beside ``config.json``. Knows nothing of
tensors; importing it loads no torch. Called at start, before any thread.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

VOICE_CONFIG = "voice_config.json"
FRONTENDS = ("none", "english")


class CheckpointError(Exception):
    """A checkpoint that cannot be used as it is; the message names the file and the key."""


@dataclass(frozen=True, slots=True)
class VoiceConfig:
    """How a checkpoint wants to be used when nobody says otherwise."""

    frontend: str
    """``none``: the model reads any text. ``english``: text is normalised for English first."""
    temperature: float
    top_p: float
    top_k: int
    max_segment_chars: int | None
    """Longest text the model speaks well in one segment; ``None``: no limit of its own."""
    max_context: int
    """Positions up to which the model speaks well, at most ``max_seq_len``."""


def read_json(path: Path) -> Mapping[str, object]:
    """The object in ``path``. Raises :class:`CheckpointError` when there is none."""
    try:
        loaded: object = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{path}: no such file") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read as JSON ({error})") from error
    if not isinstance(loaded, dict):
        raise CheckpointError(f"{path}: holds no JSON object")
    return cast("dict[str, object]", loaded)


def int_of(source: Mapping[str, object], key: str, default: int | None, where: str) -> int:
    """``source[key]`` as an int. Absent or null: ``default``, or an error without one."""
    value = source.get(key)
    if value is None and default is not None:
        return default
    if isinstance(value, bool) or not isinstance(value, int):
        raise CheckpointError(f"{where}: {key} must be an integer, is {value!r}")
    return value


def float_of(source: Mapping[str, object], key: str, default: float | None, where: str) -> float:
    """As :func:`int_of`, for numbers."""
    value = source.get(key)
    if value is None and default is not None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise CheckpointError(f"{where}: {key} must be a number, is {value!r}")
    return float(value)


def bool_of(source: Mapping[str, object], key: str, default: bool, where: str) -> bool:
    """As :func:`int_of`, for flags."""
    value = source.get(key)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise CheckpointError(f"{where}: {key} must be true or false, is {value!r}")
    return value


def section_of(source: Mapping[str, object], key: str, where: str) -> Mapping[str, object]:
    """The object ``source[key]``."""
    value = source.get(key)
    if not isinstance(value, dict):
        raise CheckpointError(f"{where}: {key} must be an object, is {type(value).__name__}")
    return cast("dict[str, object]", value)


def read_voice_config(directory: Path, *, max_seq_len: int) -> VoiceConfig:
    """``voice_config.json`` of ``directory``, or what suits S2 when there is none.

    Raises :class:`CheckpointError` for unknown keys and values out of range.
    """
    path = directory / VOICE_CONFIG
    raw: Mapping[str, object] = read_json(path) if path.exists() else {}
    _only(raw, {"frontend", "sampling", "max_segment_chars", "max_context"}, str(path))
    sampling: Mapping[str, object] = {}
    if "sampling" in raw:
        sampling = section_of(raw, "sampling", str(path))
    _only(sampling, {"temperature", "top_p", "top_k"}, f"{path}: sampling")

    frontend = raw.get("frontend") or "none"
    if not isinstance(frontend, str) or frontend not in FRONTENDS:
        raise CheckpointError(f"{path}: frontend must be one of {FRONTENDS}, is {frontend!r}")
    max_chars = raw.get("max_segment_chars")
    config = VoiceConfig(
        frontend=frontend,
        temperature=float_of(sampling, "temperature", 0.7, str(path)),
        top_p=float_of(sampling, "top_p", 0.7, str(path)),
        top_k=int_of(sampling, "top_k", 30, str(path)),
        max_segment_chars=(
            None if max_chars is None else int_of(raw, "max_segment_chars", None, str(path))
        ),
        max_context=int_of(raw, "max_context", max_seq_len, str(path)),
    )
    if not 0.0 <= config.temperature <= 2.0:
        raise CheckpointError(f"{path}: temperature must be in 0..2, is {config.temperature}")
    if not 0.0 < config.top_p <= 1.0:
        raise CheckpointError(f"{path}: top_p must be in (0, 1], is {config.top_p}")
    if config.top_k < 1:
        raise CheckpointError(f"{path}: top_k must be at least 1, is {config.top_k}")
    if config.max_segment_chars is not None and config.max_segment_chars < 1:
        raise CheckpointError(f"{path}: max_segment_chars must be at least 1")
    if not 1 <= config.max_context <= max_seq_len:
        raise CheckpointError(
            f"{path}: max_context must be in 1..{max_seq_len} (max_seq_len), "
            f"is {config.max_context}"
        )
    return config


def _only(source: Mapping[str, object], known: set[str], where: str) -> None:
    unknown = sorted(set(source) - known)
    if unknown:
        raise CheckpointError(f"{where}: unknown key {unknown[0]!r}")

"""The engine in a command's own process: which one its flags and the environment ask for.

The one module above the engine that names what brings torch in, and only inside a function.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from shoal.engine.api import Engine, Progress
from shoal.engine.checkpoint import CheckpointError
from shoal.engine.config import BUILTIN_VOICE, EngineConfig, Limits

from .complaints import CommandError, UsageError
from .config import ConfigError, byte_setting, setting


def refuse_engine_flags(flags: argparse.Namespace) -> None:
    """Without ``--local``, what a server has of its own.

    :raises UsageError: such a flag was given.
    """
    if not flags.local and (flags.model or flags.device or flags.dtype or flags.kv_dtype):
        raise UsageError(
            "--model, --device, --dtype and --kv-dtype need --local: a server has its own"
        )


def engine_config(flags: argparse.Namespace) -> EngineConfig:
    """Flags win over the environment, which wins over what is usual.

    :raises CommandError: a setting in the environment has no usable value.
    """
    model, slots = flags.model or setting("model"), getattr(flags, "slots", None)
    chosen = setting("slots")
    if slots is None and chosen is not None:
        if not chosen.isdigit() or int(chosen) < 1:
            raise CommandError("SHOAL_SLOTS has no usable value")
        slots = int(chosen)
    warm, cold = _bytes("warm_voice_bytes"), _bytes("cold_voice_bytes")
    usual = EngineConfig()
    return EngineConfig(
        model=BUILTIN_VOICE if model is None else Path(model),
        device=flags.device or setting("device") or "auto",
        dtype=flags.dtype or setting("dtype") or "auto",
        kv_dtype=flags.kv_dtype or setting("kv_dtype") or "auto",
        slots=slots,
        voices_dir=voices_dir(),
        warm_voice_bytes=usual.warm_voice_bytes if warm is None else warm,
        cold_voice_bytes=usual.cold_voice_bytes if cold is None else cold,
        limits=_limits(),
    )


def voices_dir() -> Path:
    """Where voices are kept."""
    chosen = setting("voices")
    return Path(chosen) if chosen else Path.home() / ".local" / "share" / "shoal" / "voices"


def load_engine(flags: argparse.Namespace, report: Progress) -> Engine:
    """The engine that ``flags`` ask for, its model loaded.

    :raises CommandError: it cannot be.
    """
    from shoal.engine.service import SpeechEngine  # brings torch in

    config = engine_config(flags)
    try:
        return SpeechEngine(config, report)
    except CheckpointError as error:
        raise CommandError(str(error)) from error


def prepare_voice(flags: argparse.Namespace, name: str, report: Progress) -> None:
    """Make the codes of a stored voice now, with the model that ``flags`` ask for.

    :raises CheckpointError: the model cannot be loaded.
    :raises VoiceError: the voice cannot be read.
    """
    from shoal.engine import service  # brings torch in

    service.prepare_voice(engine_config(flags), name, report)


def _limits() -> Limits:
    usual = Limits(prefix_bytes=_bytes("hot_voice_bytes"))
    chosen = setting("batch_streams")
    if chosen is None:
        return usual
    if not chosen.isdigit():
        raise CommandError("SHOAL_BATCH_STREAMS has no usable value")
    return replace(usual, batch_streams=int(chosen))


def _bytes(name: str) -> int | None:
    try:
        return byte_setting(name)
    except ConfigError as error:
        raise CommandError(str(error)) from error

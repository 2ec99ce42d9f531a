"""The dialects that can be measured, and the way to bring one's own. See :mod:`.target`."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from typing import cast

from .deepgram import Deepgram
from .elevenlabs import ElevenLabs
from .fish import Fish, Shoal
from .openai_speech import OpenAiSpeech
from .target import Target

TARGETS: dict[str, type[Target]] = {
    "shoal": Shoal,
    "fish": Fish,
    "openai": OpenAiSpeech,
    "elevenlabs": ElevenLabs,
    "deepgram": Deepgram,
}


class UnknownTarget(Exception):
    """There is no such target; the message says what there is."""


def find_target(name: str) -> type[Target]:
    """One of :data:`TARGETS`, or ``package.module:Class``, or ``path/to/file.py:Class``."""
    if name in TARGETS:
        return TARGETS[name]
    module_name, _, class_name = name.rpartition(":")
    if not module_name:
        raise UnknownTarget(f"no target {name!r}: {', '.join(TARGETS)}, or file.py:Class")
    try:
        if module_name.endswith(".py"):
            spec = importlib.util.spec_from_file_location(
                Path(module_name).stem, Path(module_name).resolve()
            )
            if spec is None or spec.loader is None:
                raise ImportError(module_name)
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
        else:
            module = importlib.import_module(module_name)
        return cast("type[Target]", getattr(module, class_name))
    except (ImportError, AttributeError, OSError) as missing:
        raise UnknownTarget(f"cannot load target {name!r}: {missing}") from missing

"""The dialects that can be measured, and the way to bring one's own. See :mod:`.target`."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import cast

from .deepgram import Deepgram
from .elevenlabs import ElevenLabs
from .fish import Fish, Shoal
from .openai_speech import OpenAiSpeech
from .target import Target, TargetOptions

TARGETS: dict[str, type[Target]] = {
    "shoal": Shoal,
    "fish": Fish,
    "openai": OpenAiSpeech,
    "elevenlabs": ElevenLabs,
    "deepgram": Deepgram,
}


class UnknownTarget(Exception):
    """There is no such target, or it will not be made; the message is one line and says why."""


def find_target(name: str) -> type[Target]:
    """One of :data:`TARGETS`, or ``package.module:Class``, or ``path/to/file.py:Class``."""
    if name in TARGETS:
        return TARGETS[name]
    module_name, _, class_name = name.rpartition(":")
    if not module_name:
        raise UnknownTarget(f"no target {name!r}: {', '.join(TARGETS)}, or file.py:Class")
    try:
        if module_name.endswith(".py"):
            module = _run(Path(module_name).resolve())
        else:
            module = importlib.import_module(module_name)
        found = getattr(module, class_name)
    # A file of the user's own is run here: whatever is wrong with it is for its author to read.
    except (Exception, SystemExit) as problem:
        raise UnknownTarget(f"cannot load target {name!r}: {_told(problem)}") from problem
    if not (isinstance(found, type) and _has_what_it_needs(found)):
        raise UnknownTarget(
            f"cannot load target {name!r}: {class_name} is no target class; "
            "it needs voice_at_connect, settings and connect"
        )
    return cast("type[Target]", found)


def new_target(name: str, options: TargetOptions) -> Target:
    """One of what :func:`find_target` finds.

    :raises UnknownTarget: also where its own code refuses ``options``, or fails.
    """
    kind = find_target(name)
    try:
        return kind(options)
    # Here, too, it may be code of the user's own.
    except Exception as problem:
        if name in TARGETS and isinstance(problem, ValueError):
            raise UnknownTarget(str(problem)) from problem
        raise UnknownTarget(f"cannot make target {name!r}: {_told(problem)}") from problem


def _run(path: Path) -> ModuleType:
    """The module that is in a file."""
    # By its whole path it is in nobody's way among the modules, where dataclasses look for it.
    name = str(path)
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(name)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _has_what_it_needs(kind: type) -> bool:
    known = isinstance(getattr(kind, "settings", None), Mapping)
    return known and all(hasattr(kind, name) for name in ("voice_at_connect", "connect"))


def _told(problem: BaseException) -> str:
    match problem:
        case SyntaxError(lineno=int(line)):
            told = f"line {line}: {problem.msg}"
        case ImportError() | AttributeError() | OSError() if str(problem):
            told = str(problem)
        case _:
            told = f"{type(problem).__name__}: {problem}"
    return " ".join(told.split()).removesuffix(":")

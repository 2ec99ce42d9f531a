"""Looks at the machine and says what is missing, one line each with the fix.

Changes nothing. torch is imported by the check that is about it and by no other.
"""

from __future__ import annotations

import ctypes.util
import importlib
import json
import platform
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from . import playback
from .installing import pip_install

MINIMUM_PYTHON = (3, 11)


@dataclass(frozen=True, slots=True)
class Finding:
    """One line. ``fix`` is empty when nothing is wrong; ``required``: cannot serve without it."""

    what: str
    detail: str
    fix: str = ""
    required: bool = True

    @property
    def ok(self) -> bool:
        return not self.fix

    def line(self) -> str:
        mark = "ok     " if self.ok else "MISSING" if self.required else "note   "
        return f"{mark} {self.what}: {self.detail}" + (f" -> {self.fix}" if self.fix else "")


def findings(model: Path | None, builtin: Path) -> Iterator[Finding]:
    """Everything worth knowing before ``shoal serve``, cheapest first."""
    yield python()
    yield from packages(metadata.requires("shoal") or ())
    yield torch_and_cuda()
    yield libopus()
    yield model_files(model, builtin)
    yield sound()


def python() -> Finding:
    detail = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    if sys.version_info < MINIMUM_PYTHON:
        return Finding("python", detail, "use Python 3.11 or newer: PY=python3.11 make serve")
    return Finding("python", detail)


def packages(requirements: Iterable[str]) -> Iterator[Finding]:
    """One finding for all of our metadata's ``requirements`` that are there, one for each that is
    not."""
    present: list[str] = []
    for requirement in requirements:
        name, _, marker = requirement.partition(";")
        if "extra ==" in marker or not _applies(marker):
            continue
        name = re.split(r"[^A-Za-z0-9._-]", name.strip(), maxsplit=1)[0]
        try:
            present.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            yield Finding(
                f"package {name}", "not installed", pip_install(requirement.partition(";")[0])
            )
    yield Finding("packages", f"shoal {metadata.version('shoal')}, " + ", ".join(present))


def _applies(marker: str) -> bool:
    """Whether one of the markers that our own metadata uses holds here."""
    match = re.fullmatch(
        r"\s*(?:platform_system|sys_platform)\s*(==|!=)\s*[\"'](\w+)[\"']\s*", marker
    )
    if match is None:
        return True
    same = match[2].lower() in (platform.system().lower(), sys.platform)
    return same == (match[1] == "==")


def torch_and_cuda() -> Finding:
    try:
        torch = importlib.import_module("torch")
    except ImportError as error:
        return Finding("torch", str(error), pip_install("torch"))
    if torch.cuda.is_available():
        device = torch.cuda.get_device_properties(0)
        gib = device.total_memory / 2**30
        detail = (
            f"{torch.cuda.device_count()} x {device.name}, {gib:.0f} GiB, CUDA {torch.version.cuda}"
        )
        return Finding("gpu", detail)
    if torch.version.cuda is None:
        why, fix = "this torch has no CUDA", "on a GPU machine install PyPI's own torch build"
    else:
        why, fix = "no CUDA device", "check that nvidia-smi lists a GPU"
    return Finding(
        "gpu", f"none ({why}); the built-in voice runs on the CPU", f"for S2 models {fix}", False
    )


def libopus() -> Finding:
    found = ctypes.util.find_library("opus")
    if found is None:
        fix = "sudo apt-get install libopus0"
        return Finding("libopus", "not found; opus audio is refused, pcm and wav work", fix, False)
    return Finding("libopus", found)


def model_files(model: Path | None, builtin: Path) -> Finding:
    """Whether the checkpoint's files are all there; their contents are the loader's business."""
    folder = model or builtin
    what = "model" if model else "built-in voice"
    fix = (
        "give --model a checkpoint folder" if model else "reinstall shoal: its package data is gone"
    )
    if not folder.is_dir():
        return Finding(what, f"{folder} is not a folder", fix)
    absent = [name for name in expected_files(folder) if not (folder / name).is_file()]
    if absent:
        return Finding(what, f"{folder} lacks {', '.join(absent)}", fix)
    size_mb = sum(f.stat().st_size for f in folder.iterdir() if f.is_file()) / 1e6
    return Finding(what, f"{folder}, {size_mb:.0f} MB")


def expected_files(folder: Path) -> list[str]:
    """The file names that a checkpoint of either layout must have."""
    if (folder / "model.pth").is_file():
        return ["config.json", "codec.pth"]
    names = ["config.json", "codec.pth", "tokenizer.json"]
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        return [*names, "model.safetensors"]
    try:
        shards = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    except (ValueError, KeyError, TypeError, AttributeError):
        return [*names, f"a readable {index.name}"]
    return [*names, *sorted(shards)]


def sound() -> Finding:
    output = playback.sound_output()
    if output is None:
        fix = "sudo apt-get install alsa-utils, or use -o FILE"
        return Finding("sound", "no way to play; shoal say needs -o", fix, False)
    return Finding("sound", f"through {output}")

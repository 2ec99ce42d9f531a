"""States on disk: what a run leaves for the next one, as one file or in pieces.

A state is whatever ``torch.save`` takes. Pieces exist because the machine that trains may hand
back files of a limited size; the index is written last, so a state is whole or absent. A compact
state keeps the weights in half precision and drops what the optimiser knew: it costs the next run
a few hundred steps and saves nine tenths of the bytes.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

PIECE_BYTES = 15 << 20


class StateError(Exception):
    """A state that is not whole, or that belongs to something else."""


def save_state(folder: Path, name: str, state: Any, piece_bytes: int = PIECE_BYTES) -> list[Path]:
    """Writes ``name.json`` and ``name.00``, ``name.01`` ... of at most ``piece_bytes``."""
    folder.mkdir(parents=True, exist_ok=True)
    buffer = io.BytesIO()
    torch.save(state, buffer)
    blob = buffer.getvalue()
    index = folder / f"{name}.json"
    index.unlink(missing_ok=True)
    for old in pieces_of(folder, name):
        old.unlink()
    paths: list[Path] = []
    for number, begin in enumerate(range(0, len(blob), piece_bytes)):
        path = folder / f"{name}.{number:02d}"
        path.write_bytes(blob[begin : begin + piece_bytes])
        paths.append(path)
    described = {"pieces": len(paths), "sha256": hashlib.sha256(blob).hexdigest()}
    temporary = folder / f"{name}.json.new"
    temporary.write_text(json.dumps(described))
    os.replace(temporary, index)
    return [index, *paths]


def pieces_of(folder: Path, name: str) -> list[Path]:
    return sorted(folder.glob(f"{name}.[0-9][0-9]"))


def has_state(folder: Path, name: str) -> bool:
    return (folder / f"{name}.json").is_file()


def load_state(folder: Path, name: str, device: torch.device | str = "cpu") -> Any:
    """What :func:`save_state` wrote. Raises :class:`StateError` when it is not whole."""
    index = folder / f"{name}.json"
    if not index.is_file():
        raise StateError(f"{index} is missing")
    described = json.loads(index.read_text())
    pieces = pieces_of(folder, name)
    if len(pieces) != described["pieces"]:
        raise StateError(f"{index} names {described['pieces']} pieces, there are {len(pieces)}")
    blob = b"".join(piece.read_bytes() for piece in pieces)
    if hashlib.sha256(blob).hexdigest() != described["sha256"]:
        raise StateError(f"{index}: the pieces are not those that were written")
    return torch.load(io.BytesIO(blob), map_location=device, weights_only=True)


def first_state(
    folders: Iterable[Path | None], name: str, device: torch.device | str = "cpu"
) -> tuple[Path, Any] | None:
    """The first of ``folders`` that holds such a state, and the state; ``None`` where none does."""
    for folder in folders:
        if folder is not None and has_state(folder, name):
            return folder, load_state(folder, name, device)
    return None


def halved(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Floating-point tensors in float16, on the CPU; others as they are."""
    return {
        key: (value.half() if value.is_floating_point() else value).detach().cpu()
        for key, value in tensors.items()
    }


class Averaged:
    """A running average of a module's parameters and buffers, on the module's device."""

    def __init__(self, module: torch.nn.Module, decay: float) -> None:
        self._module, self._decay = module, decay
        self.tensors = {key: value.detach().clone() for key, value in module.state_dict().items()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """After optimiser step ``step`` (from 1). Young averages forget faster."""
        decay = min(self._decay, (1 + step) / (10 + step))
        now = self._module.state_dict()
        keys = [key for key, value in now.items() if value.is_floating_point()]
        torch._foreach_lerp_(
            [self.tensors[key] for key in keys], [now[key] for key in keys], 1.0 - decay
        )

    @torch.no_grad()
    def load(self, tensors: dict[str, torch.Tensor]) -> None:
        for key, value in tensors.items():
            self.tensors[key].copy_(value)

"""Reads ``codec.pth`` strictly and hands its tensors to the layers by name.

Owns the file's quirks (wrapped dictionaries, two spellings of weight norm, stale buffers) and the
rule that every other key must be expected, present and of the right shape. Knows no layer: the
networks ask for what they need, and that asking is itself the list of what a file must hold.
"""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .config import CodecError

# Written by the reference into its checkpoints, recomputed by everyone.
STALE = ("freqs_cis", "causal_mask")
# The two names that torch's weight norm has given to gain and direction over time.
_GAIN, _DIRECTION = "parametrizations.weight.original0", "parametrizations.weight.original1"
_OLD_GAIN, _OLD_DIRECTION = "weight_g", "weight_v"
_SPELLINGS = ((_GAIN, _OLD_GAIN), (_DIRECTION, _OLD_DIRECTION))
_SHOWN_KEYS = 8


class Weights:
    """Tensors by name, as float32 on ``device``.

    Without ``tensors`` it hands out tensors that have only a shape, and ``shapes`` afterwards is
    the list of all names that were asked for.
    """

    def __init__(self, tensors: Mapping[str, Tensor] | None, device: torch.device) -> None:
        self._tensors = tensors
        self._device = device if tensors is not None else torch.device("meta")
        self.shapes: dict[str, tuple[int, ...]] = {}

    def take(self, name: str, *shape: int) -> Tensor:
        """The tensor ``name``, which has ``shape``; a copy that shares nothing with the file."""
        self.shapes[name] = shape
        if self._tensors is None:
            return torch.empty(shape, device=self._device)
        return self._tensors[name].to(self._device, torch.float32, copy=True)

    def conv(self, at: str, *shape: int, bias: int | None = None) -> tuple[Tensor, Tensor]:
        """A plain convolution at ``at``: weight of ``shape``, bias [``bias`` or shape[0]]."""
        weight = self.take(f"{at}.weight", *shape)
        return weight, self.take(f"{at}.bias", bias or shape[0])

    def normed(
        self, at: str, *shape: int, bias: int | None = None, old: bool = False
    ) -> tuple[Tensor, Tensor]:
        """A weight-normed convolution, folded: ``g v / |v|``, the norm over all axes but the first.

        For a transposed convolution the first axis is the input. ``old``: which spelling the
        public file uses here; either is accepted.
        """
        gain_name, direction_name = (_OLD_GAIN, _OLD_DIRECTION) if old else (_GAIN, _DIRECTION)
        offset = self.take(f"{at}.bias", bias or shape[0])
        gain = self.take(f"{at}.{gain_name}", shape[0], 1, 1)
        direction = self.take(f"{at}.{direction_name}", *shape)
        length = torch.linalg.vector_norm(direction, dim=(1, 2), keepdim=True)
        return direction * (gain / length), offset

    def linear(self, at: str, outputs: int, inputs: int) -> tuple[Tensor, Tensor]:
        """A linear layer with bias."""
        return self.take(f"{at}.weight", outputs, inputs), self.take(f"{at}.bias", outputs)

    def affine(self, at: str, width: int) -> tuple[Tensor, Tensor]:
        """Weight and bias of a LayerNorm."""
        return self.take(f"{at}.weight", width), self.take(f"{at}.bias", width)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a ``codec.pth``, unwrapped, without stale buffers; not yet checked.

    Raises CodecError when the file is missing, damaged, or holds something else.
    """
    if not path.is_file():
        raise CodecError(f"{path} is missing")
    try:
        # Mapped, so that the stale buffers (0.3 GB in the public file) are never read.
        loaded: Any = torch.load(
            path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path)
        )
    except (OSError, RuntimeError, EOFError, ValueError, KeyError, pickle.UnpicklingError) as e:
        raise CodecError(f"{path} cannot be read: {e}") from e
    if isinstance(loaded, dict) and "state_dict" in loaded:
        loaded = loaded["state_dict"]
    if not isinstance(loaded, dict):
        raise CodecError(f"{path} does not hold a dictionary of tensors")
    if any("generator." in str(key) for key in loaded):
        loaded = {
            str(key).replace("generator.", ""): value
            for key, value in loaded.items()
            if "generator." in str(key)
        }
    tensors: dict[str, Tensor] = {}
    for key, value in loaded.items():
        if str(key).rpartition(".")[2] in STALE:
            continue
        if not isinstance(key, str) or not isinstance(value, Tensor):
            raise CodecError(f"{path}: {key} is not a tensor")
        tensors[key] = value
    return tensors


def checked(
    tensors: Mapping[str, Tensor], shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, Tensor]:
    """``tensors`` renamed to the names of ``shapes``; exactly those, each of its shape.

    Raises CodecError that names every key that is missing, not expected, or of another shape (the
    first few of each kind).
    """
    renamed: dict[str, Tensor] = {}
    for key, value in tensors.items():
        name = key if key in shapes else _other_spelling(key)
        if name not in shapes:
            name = key
        if name in renamed:
            raise CodecError(f"codec weights hold {name} in two spellings")
        renamed[name] = value
    problems = [
        *_listed("missing", [name for name in shapes if name not in renamed]),
        *_listed("not expected", [name for name in renamed if name not in shapes]),
        *_listed(
            "of another shape",
            [
                f"{name} is {list(renamed[name].shape)}, expected {list(shape)}"
                for name, shape in shapes.items()
                if name in renamed and tuple(renamed[name].shape) != shape
            ],
        ),
        *_listed(
            "not numbers",
            [name for name, value in renamed.items() if not value.is_floating_point()],
        ),
    ]
    if problems:
        raise CodecError("codec weights do not fit: " + "; ".join(problems))
    return renamed


def _other_spelling(key: str) -> str:
    for new, old in _SPELLINGS:
        if key.endswith(f".{new}"):
            return key.removesuffix(new) + old
        if key.endswith(f".{old}"):
            return key.removesuffix(old) + new
    return key


def _listed(kind: str, names: list[str]) -> list[str]:
    if not names:
        return []
    more = f" and {len(names) - _SHOWN_KEYS} more" if len(names) > _SHOWN_KEYS else ""
    return [f"{kind}: {', '.join(names[:_SHOWN_KEYS])}{more}"]

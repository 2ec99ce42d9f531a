"""The teacher's weights as published: int8 tensors with scales, in one compressed archive.

Owns the file's naming (``name|q8``, ``name|q16``, ``name|f`` and ``name|s`` for the scale).
"""

from __future__ import annotations

import io
import lzma
from pathlib import Path

import numpy as np
import torch
from torch import Tensor


def read_archive(path: Path) -> dict[str, Tensor]:
    """Every tensor of a ``.npz.xz`` archive by its name, dequantised to float32."""
    stored = np.load(io.BytesIO(lzma.open(path).read()))
    weights: dict[str, Tensor] = {}
    for key in stored.files:
        name, _, kind = key.rpartition("|")
        if kind == "s":
            continue
        value = stored[key].astype(np.float32)
        if kind in ("q8", "q16"):
            scale = stored[f"{name}|s"].astype(np.float32)
            if scale.size > 1:
                scale = scale.reshape((-1,) + (1,) * (value.ndim - 1))
            value = value * scale
        weights[name] = torch.from_numpy(np.ascontiguousarray(value))
    return weights

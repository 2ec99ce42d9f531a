"""One weight of a product in bf16, block-scaled FP8 or MXFP8, and how it comes to be.

Owns the choice of a format, and the check that every quantised block still is the block it came
from, whether it was quantised now or taken from a file. Knows nothing of layers.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from shoal.kernels.mxfp8 import Mx, dequantise_mx, prepare_mx, quantise_mx_reference
from shoal.kernels.quantise import Fp8Weight, prepare, quantise_weight, worst_block_error

from .weight_cache import WeightCache

Dtype = Literal["bf16", "fp8", "mxfp8"]
Product = Tensor | Fp8Weight | Mx
WORST_BLOCK_ERROR = 0.06
"""About 0.03 is e4m3's own rounding; a block with a wrong scale shows 0.3 and more."""
_BLOCK = 128


def narrowed(
    name: str, weight: Tensor, dtype: Literal["fp8", "mxfp8"], cache: WeightCache | None
) -> Fp8Weight | Mx:
    """``weight`` bf16 [N, K] in ``dtype``, from ``cache`` where that has it. Raises ``ValueError``
    for a shape the kernels cannot serve, and for blocks that are not those of ``weight``."""
    kept = None if cache is None else cache.get(name)
    if kept is not None and cache is not None:
        try:
            taken = _taken(kept, dtype, name)
            _check(name, taken, weight)
        except (TypeError, ValueError) as error:
            cache.distrust(str(error))
        else:
            return taken
    made = quantise_weight(weight) if dtype == "fp8" else _mx(name, weight)
    _check(name, made, weight)
    if cache is not None:
        cache.keep(name, (made.values, made.scales))
    return made


def _taken(
    tensors: tuple[Tensor, ...], dtype: Literal["fp8", "mxfp8"], name: str
) -> Fp8Weight | Mx:
    if len(tensors) != 2:
        raise ValueError(f"{name} has {len(tensors)} tensors, expected 2")
    values, scales = tensors
    return prepare(values, scales, name) if dtype == "fp8" else prepare_mx(values, scales, name)


def _mx(name: str, weight: Tensor) -> Mx:
    made = quantise_mx_reference(weight)
    return prepare_mx(made.values, made.scales, name)


def _check(name: str, made: Fp8Weight | Mx, weight: Tensor) -> None:
    if made.values.shape != weight.shape:
        raise ValueError(f"{name} is {tuple(made.values.shape)}, expected {tuple(weight.shape)}")
    rows, columns = (size // _BLOCK for size in weight.shape)
    corners = ((0, 0), (rows - 1, columns - 1), (rows // 2, columns // 3))
    if isinstance(made, Fp8Weight):
        error = worst_block_error(made, weight, corners)
    else:
        error = _worst_mx_error(made, weight, corners)
    if error > WORST_BLOCK_ERROR:
        raise ValueError(f"{name}: a quantised block is {error:.2f} away from its source")


def _worst_mx_error(made: Mx, source: Tensor, corners: tuple[tuple[int, int], ...]) -> float:
    worst = 0.0
    each = made.values.shape[1] // made.scales.shape[1]
    for row, column in corners:
        rows = slice(row * _BLOCK, (row + 1) * _BLOCK)
        part = (rows, slice(column * _BLOCK, (column + 1) * _BLOCK))
        groups = slice(column * _BLOCK // each, (column + 1) * _BLOCK // each)
        ours = dequantise_mx(Mx(made.values[part], made.scales[rows, groups]))
        theirs = source[part].float()
        worst = max(worst, float((ours - theirs).norm() / theirs.norm().clamp(min=1e-20)))
    return worst


def is_mx_native(device: torch.device) -> bool:
    """Whether ``device`` multiplies MXFP8 itself; elsewhere it is emulated, slowly."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (10, 0)

"""What makes the forward fast on a CPU, and the proof that it stays exact.

Owns the choice of packed weights, compilation, and the check on which batch invariance rests.
Called at start.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn

from .dual_ar import TENSORS_PER_LAYER, DualAR, linear


def packs_linear() -> bool:
    """Whether this build of torch can lay out float32 linear weights for oneDNN."""
    if not torch.backends.mkldnn.is_available():
        return False
    try:
        packed = torch.ops.mkldnn._reorder_linear_weight(torch.zeros(8, 8), 8)
        return linear(torch.zeros(2, 8), packed).shape == (2, 8)
    except (AttributeError, NotImplementedError, RuntimeError):
        return False


def compile_module(module: nn.Module) -> nn.Module:
    """One call into TorchScript per forward: it computes without the interpreter's lock, which a
    step of several hundred operations would otherwise hand over several hundred times."""
    with warnings.catch_warnings():
        # Deprecated in favour of compilers that need a C++ toolchain where the server runs.
        warnings.simplefilter("ignore", DeprecationWarning)
        return torch.jit.script(module)


def rows_are_independent(model: DualAR, rows: int) -> bool:
    """Whether every matrix product of ``model`` gives a row the same bits at each place of each
    batch of 2 to ``rows`` rows on this machine."""
    generator = torch.Generator().manual_seed(0)
    n = TENSORS_PER_LAYER
    weights = [*model.slow.layers[:n], *model.fast.layers[:n], model.head, model.fast_output]
    if model.projects_fast_input:
        weights.append(model.fast_project)
    return all(
        _rows_independent(weight, rows, generator) for weight in weights if weight.dim() == 2
    )


def _rows_independent(weight: Tensor, rows: int, generator: torch.Generator) -> bool:
    x = torch.randn(2 * rows, weight.size(1), generator=generator)
    whole = linear(x, weight)
    for n in range(2, 2 * rows):
        for begin in (0, 2 * rows - n):
            part = linear(x[begin : begin + n].contiguous(), weight)
            if not torch.equal(part, whole[begin : begin + n]):
                return False
    return True

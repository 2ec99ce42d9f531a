"""Builds the CUDA runner; imports what needs Triton only when it is called."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ..api import Progress
from ..checkpoint import CheckpointError
from ..codec import Codec
from ..config import EngineConfig
from ..model.config import DualARConfig
from ..runner import Runner
from ..tokenizer import Tokenizer


def device_runner(
    config: EngineConfig,
    shape: DualARConfig,
    weights: Mapping[str, Tensor],
    tokenizer: Tokenizer,
    codec: Codec,
    device: torch.device,
    progress: Progress,
    *,
    pdl: bool = True,
) -> Runner:
    """A runner on ``device`` in ``config.dtype`` (auto: FP8 where the GPU has it). Raises
    :class:`CheckpointError`."""
    from ..cuda_runner import CudaRunner
    from .weights import device_weights  # a CPU needs no Triton

    dtype = config.dtype
    if dtype == "auto":
        dtype = "fp8" if torch.cuda.get_device_capability(device) >= (9, 0) else "bf16"
    if dtype not in ("bf16", "fp8"):
        raise CheckpointError(f"dtype {dtype} is not supported on this GPU; there are bf16 and fp8")
    if codec.codebooks != shape.codebooks:
        raise CheckpointError(
            f"the codec has {codec.codebooks} codebooks, the model {shape.codebooks}"
        )
    placed = device_weights(
        shape,
        weights,
        shape.semantic_ids(tokenizer.semantic),
        tokenizer.end_token,
        dtype="fp8" if dtype == "fp8" else "bf16",
        device=device,
        progress=progress,
    )
    return CudaRunner(
        shape,
        placed,
        codec,
        slots=config.slots or 1,
        pages=config.pages,
        device=device,
        pdl=pdl,
        progress=progress,
    )

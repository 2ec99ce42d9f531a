"""Builds the CUDA runner; imports what needs Triton only when it is called."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from ..api import Progress
from ..checkpoint import CheckpointError
from ..codec import Codec
from ..config import EngineConfig
from ..model.config import DualARConfig
from ..runner import Runner
from ..tokenizer import Tokenizer

if TYPE_CHECKING:
    from .kv_pool import KvDtype
    from .weights import CudaWeights

GpuDtype = Literal["bf16", "fp8", "mxfp8"]
_ADA = (8, 9)
_HOPPER = (9, 0)
_BLACKWELL = (10, 0)


def gpu_dtype(wanted: str, capability: tuple[int, int]) -> GpuDtype:
    """What ``wanted`` ("auto" and all that :class:`EngineConfig` may say) comes to on a GPU of
    ``capability``. Raises :class:`CheckpointError` where it cannot be."""
    match wanted:
        case "auto":
            return "fp8" if capability >= _HOPPER else "bf16"
        case "fp8" if capability < _HOPPER:
            raise CheckpointError(
                "dtype fp8 takes a GPU of compute capability 9.0 or higher, "
                f"this one has {capability[0]}.{capability[1]}; try --dtype bf16"
            )
        case "bf16" | "fp8" | "mxfp8":
            return wanted
        case _:
            raise CheckpointError(f"a GPU runs no {wanted}; there are bf16, fp8 and mxfp8")


def gpu_kv_dtype(wanted: str, capability: tuple[int, int]) -> KvDtype:
    """What ``wanted`` for keys and values comes to on a GPU of ``capability``. Raises
    :class:`CheckpointError` where it cannot be."""
    match wanted:
        case "auto":
            return "bf16"
        case "fp8" if capability < _ADA:
            raise CheckpointError(
                "kv-dtype fp8 takes a GPU of compute capability 8.9 or higher, "
                f"this one has {capability[0]}.{capability[1]}; try --kv-dtype bf16"
            )
        case "bf16" | "fp8":
            return wanted
        case _:
            raise CheckpointError(
                f"no keys and values are kept in {wanted}; there are bf16 and fp8"
            )


def dtype_note(wanted: str, capability: tuple[int, int]) -> str:
    """What a user should know of ``wanted`` on this GPU, or nothing."""
    if wanted == "mxfp8" and capability < _BLACKWELL:
        return "MXFP8 is emulated on this GPU: right, but slow; --dtype fp8 is fast"
    return ""


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
    cache_dir: Path | None = None,
) -> Runner:
    """A runner on ``device`` in ``config.dtype`` (auto: FP8 where the GPU has it). Raises
    :class:`CheckpointError`.

    ``cache_dir``: the checkpoint's folder, to keep quantised weights in.
    """
    dtype = gpu_dtype(config.dtype, torch.cuda.get_device_capability(device))
    if codec.codebooks != shape.codebooks:
        raise CheckpointError(
            f"the codec has {codec.codebooks} codebooks, the model {shape.codebooks}"
        )
    placed = placed_weights(shape, weights, tokenizer, dtype, device, progress, cache_dir=cache_dir)
    return runner_of(config, shape, placed, codec, device, progress, pdl=pdl)


def placed_weights(
    shape: DualARConfig,
    weights: Mapping[str, Tensor],
    tokenizer: Tokenizer,
    dtype: GpuDtype,
    device: torch.device,
    progress: Progress,
    *,
    cache_dir: Path | None = None,
) -> CudaWeights:
    """``weights`` on ``device`` in ``dtype``. Raises :class:`CheckpointError`."""
    from .weight_cache import WeightCache
    from .weights import device_weights  # a CPU needs no Triton

    cache = None
    if cache_dir is not None and dtype != "bf16":
        cache = WeightCache(cache_dir, dtype, device, progress)
    try:
        return device_weights(
            shape,
            weights,
            shape.semantic_ids(tokenizer.semantic),
            tokenizer.end_token,
            dtype=dtype,
            device=device,
            progress=progress,
            cache=cache,
        )
    except ValueError as error:
        raise CheckpointError(f"these weights do not go into {dtype}: {error}") from error


def runner_of(
    config: EngineConfig,
    shape: DualARConfig,
    placed: CudaWeights,
    codec: Codec,
    device: torch.device,
    progress: Progress,
    *,
    pdl: bool = True,
) -> Runner:
    """The runner of weights that are on ``device``."""
    from ..cuda_runner import CudaRunner

    return CudaRunner(
        shape,
        placed,
        codec,
        slots=config.slots or 1,
        pages=config.pages,
        kv_dtype=gpu_kv_dtype(config.kv_dtype, torch.cuda.get_device_capability(device)),
        host_bytes=config.warm_voice_bytes,
        device=device,
        pdl=pdl,
        progress=progress,
    )

"""From a config to a loaded model: which files, which runner, which device.

Owns the choice between a checkpoint folder and a random model, and between the CPU and a GPU.
Brings torch in; called once, by the service.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from .api import Progress
from .checkpoint import CheckpointError, VoiceConfig, read_voice_config
from .codec import Codec, CodecError, load_codec
from .config import EngineConfig
from .cpu_runner import CpuRunner
from .cuda.load import device_runner, dtype_note
from .model.config import DualARConfig, read_config
from .model.weights import load_weights
from .random_model import PREFIX, SHAPES, byte_tokenizer, random_codec, random_weights
from .runner import Runner
from .tokenizer import Tokenizer, load_tokenizer

CPU_SLOTS = 8
GPU_SLOTS = 64
LARGE_GPU_SLOTS = 256
LARGE_GPU_BYTES = 64 << 30
"""256 rows of S2 Pro were measured in 53 GiB, pages for 512 tokens each among them."""
CPU_WARM_BYTES = 64 << 20
"""Of the built-in voice's, voices of 10 s by the seventeen."""
DTYPES = ("auto", "fp32", "bf16", "fp8", "mxfp8")
KV_DTYPES = ("auto", "bf16", "fp8")


@dataclass(frozen=True, slots=True, eq=False)
class LoadedModel:
    """A model ready to be served. ``codec_fingerprint`` names what reference codes belong to."""

    name: str
    config: DualARConfig
    voice: VoiceConfig
    tokenizer: Tokenizer
    runner: Runner
    device: str
    note: str
    codec_fingerprint: str


def load_model(config: EngineConfig, progress: Progress) -> LoadedModel:
    """Raises :class:`CheckpointError` for a model that cannot be loaded or a device that is not
    there."""
    device = _device(config.device)
    if config.dtype not in DTYPES:
        raise CheckpointError(f"no dtype is called {config.dtype!r}; there are {list(DTYPES)}")
    if config.kv_dtype not in KV_DTYPES:
        raise CheckpointError(
            f"no kv-dtype is called {config.kv_dtype!r}; there are {list(KV_DTYPES)}"
        )
    if config.slots is None:
        memory = None if device.type == "cpu" else torch.cuda.mem_get_info(device)[1]
        config = replace(config, slots=usual_slots(memory))
    source = str(config.model)
    if source.startswith(PREFIX):
        return _random(config, source.removeprefix(PREFIX), device, progress)
    shape = read_config(config.model)
    tokenizer = load_tokenizer(config.model)
    voice = read_voice_config(config.model, max_seq_len=shape.max_seq_len)
    if device.type == "cpu":
        if config.dtype not in ("auto", "fp32"):
            raise CheckpointError(f"dtype {config.dtype} takes a GPU; on a CPU it is fp32")
        if config.kv_dtype != "auto":
            raise CheckpointError(f"kv-dtype {config.kv_dtype} takes a GPU; on a CPU it is fp32")
        warm = config.warm_voice_bytes
        runner: Runner = CpuRunner.load(
            config.model,
            slots=config.slots or CPU_SLOTS,
            pages=config.pages,
            host_bytes=CPU_WARM_BYTES if warm is None else warm,
            progress=progress,
        )
    else:
        try:
            codec = load_codec(config.model, device=device, progress=progress)
        except CodecError as error:
            raise CheckpointError(str(error)) from error
        weights = load_weights(config.model, shape, progress=progress)
        runner = device_runner(
            config, shape, weights, tokenizer, codec, device, progress, cache_dir=config.model
        )
    return LoadedModel(
        name=config.model.name,
        config=shape,
        voice=voice,
        tokenizer=tokenizer,
        runner=runner,
        device=str(device),
        note=_dtype_note(config, device, progress),
        codec_fingerprint=fingerprint(config.model / "codec.pth"),
    )


def usual_slots(gpu_bytes: int | None) -> int:
    """Streams at once when nobody says: on a CPU (None), or on a GPU of so much memory."""
    if gpu_bytes is None:
        return CPU_SLOTS
    return LARGE_GPU_SLOTS if gpu_bytes >= LARGE_GPU_BYTES else GPU_SLOTS


def _random(
    config: EngineConfig, name: str, device: torch.device, progress: Progress
) -> LoadedModel:
    shape = SHAPES.get(name)
    if shape is None:
        raise CheckpointError(f"no random model is called {name!r}; there are {sorted(SHAPES)}")
    if device.type == "cpu":
        raise CheckpointError(f"{PREFIX}{name} takes a GPU")
    progress("drawing random weights")
    tokenizer = byte_tokenizer(shape)
    codec: Codec = random_codec(device)
    runner = device_runner(
        config, shape, random_weights(shape, device), tokenizer, codec, device, progress
    )
    voice = VoiceConfig("none", 0.7, 0.7, 30, None, shape.max_seq_len)
    notes = ["random weights: what is heard is noise", _dtype_note(config, device, progress)]
    return LoadedModel(
        f"{PREFIX}{name}",
        shape,
        voice,
        tokenizer,
        runner,
        str(device),
        "; ".join(note for note in notes if note),
        PREFIX + name,
    )


def _dtype_note(config: EngineConfig, device: torch.device, progress: Progress) -> str:
    if device.type == "cpu":
        return ""
    note = dtype_note(config.dtype, torch.cuda.get_device_capability(device))
    if note:
        progress(note)
    return note


def _device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(name)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise CheckpointError("no CUDA device is to be seen; try --device cpu")
    if device.type not in ("cpu", "cuda"):
        raise CheckpointError(f"device {name} is not supported; there are cpu and cuda")
    return device


def fingerprint(path: Path) -> str:
    """16 hex digits that name a file's content by its size and its ends."""
    digest = hashlib.sha256()
    size = path.stat().st_size
    digest.update(str(size).encode())
    with path.open("rb") as file:
        digest.update(file.read(1 << 20))
        file.seek(max(0, size - (1 << 20)))
        digest.update(file.read(1 << 20))
    return digest.hexdigest()[:16]

"""Weights of a DualAR checkpoint, checked key by key.

Owns the names on disk of both layouts and maps them to one canonical set (the older layout's
names: ``layers.0.attention.wqkv.weight``, ``fast_layers...``). Strict: a missing, an extra or a
mis-shaped tensor is a :class:`CheckpointError` that names the key as the file spells it. Called
once at start.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ..checkpoint import CheckpointError, read_json, section_of
from .config import DualARConfig, StackConfig

Progress = Callable[[str], None]

_S2_SLOW = "text_model.model."
_S2_FAST = "audio_decoder."
_SPLIT_QKV = re.compile(r"(.*attention\.)w([qkv])\.weight")


def expected_shapes(config: DualARConfig) -> dict[str, tuple[int, ...]]:
    """Every canonical key of ``config`` and its shape, linear weights as [out, in]."""
    slow, fast = config.slow, config.fast
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.weight": (config.vocab_size, slow.dim),
        "codebook_embeddings.weight": (config.codebooks * config.codebook_size, slow.dim),
        "norm.weight": (slow.dim,),
        "fast_embeddings.weight": (config.codebook_size, fast.dim),
        "fast_norm.weight": (fast.dim,),
        "fast_output.weight": (config.codebook_size, fast.dim),
    }
    if not config.tied_head:
        shapes["output.weight"] = (config.vocab_size, slow.dim)
    if config.projects_fast_input:
        shapes["fast_project_in.weight"] = (fast.dim, slow.dim)
        shapes["fast_project_in.bias"] = (fast.dim,)
    for prefix, stack in (("layers", slow), ("fast_layers", fast)):
        for index in range(stack.layers):
            shapes |= {f"{prefix}.{index}.{key}": s for key, s in _layer_shapes(stack).items()}
    return shapes


def _layer_shapes(stack: StackConfig) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {
        "attention.wqkv.weight": (stack.qkv_dim, stack.dim),
        "attention.wo.weight": (stack.dim, stack.heads * stack.head_dim),
        "feed_forward.w1.weight": (stack.ffn_dim, stack.dim),
        "feed_forward.w3.weight": (stack.ffn_dim, stack.dim),
        "feed_forward.w2.weight": (stack.dim, stack.ffn_dim),
        "attention_norm.weight": (stack.dim,),
        "ffn_norm.weight": (stack.dim,),
    }
    if stack.qk_norm:
        shapes["attention.q_norm.weight"] = (stack.head_dim,)
        shapes["attention.k_norm.weight"] = (stack.head_dim,)
    return shapes


def load_weights(
    directory: Path,
    config: DualARConfig,
    *,
    progress: Progress | None = None,
    device: torch.device | str = "cpu",
) -> dict[str, Tensor]:
    """Canonical name -> tensor as stored (dtype of the file), exactly the expected keys.

    Reads an index of shards, else ``model.safetensors``, else ``model.pth``, memory-mapped.
    ``progress`` gets a line per file. Raises :class:`CheckpointError`.
    """
    say = progress or (lambda _line: None)
    on_disk = _read_files(directory, config, say, str(device))
    if config.layout == "s2":
        weights = {_canonical_s2(key): (key, tensor) for key, tensor in on_disk.items()}
    else:
        weights = {key: (key, tensor) for key, tensor in on_disk.items()}
    weights = _fuse_split_qkv(weights)
    _check(weights, config)
    return {key: tensor for key, (_, tensor) in weights.items()}


def _read_files(
    directory: Path, config: DualARConfig, say: Progress, device: str
) -> dict[str, Tensor]:
    index = directory / "model.safetensors.index.json"
    single = directory / "model.safetensors"
    pickle = directory / "model.pth"
    if index.exists():
        table = section_of(read_json(index), "weight_map", str(index))
        names = sorted({str(name) for name in table.values()})
        if any("/" in name or "\\" in name for name in names):
            raise CheckpointError(f"{index}: shards must lie beside it")
        files = [directory / name for name in names]
    elif single.exists():
        files = [single]
    elif pickle.exists():
        say(f"reading {pickle.name}")
        return _read_pickle(pickle, config, device)
    else:
        raise CheckpointError(f"{directory}: no {index.name}, {single.name} or {pickle.name}")
    weights: dict[str, Tensor] = {}
    for number, path in enumerate(files, 1):
        say(f"reading {path.name} ({number} of {len(files)})")
        try:
            with safe_open(path, framework="pt", device=device) as shard:
                for key in shard.keys():
                    if key in weights:
                        raise CheckpointError(f"{path}: {key} is in another shard too")
                    weights[key] = shard.get_tensor(key)
        except FileNotFoundError:
            raise CheckpointError(f"{path}: no such file (named by {index.name})") from None
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{path}: cannot be read ({error})") from error
    return weights


def _read_pickle(path: Path, config: DualARConfig, device: str) -> dict[str, Tensor]:
    try:
        loaded = torch.load(path, map_location=device, mmap=True, weights_only=True)
    except Exception as error:  # torch.load raises whatever its unpickler meets
        raise CheckpointError(f"{path}: cannot be read ({error})") from error
    if isinstance(loaded, Mapping) and isinstance(loaded.get("state_dict"), Mapping):
        loaded = loaded["state_dict"]
    if not isinstance(loaded, Mapping) or not loaded:
        raise CheckpointError(f"{path}: holds no state dict")
    items = {str(key): value for key, value in loaded.items()}
    if next(iter(items)).startswith("model."):
        items = {key.removeprefix("model."): value for key, value in items.items()}
    if config.layout == "flat":
        # Towers of other tasks that share the file; no part of this model is called so.
        items = {key: value for key, value in items.items() if "audio_" not in key}
    for key, value in items.items():
        if not isinstance(value, Tensor):
            raise CheckpointError(f"{path}: {key} is no tensor")
    return items


def _canonical_s2(key: str) -> str:
    if key.startswith(_S2_SLOW):
        return key.removeprefix(_S2_SLOW)
    if key.startswith(f"{_S2_FAST}codebook_embeddings."):
        return key.removeprefix(_S2_FAST)
    if key.startswith(_S2_FAST):
        return "fast_" + key.removeprefix(_S2_FAST)
    return f"unexpected:{key}"


def _fuse_split_qkv(weights: dict[str, tuple[str, Tensor]]) -> dict[str, tuple[str, Tensor]]:
    """Old files keep queries, keys and values apart."""
    fused = {key: item for key, item in weights.items() if not _SPLIT_QKV.fullmatch(key)}
    for key in weights:
        match = _SPLIT_QKV.fullmatch(key)
        if not match or match.group(2) != "q":
            continue
        parts = [weights.get(f"{match.group(1)}w{letter}.weight") for letter in "qkv"]
        if any(part is None for part in parts):
            raise CheckpointError(f"{weights[key][0]}: its wk or wv is missing")
        name = parts[0][0].replace("wq.weight", "wqkv.weight")
        fused[f"{match.group(1)}wqkv.weight"] = (name, torch.cat([part[1] for part in parts]))
    return fused


def _check(weights: Mapping[str, tuple[str, Tensor]], config: DualARConfig) -> None:
    shapes = expected_shapes(config)
    for key, shape in shapes.items():
        if key not in weights:
            raise CheckpointError(f"missing weight {_disk_name(key, config)}, shape {list(shape)}")
    for key, (name, tensor) in weights.items():
        if key not in shapes:
            raise CheckpointError(f"unexpected weight {name}, shape {list(tensor.shape)}")
        if tuple(tensor.shape) != shapes[key]:
            raise CheckpointError(
                f"weight {name} has shape {list(tensor.shape)}, expected {list(shapes[key])}"
            )
        if not tensor.is_floating_point():
            raise CheckpointError(f"weight {name} is {tensor.dtype}, expected floating point")


def _disk_name(key: str, config: DualARConfig) -> str:
    if config.layout == "flat":
        return key
    if key.startswith("fast_"):
        return _S2_FAST + key.removeprefix("fast_")
    return (_S2_FAST if key.startswith("codebook_embeddings.") else _S2_SLOW) + key

"""The ``export`` command: a trained DualAR and codec as one folder that the engine loads.

The S2 layout: nested ``config.json``, sharded safetensors in bfloat16 with S2's names, a byte-level
``tokenizer.json``, ``codec.pth`` in float16 with ``codec_config.json``, and ``voice_config.json``
with how the voice wants to be used. Rotary tables are no part of it: training and engine compute
the same ones, rounded to bfloat16.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from ..codec import load_codec
from ..model.config import DualARConfig, StackConfig, read_config
from ..model.weights import load_weights
from . import vocabulary
from .codec_model import BUILTIN as BUILTIN_CODEC
from .codec_model import describe

SHARD_BYTES = 15 << 20
VOICE = {
    "frontend": "english",
    "sampling": {"temperature": 0.7, "top_p": 0.9, "top_k": 30},
    "max_segment_chars": 170,
    "max_context": 930,
}
"""The context is what a row of training holds, less the longest sentence."""
_INDEX = "model.safetensors.index.json"


def disk_name(key: str) -> str:
    """S2's name of a canonical key."""
    if key.startswith("codebook_embeddings."):
        return f"audio_decoder.{key}"
    if key.startswith("fast_"):
        return f"audio_decoder.{key.removeprefix('fast_')}"
    return f"text_model.model.{key}"


def describe_model(config: DualARConfig) -> dict[str, Any]:
    """What ``config.json`` says of ``config``, which is of the S2 layout."""

    def stack(shape: StackConfig) -> dict[str, Any]:
        named = asdict(shape)
        return {
            "n_layer": named["layers"],
            "dim": named["dim"],
            "n_head": named["heads"],
            "n_local_heads": named["kv_heads"],
            "head_dim": named["head_dim"],
            "intermediate_size": named["ffn_dim"],
            "attention_qk_norm": named["qk_norm"],
            "attention_qkv_bias": False,
            "attention_o_bias": False,
        }

    begin = config.semantic_begin
    return {
        "model_type": "fish_qwen3_omni",
        "semantic_start_token_id": begin,
        "semantic_end_token_id": None if begin is None else begin + config.codebook_size - 1,
        "text_config": {
            **stack(config.slow),
            "vocab_size": config.vocab_size,
            "rope_base": int(config.rope_base),
            "norm_eps": config.norm_eps,
            "max_seq_len": config.max_seq_len,
            "tie_word_embeddings": config.tied_head,
            "dropout": 0.0,
        },
        "audio_decoder_config": {
            **stack(config.fast),
            "vocab_size": config.codebook_size,
            "num_codebooks": config.codebooks,
            "text_dim": config.slow.dim,
        },
    }


def write_model(folder: Path, config: DualARConfig, weights: Mapping[str, Tensor]) -> None:
    """The DualAR's files: ``weights`` by canonical names, stored in bfloat16."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("model-*.safetensors"):
        old.unlink()
    shards: list[dict[str, Tensor]] = [{}]
    used = total = 0
    for key, weight in weights.items():
        tensor = weight.detach().to("cpu", torch.bfloat16).contiguous()
        size = tensor.numel() * 2
        if shards[-1] and used + size > SHARD_BYTES:
            shards.append({})
            used = 0
        shards[-1][disk_name(key)] = tensor
        used, total = used + size, total + size
    table: dict[str, str] = {}
    for number, shard in enumerate(shards, 1):
        name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        save_file(shard, str(folder / name))
        table |= dict.fromkeys(shard, name)
    index = {"metadata": {"total_size": total}, "weight_map": table}
    (folder / _INDEX).write_text(json.dumps(index))
    (folder / "config.json").write_text(json.dumps(describe_model(config), indent=1))
    vocabulary.write_tokenizer(folder)


def write_voice(model: Path, codec: Path, out: Path) -> int:
    """A whole voice from the folders of its two parts; returns its bytes.

    Raises CheckpointError or CodecError when the engine would not load it.
    """
    out.mkdir(parents=True, exist_ok=True)
    if out.resolve() != model.resolve():
        config = read_config(model)
        write_model(out, config, load_weights(model, config))
    shutil.copyfile(codec / "codec.pth", out / "codec.pth")
    shape = codec / "codec_config.json"
    if shape.exists():
        shutil.copyfile(shape, out / "codec_config.json")
    else:
        described = json.dumps(describe(BUILTIN_CODEC), indent=1)
        (out / "codec_config.json").write_text(described)
    (out / "voice_config.json").write_text(json.dumps(VOICE, indent=2) + "\n")
    load_weights(out, read_config(out))
    load_codec(out)
    return sum(path.stat().st_size for path in out.iterdir() if path.is_file())


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="export", description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="a folder that ar wrote")
    parser.add_argument("--codec", type=Path, required=True, help="a folder that codec wrote")
    parser.add_argument("--out", type=Path, required=True)
    flags = parser.parse_args(argv)
    size = write_voice(flags.model, flags.codec, flags.out)
    print(f"{flags.out}: {size / 1e6:.1f} MB")
    return 0

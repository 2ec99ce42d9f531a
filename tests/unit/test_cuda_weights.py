"""The file of quantised weights beside a checkpoint, and which dtype a GPU gets."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from shoal.engine.checkpoint import CheckpointError
from shoal.engine.config import BUILTIN_VOICE, EngineConfig
from shoal.engine.cuda.load import dtype_note, gpu_dtype, gpu_kv_dtype
from shoal.engine.cuda.product import narrowed
from shoal.engine.cuda.weight_cache import WeightCache, checksum, source_key
from shoal.engine.cuda.weights import CudaWeights, device_weights
from shoal.engine.loading import load_model
from shoal.engine.model.config import read_config
from shoal.engine.model.weights import load_weights
from shoal.engine.tokenizer import load_tokenizer
from shoal.kernels.quantise import Fp8Weight

CPU = torch.device("cpu")
HOPPER, BLACKWELL, AMPERE = (9, 0), (12, 0), (8, 0)
Narrow = Literal["fp8", "mxfp8"]


@dataclass
class Folder:
    """A checkpoint folder and what starts on it said."""

    path: Path
    lines: list[str] = field(default_factory=list)

    def start(self, dtype: Narrow = "fp8", *, worth_bytes: int = 1) -> CudaWeights:
        self.lines.clear()
        config, tokenizer = read_config(self.path), load_tokenizer(self.path)
        return device_weights(
            config,
            load_weights(self.path, config),
            config.semantic_ids(tokenizer.semantic),
            tokenizer.end_token,
            dtype=dtype,
            device=CPU,
            cache=WeightCache(self.path, dtype, CPU, self.lines.append, worth_bytes=worth_bytes),
        )

    @property
    def kept(self) -> Path:
        return self.path / "shoal-fp8.safetensors"


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    for name in ("config.json", "tokenizer.json"):
        shutil.copy(BUILTIN_VOICE / name, tmp_path)
    for path in BUILTIN_VOICE.glob("model*"):
        shutil.copy(path, tmp_path)
    return Folder(tmp_path)


def parts(weights: CudaWeights) -> list[Tensor]:
    """Every quantised tensor, as bytes."""
    found: list[Tensor] = []
    for stack in (weights.slow, weights.fast):
        products = [stack.head]
        for layer in stack.layers:
            products += [layer.qkv, layer.out, layer.gate_up, layer.down]
        for product in products:
            assert not isinstance(product, Tensor)
            found += [product.values.view(torch.uint8), product.scales]
    return found


def same(a: Sequence[Tensor], b: Sequence[Tensor]) -> bool:
    return len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("dtype", ["fp8", "mxfp8"])
def test_a_second_start_takes_the_first_one_s_weights(folder: Folder, dtype: Narrow) -> None:
    first = parts(folder.start(dtype))
    kept = folder.path / f"shoal-{dtype}.safetensors"
    assert folder.lines == [f"writing {kept.name}"]
    written = kept.stat()
    second = parts(folder.start(dtype))
    assert folder.lines == []
    assert same(first, second)
    assert kept.stat().st_mtime_ns == written.st_mtime_ns
    assert [path.name for path in folder.path.glob("*shoal-*")] == [kept.name]


def test_the_file_is_used_and_not_made_again(folder: Folder) -> None:
    """Another valid rounding of one weight, planted in the file, comes back from it."""
    folder.start()
    with safe_open(folder.kept, framework="pt") as file:
        about = dict(file.metadata())
    tensors = load_file(folder.kept)
    values = tensors["layers.0.wqkv/0"].view(torch.uint8)
    values[5, 7] ^= 1  # the last bit of one mantissa
    tensors["layers.0.wqkv/0"] = values.view(torch.float8_e4m3fn)
    name = "layers.0.wqkv"
    table = json.loads(about["sums"])
    table[name][0] = checksum(tensors[f"{name}/0"])
    save_file(tensors, folder.kept, metadata=about | {"sums": json.dumps(table)})
    layer = folder.start().slow.layers[0].qkv
    assert isinstance(layer, Fp8Weight)
    assert torch.equal(layer.values.view(torch.uint8), values)


def test_other_weights_under_the_same_names_make_the_file_stale(folder: Folder) -> None:
    folder.start()
    shard = next(folder.path.glob("model-00002*"))
    tensors = load_file(shard)
    key = next(name for name, tensor in tensors.items() if tensor.ndim == 2)
    tensors[key] = -tensors[key]
    before = source_key(folder.path)
    save_file(tensors, shard)
    assert source_key(folder.path) != before
    changed = parts(folder.start())
    assert folder.lines == [
        "shoal-fp8.safetensors belongs to other weights; it is made anew",
        "writing shoal-fp8.safetensors",
    ]
    assert same(changed, parts(folder.start()))
    assert folder.lines == []


@pytest.mark.parametrize("damage", ["torn", "flipped", "empty", "swapped"])
def test_a_damaged_file_is_made_anew(folder: Folder, damage: str) -> None:
    first = parts(folder.start())
    content = bytearray(folder.kept.read_bytes())
    match damage:
        case "torn":
            content = content[: len(content) // 2]
        case "flipped":
            content[len(content) // 2] ^= 0x40
        case "empty":
            content = bytearray()
        case _:  # two rows of one weight have changed places
            half = len(content) // 2
            content[half : half + 256], content[half + 256 : half + 512] = (
                content[half + 256 : half + 512],
                content[half : half + 256],
            )
    folder.kept.write_bytes(content)
    assert same(parts(folder.start()), first)
    assert "it is made anew" in folder.lines[0]
    assert folder.lines[-1] == "writing shoal-fp8.safetensors"
    assert same(parts(folder.start()), first)
    assert folder.lines == []


def test_blocks_that_are_not_the_source_s_are_refused_whatever_the_checksum_says(
    folder: Folder,
) -> None:
    said: list[str] = []
    weight = torch.randn(256, 640, generator=torch.Generator().manual_seed(1)).bfloat16()
    weight[:128] *= 16
    cache = WeightCache(folder.path, "fp8", CPU, said.append, worth_bytes=1)
    good = narrowed("w", weight, "fp8", cache)
    assert isinstance(good, Fp8Weight)
    cache.keep("w", (good.values, good.scales.flip(0).contiguous()))
    assert cache.save()
    again = WeightCache(folder.path, "fp8", CPU, said.append, worth_bytes=1)
    made = narrowed("w", weight, "fp8", again)
    assert isinstance(made, Fp8Weight)
    assert torch.equal(made.scales, good.scales)
    assert "away from its source; it is made anew" in said[-1]


def test_a_folder_that_cannot_be_written_to_serves_all_the_same(folder: Folder) -> None:
    # A folder under the name that the file would be moved to stands in for a read-only disk, which
    # does not stop root.
    folder.kept.mkdir()
    (folder.kept / "x").touch()
    first = parts(folder.start())
    assert "cannot be kept" in folder.lines[-1]
    assert same(first, parts(folder.start()))
    assert [path.name for path in folder.path.glob(".shoal*")] == []


def test_a_small_model_leaves_no_file(folder: Folder) -> None:
    folder.start(worth_bytes=1 << 40)
    assert folder.lines == []
    assert not folder.kept.exists()


def test_which_dtype_a_gpu_gets() -> None:
    assert [gpu_dtype("auto", gpu) for gpu in (AMPERE, HOPPER, BLACKWELL)] == ["bf16", "fp8", "fp8"]
    for dtype in ("bf16", "fp8", "mxfp8"):
        assert gpu_dtype(dtype, HOPPER) == dtype
    with pytest.raises(CheckpointError, match=r"9\.0 or higher, this one has 8\.0"):
        gpu_dtype("fp8", AMPERE)
    with pytest.raises(CheckpointError, match="a GPU runs no fp32"):
        gpu_dtype("fp32", HOPPER)


def test_what_keys_and_values_are_kept_in() -> None:
    assert [gpu_kv_dtype(kind, HOPPER) for kind in ("bf16", "fp8")] == ["bf16", "fp8"]
    assert [gpu_kv_dtype(kind, AMPERE) for kind in ("auto", "bf16")] == ["bf16", "bf16"]
    assert gpu_kv_dtype("auto", HOPPER) in ("bf16", "fp8")
    with pytest.raises(CheckpointError, match=r"8\.9 or higher, this one has 8\.0"):
        gpu_kv_dtype("fp8", AMPERE)
    with pytest.raises(CheckpointError, match="kept in fp4"):
        gpu_kv_dtype("fp4", HOPPER)
    for kind, refusal in (("fp8", "kv-dtype fp8 takes a GPU"), ("fp4", "no kv-dtype is called")):
        with pytest.raises(CheckpointError, match=refusal):
            load_model(EngineConfig(BUILTIN_VOICE, "cpu", kv_dtype=kind), lambda _line: None)


def test_emulated_mxfp8_is_said_so() -> None:
    assert "emulated" in dtype_note("mxfp8", HOPPER)
    assert dtype_note("mxfp8", BLACKWELL) == dtype_note("fp8", HOPPER) == ""


@pytest.mark.parametrize("dtype", ["bf16", "fp8", "mxfp8"])
def test_a_cpu_has_no_quantised_weights(dtype: str) -> None:
    with pytest.raises(CheckpointError, match=f"dtype {dtype} takes a GPU; on a CPU it is fp32"):
        load_model(EngineConfig(BUILTIN_VOICE, "cpu", dtype), lambda _line: None)


def test_an_unknown_dtype_is_refused_by_name() -> None:
    with pytest.raises(CheckpointError, match="no dtype is called 'fp4'"):
        load_model(EngineConfig(BUILTIN_VOICE, "cpu", "fp4"), lambda _line: None)

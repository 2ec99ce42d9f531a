from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from shoal.engine.checkpoint import CheckpointError
from shoal.engine.model.config import read_config
from shoal.engine.model.weights import expected_shapes, load_weights

DATA = Path(__file__).parents[1] / "data"
BUILTIN = Path(__file__).parents[2] / "engine" / "builtin_voice"
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")

Weights = dict[str, Tensor]


def s2_weights() -> Weights:
    return {
        key: value for shard in SHARDS for key, value in load_file(DATA / "s2_tiny" / shard).items()
    }


def s2_folder(tmp_path: Path, change: Callable[[Weights], object]) -> Path:
    """A one-file checkpoint of the S2 layout with changed weights."""
    weights = s2_weights()
    change(weights)
    save_file(weights, tmp_path / "model.safetensors")
    shutil.copy(DATA / "s2_tiny" / "config.json", tmp_path)
    return tmp_path


def flat_folder(tmp_path: Path, change: Callable[[Weights], object]) -> Path:
    weights = torch.load(DATA / "s1_tiny" / "model.pth", weights_only=True)
    changed = change(weights)
    torch.save(changed if isinstance(changed, dict) else weights, tmp_path / "model.pth")
    shutil.copy(DATA / "s1_tiny" / "config.json", tmp_path)
    return tmp_path


def load(folder: Path) -> Weights:
    return load_weights(folder, read_config(folder))


def test_shards_become_canonical_names_and_tell_of_their_progress() -> None:
    said: list[str] = []
    config = read_config(DATA / "s2_tiny")
    weights = load_weights(DATA / "s2_tiny", config, progress=said.append)
    assert {k: tuple(v.shape) for k, v in weights.items()} == expected_shapes(config)
    on_disk = s2_weights()
    for ours, theirs in {
        "embeddings.weight": "text_model.model.embeddings.weight",
        "codebook_embeddings.weight": "audio_decoder.codebook_embeddings.weight",
        "fast_embeddings.weight": "audio_decoder.embeddings.weight",
        "fast_layers.1.attention.wo.weight": "audio_decoder.layers.1.attention.wo.weight",
        "layers.2.attention.q_norm.weight": "text_model.model.layers.2.attention.q_norm.weight",
    }.items():
        assert torch.equal(weights[ours], on_disk[theirs])
    assert said == [f"reading {name} ({n} of 2)" for n, name in enumerate(SHARDS, 1)]


def test_s2_pro_has_the_published_number_of_parameters(tmp_path: Path) -> None:
    raw = json.loads((DATA / "s2_tiny" / "config.json").read_text())
    stack = {"dim": 2560, "n_head": 32, "n_local_heads": 8, "head_dim": 128}
    raw["text_config"] |= stack | {"vocab_size": 155776, "n_layer": 36, "intermediate_size": 9728}
    raw["audio_decoder_config"] |= stack | {"text_dim": 2560, "vocab_size": 4096, "n_layer": 4}
    raw["audio_decoder_config"]["intermediate_size"] = 9728
    raw |= {"semantic_start_token_id": 151678, "semantic_end_token_id": 155773}
    (tmp_path / "config.json").write_text(json.dumps(raw))
    shapes = expected_shapes(read_config(tmp_path))
    assert sum(torch.Size(shape).numel() for shape in shapes.values()) == 4_561_852_416


def test_the_built_in_voice_loads() -> None:
    weights = load(BUILTIN)
    assert sum(tensor.numel() for tensor in weights.values()) == 9_657_088
    assert weights["fast_layers.0.attention.q_norm.weight"].shape == (64,)


def test_a_single_file_is_the_same_as_shards(tmp_path: Path) -> None:
    one, many = load(s2_folder(tmp_path, lambda _: None)), load(DATA / "s2_tiny")
    assert one.keys() == many.keys()
    assert all(torch.equal(one[key], many[key]) for key in one)


Q_NORM = "text_model.model.layers.0.attention.q_norm.weight"
BROKEN: list[tuple[str, Callable[[Weights], object], str]] = [
    ("missing", lambda w: w.pop(Q_NORM), rf"missing weight {Q_NORM}"),
    (
        "missing fast",
        lambda w: w.pop("audio_decoder.layers.1.feed_forward.w2.weight"),
        r"missing weight audio_decoder\.layers\.1\.feed_forward\.w2\.weight, shape \[64, 96\]",
    ),
    (
        "missing table",
        lambda w: w.pop("audio_decoder.codebook_embeddings.weight"),
        r"missing weight audio_decoder\.codebook_embeddings\.weight",
    ),
    (
        "extra",
        lambda w: w.update({"text_model.model.layers.9.ffn_norm.weight": torch.ones(64)}),
        r"unexpected weight text_model\.model\.layers\.9\.ffn_norm\.weight",
    ),
    ("stray", lambda w: w.update(lm_head=torch.ones(2)), r"unexpected weight lm_head"),
    (
        "stray that looks canonical",
        lambda w: w.update({"norm.weight": torch.ones(64)}),
        r"unexpected weight norm\.weight",
    ),
    (
        "shape",
        lambda w: w.update({Q_NORM: torch.ones(16)}),
        rf"weight {Q_NORM} has shape \[16\], expected \[32\]",
    ),
    (
        "transposed",
        lambda w: w.update({"audio_decoder.output.weight": torch.ones(64, 65)}),
        r"audio_decoder\.output\.weight has shape \[64, 65\], expected \[64, 64\]",
    ),
    (
        "integers",
        lambda w: w.update({Q_NORM: torch.ones(32, dtype=torch.int64)}),
        rf"weight {Q_NORM} is torch\.int64",
    ),
]


@pytest.mark.parametrize(("name", "change", "complaint"), BROKEN, ids=[b[0] for b in BROKEN])
def test_a_wrong_weight_is_named_as_on_disk(
    name: str, change: Callable[[Weights], object], complaint: str, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=complaint):
        load(s2_folder(tmp_path, change))


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors.index.json", SHARDS[0]):
        shutil.copy(DATA / "s2_tiny" / name, tmp_path)
    with pytest.raises(CheckpointError, match=SHARDS[1]):
        load(tmp_path)


def test_a_cut_shard_is_named(tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors.index.json", *SHARDS):
        shutil.copy(DATA / "s2_tiny" / name, tmp_path)
    shard = tmp_path / SHARDS[1]
    shard.chmod(0o644)
    shard.write_bytes(shard.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match=SHARDS[1]):
        load(tmp_path)


def test_an_index_may_not_point_elsewhere(tmp_path: Path) -> None:
    shutil.copy(DATA / "s2_tiny" / "config.json", tmp_path)
    index = {"weight_map": {"x": "../model.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match="beside"):
        load(tmp_path)


def test_no_weights_at_all_says_what_was_looked_for(tmp_path: Path) -> None:
    shutil.copy(DATA / "s2_tiny" / "config.json", tmp_path)
    with pytest.raises(CheckpointError, match=r"model\.pth"):
        load(tmp_path)


# The older layout ---------------------------------------------------------------------------------


def test_flat_layout_loads() -> None:
    weights = load(DATA / "s1_tiny")
    assert weights["output.weight"].shape == (344, 64)
    assert "fast_output.weight" in weights


def test_flat_files_are_unwrapped_and_other_towers_dropped(tmp_path: Path) -> None:
    def wrap(weights: Weights) -> dict[str, Weights]:
        items = {f"model.{key}": value for key, value in weights.items()}
        return {"state_dict": items | {"model.audio_projector.weight": torch.ones(3)}}

    weights, plain = load(flat_folder(tmp_path, wrap)), load(DATA / "s1_tiny")
    assert weights.keys() == plain.keys()
    assert all(torch.equal(weights[key], plain[key]) for key in plain)


def test_split_projections_are_fused(tmp_path: Path) -> None:
    def split(weights: Weights) -> None:
        fused = weights.pop("layers.1.attention.wqkv.weight")
        for letter, rows in zip("qkv", fused.split([128, 64, 64]), strict=True):
            weights[f"layers.1.attention.w{letter}.weight"] = rows.clone()

    weights, plain = load(flat_folder(tmp_path, split)), load(DATA / "s1_tiny")
    key = "layers.1.attention.wqkv.weight"
    assert torch.equal(weights[key], plain[key])


def test_half_of_a_split_projection_is_named(tmp_path: Path) -> None:
    def split(weights: Weights) -> None:
        fused = weights.pop("layers.1.attention.wqkv.weight")
        weights["layers.1.attention.wq.weight"] = fused[:128].clone()

    with pytest.raises(CheckpointError, match=r"layers\.1\.attention\.wq\.weight"):
        load(flat_folder(tmp_path, split))


def test_a_missing_flat_weight_is_named(tmp_path: Path) -> None:
    folder = flat_folder(tmp_path, lambda weights: weights.pop("fast_norm.weight"))
    with pytest.raises(CheckpointError, match=r"missing weight fast_norm\.weight"):
        load(folder)


@pytest.mark.parametrize("content", [b"", b"not a pickle", b"PK\x03\x04 neither"])
def test_a_broken_pickle_is_named(content: bytes, tmp_path: Path) -> None:
    shutil.copy(DATA / "s1_tiny" / "config.json", tmp_path)
    (tmp_path / "model.pth").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"model\.pth"):
        load(tmp_path)


def test_a_projection_between_stacks_of_different_width_is_expected(tmp_path: Path) -> None:
    raw = json.loads((DATA / "s1_tiny" / "config.json").read_text()) | {"fast_dim": 32}
    (tmp_path / "config.json").write_text(json.dumps(raw))
    shapes = expected_shapes(read_config(tmp_path))
    assert shapes["fast_project_in.weight"] == (32, 64)
    assert shapes["fast_project_in.bias"] == (32,)
    assert "fast_project_in.weight" not in expected_shapes(read_config(DATA / "s1_tiny"))

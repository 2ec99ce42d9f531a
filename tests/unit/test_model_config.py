from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shoal.engine.checkpoint import CheckpointError
from shoal.engine.model.config import DualARConfig, StackConfig, read_config

DATA = Path(__file__).parents[1] / "data"
BUILTIN = Path(__file__).parents[2] / "engine" / "builtin_voice"


def changed(tmp_path: Path, name: str, change: Callable[[dict[str, Any]], object]) -> Path:
    raw = json.loads((DATA / name / "config.json").read_text())
    change(raw)
    (tmp_path / "config.json").write_text(json.dumps(raw))
    return tmp_path


def test_s2_layout() -> None:
    assert read_config(DATA / "s2_tiny") == DualARConfig(
        layout="s2",
        vocab_size=344,
        codebooks=10,
        codebook_size=64,
        max_seq_len=4096,
        rope_base=1e6,
        norm_eps=1e-6,
        slow=StackConfig(3, 64, 4, 2, 32, 160, True),
        fast=StackConfig(2, 64, 4, 2, 16, 96, False),
        tied_head=True,
        scale_embeddings=True,
        norm_fast_input=True,
        semantic_begin=275,
        end_token=265,
    )


def test_flat_layout() -> None:
    config = read_config(DATA / "s1_tiny")
    assert (config.layout, config.tied_head, config.norm_fast_input) == ("flat", False, False)
    assert config.scale_embeddings
    assert config.slow == StackConfig(3, 64, 4, 2, 32, 160, True)
    assert config.fast == StackConfig(2, 64, 4, 2, 16, 96, False)


def test_the_built_in_voice_norms_queries_and_keys_of_both_stacks() -> None:
    config = read_config(BUILTIN)
    assert config.slow.qk_norm and config.fast.qk_norm
    assert (config.rope_base, config.max_seq_len) == (10000.0, 2048)


def test_null_fast_fields_inherit_the_slow_ones(tmp_path: Path) -> None:
    def nulls(raw: dict[str, Any]) -> None:
        for key in raw:
            if key.startswith("fast_"):
                raw[key] = None
        raw["intermediate_size"] = None
        raw["n_local_heads"] = -1

    config = read_config(changed(tmp_path, "s1_tiny", nulls))
    assert config.slow == StackConfig(3, 64, 4, 4, 32, 256, True)
    assert config.fast == StackConfig(2, 64, 4, 4, 32, 256, True)


def test_absent_head_dim_and_kv_heads(tmp_path: Path) -> None:
    def drop(raw: dict[str, Any]) -> None:
        del raw["text_config"]["head_dim"], raw["text_config"]["n_local_heads"]

    slow = read_config(changed(tmp_path, "s2_tiny", drop)).slow
    assert (slow.head_dim, slow.kv_heads) == (16, 4)


Change = Callable[[dict[str, Any]], object]
WRONG: list[tuple[str, Change, str]] = [
    ("s2_tiny", lambda raw: raw.update(model_type="llama"), "llama"),
    ("s2_tiny", lambda raw: raw.pop("model_type"), "model_type"),
    ("s2_tiny", lambda raw: raw.pop("text_config"), "text_config"),
    ("s2_tiny", lambda raw: raw["text_config"].pop("dim"), "dim must be an integer"),
    ("s2_tiny", lambda raw: raw["text_config"].update(dim="64"), "dim must be an integer"),
    ("s2_tiny", lambda raw: raw["text_config"].update(dim=True), "dim must be an integer"),
    ("s2_tiny", lambda raw: raw["text_config"].update(n_layer=0), "n_layer must be at least 1"),
    ("s2_tiny", lambda raw: raw["text_config"].update(n_head=-4), "n_head must be at least 1"),
    ("s2_tiny", lambda raw: raw["text_config"].update(n_local_heads=3), "no multiple"),
    ("s2_tiny", lambda raw: raw["text_config"].update(head_dim=33), "must be even"),
    ("s2_tiny", lambda raw: raw["text_config"].update(rope_base="big"), "rope_base"),
    ("s2_tiny", lambda raw: raw["text_config"].update(rope_base=0), "rope_base"),
    ("s2_tiny", lambda raw: raw["text_config"].update(use_moe=True), "use_moe"),
    ("s2_tiny", lambda raw: raw["text_config"].update(attention_qk_norm=1), "attention_qk_norm"),
    ("s2_tiny", lambda raw: raw["text_config"].update(attention_o_bias=True), "attention_o_bias"),
    ("s2_tiny", lambda raw: raw["audio_decoder_config"].update(text_dim=32), "text_dim"),
    ("s2_tiny", lambda raw: raw["audio_decoder_config"].update(num_codebooks=1), "num_codebooks"),
    ("s2_tiny", lambda raw: raw.update(semantic_end_token_id=300), "codebook_size"),
    ("s1_tiny", lambda raw: raw.update(fast_attention_qkv_bias=True), "qkv_bias"),
    ("s1_tiny", lambda raw: raw.pop("codebook_size"), "codebook_size"),
]


@pytest.mark.parametrize(("name", "change", "complaint"), WRONG, ids=[w[2] for w in WRONG])
def test_what_is_wrong_is_named(name: str, change: Change, complaint: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=complaint):
        read_config(changed(tmp_path, name, change))


@pytest.mark.parametrize("content", [None, "", "[]", "{"])
def test_a_config_that_is_none_is_named(content: str | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"config\.json"):
        read_config(tmp_path)


def test_semantic_ids_come_from_the_tokenizer_and_else_from_the_config() -> None:
    config = read_config(DATA / "s2_tiny")
    assert config.semantic_ids(range(100, 164)) == range(100, 164)
    assert config.semantic_ids(None) == range(275, 339)
    with pytest.raises(CheckpointError, match="63 semantic tokens"):
        config.semantic_ids(range(100, 163))
    with pytest.raises(CheckpointError, match="outside the vocabulary"):
        config.semantic_ids(range(300, 364))
    with pytest.raises(CheckpointError, match="neither"):
        read_config(DATA / "s1_tiny").semantic_ids(None)

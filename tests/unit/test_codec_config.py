from __future__ import annotations

import json
from pathlib import Path

import pytest

from shoal.engine.codec.config import CodecConfig, CodecError, parse_config, read_config

TINY = Path(__file__).parents[1] / "data" / "s2_tiny"


def test_absent_file_means_s2(tmp_path: Path) -> None:
    config = read_config(tmp_path)
    assert config == CodecConfig()
    assert (config.sample_rate, config.frame_samples, config.codebooks) == (44100, 2048, 10)
    assert config.steps_per_frame == 4
    assert config.code_limits == (4095,) + (1023,) * 9
    last = config.encoder_transformer(3)
    assert last is not None
    assert (last.layers, last.dim, last.heads, last.intermediate, last.window) == (
        4,
        1024,
        16,
        3072,
        512,
    )
    assert config.encoder_transformer(0) is None


def test_the_tiny_checkpoint_s_config() -> None:
    config = read_config(TINY)
    assert config.frame_samples == 2048
    assert config.pre_post.window == 16
    assert config.pre_post.head_dim == 64
    assert config.quantizer.latent_dim == 128
    assert config.encoder_transformer_layers == (0, 0, 0, 2)


def test_absent_fields_keep_their_s2_value() -> None:
    config = parse_config({"sample_rate": 24000, "quantizer": {"n_codebooks": 7}})
    assert config.sample_rate == 24000
    assert config.codebooks == 8
    assert config.quantizer.codebook_size == 1024
    assert config.decoder_dim == 1536


@pytest.mark.parametrize(
    ("raw", "names"),
    [
        ([], "object"),
        ({"quantizer": 3}, "quantizer"),
        ({"sample_rate": "24k"}, "sample_rate"),
        ({"sample_rate": 0}, "sample_rate"),
        ({"sample_rate": True}, "sample_rate"),
        ({"encoder_rates": []}, "encoder_rates"),
        ({"encoder_rates": [2, 0, 8, 8]}, "encoder_rates"),
        ({"pre_post_module": {"norm_eps": -1}}, "pre_post_module.norm_eps"),
        ({"pre_post_module": {"windows": 8}}, "pre_post_module.windows"),
        ({"pre_post_module": {"head_dim": 32}}, "head_dim"),
        ({"pre_post_module": {"n_head": 3}}, "n_head"),
        ({"pre_post_module": {"dim": 512}}, "dim"),
        ({"sampel_rate": 24000}, "sampel_rate"),
        ({"decoder_rates": [8, 8, 4, 4]}, "decoder_rates"),
        ({"decoder_dim": 100}, "decoder_dim"),
        ({"encoder_transformer_layers": [0, 4]}, "encoder_transformer_layers"),
        ({"transformer_general": {"head_dim": 48}}, "transformer_general.head_dim"),
    ],
)
def test_a_bad_field_is_named(raw: object, names: str) -> None:
    with pytest.raises(CodecError, match=names):
        parse_config(raw)


def test_a_file_that_is_not_json_is_named(tmp_path: Path) -> None:
    (tmp_path / "codec_config.json").write_text("{")
    with pytest.raises(CodecError, match=r"codec_config\.json cannot be read"):
        read_config(tmp_path)
    (tmp_path / "codec_config.json").write_text(json.dumps({"frame": 1}))
    with pytest.raises(CodecError, match=r"codec_config\.json: unknown field frame"):
        read_config(tmp_path)

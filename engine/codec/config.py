"""What shape a codec has, read from ``codec_config.json``.

Owns the sizes and their defaults (a field that is absent, or an absent file, means the public S2
codec). Knows nothing of weights. Any thread; everything is frozen.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any


class CodecError(Exception):
    """The codec's files are missing, damaged, or not those of a codec we know."""


@dataclass(frozen=True, slots=True)
class WindowShape:
    """A transformer whose query ``i`` sees keys ``i - window + 1 .. i``."""

    layers: int
    dim: int
    heads: int
    intermediate: int
    window: int
    rope_base: float = 10000.0
    norm_eps: float = 1e-5

    @property
    def head_dim(self) -> int:
        return self.dim // self.heads


@dataclass(frozen=True, slots=True)
class QuantizerShape:
    """One semantic codebook, then ``residual_books`` residual ones."""

    latent_dim: int = 1024
    residual_books: int = 9
    codebook_size: int = 1024
    semantic_codebook_size: int = 4096
    code_dim: int = 8
    downsample: tuple[int, ...] = (2, 2)


@dataclass(frozen=True, slots=True)
class CodecConfig:
    """Sizes of the whole codec; the defaults are those of S2."""

    sample_rate: int = 44100
    encoder_dim: int = 64
    encoder_rates: tuple[int, ...] = (2, 4, 8, 8)
    encoder_transformer_layers: tuple[int, ...] = (0, 0, 0, 4)
    decoder_dim: int = 1536
    decoder_rates: tuple[int, ...] = (8, 8, 4, 2)
    quantizer: QuantizerShape = QuantizerShape()
    pre_post: WindowShape = WindowShape(8, 1024, 16, 3072, 128)
    encoder_head_dim: int = 64
    encoder_rope_base: float = 10000.0
    encoder_norm_eps: float = 1e-5
    encoder_window: int = 512

    @property
    def codebooks(self) -> int:
        """Codes a frame: the semantic one and the residual ones."""
        return 1 + self.quantizer.residual_books

    @property
    def steps_per_frame(self) -> int:
        """Steps of the convolution stacks' slow end in one code frame."""
        return math.prod(self.quantizer.downsample)

    @property
    def frame_samples(self) -> int:
        return math.prod(self.encoder_rates) * self.steps_per_frame

    @property
    def code_limits(self) -> tuple[int, ...]:
        """The largest valid code of each codebook."""
        q = self.quantizer
        return (q.semantic_codebook_size - 1,) + (q.codebook_size - 1,) * q.residual_books

    def encoder_transformer(self, block: int) -> WindowShape | None:
        """The transformer at the end of encoder block ``block`` (from 0), if it has one."""
        layers = self.encoder_transformer_layers[block]
        dim = self.encoder_dim * 2 ** (block + 1)
        if not layers:
            return None
        return WindowShape(
            layers,
            dim,
            dim // self.encoder_head_dim,
            3 * dim,
            self.encoder_window,
            self.encoder_rope_base,
            self.encoder_norm_eps,
        )


# Names in the file, and the field of ours that each fills.
_TOP = {
    "sample_rate": "sample_rate",
    "encoder_dim": "encoder_dim",
    "encoder_rates": "encoder_rates",
    "encoder_transformer_layers": "encoder_transformer_layers",
    "decoder_dim": "decoder_dim",
    "decoder_rates": "decoder_rates",
}
_QUANTIZER = {
    "input_dim": "latent_dim",
    "n_codebooks": "residual_books",
    "codebook_size": "codebook_size",
    "semantic_codebook_size": "semantic_codebook_size",
    "codebook_dim": "code_dim",
    "downsample_factor": "downsample",
}
_PRE_POST = {
    "window_size": "window",
    "n_layer": "layers",
    "n_head": "heads",
    "dim": "dim",
    "intermediate_size": "intermediate",
    "rope_base": "rope_base",
    "norm_eps": "norm_eps",
}
_ENCODER_TRANSFORMER = {
    "head_dim": "encoder_head_dim",
    "rope_base": "encoder_rope_base",
    "norm_eps": "encoder_norm_eps",
    "window_size": "encoder_window",
}
_SECTIONS = ("quantizer", "pre_post_module", "transformer_general")
# In the reference's own configuration, but without weights or effect.
_DEAD = ("decoder_transformer_layers",)


def read_config(directory: Path) -> CodecConfig:
    """The config of the codec in ``directory``; S2's when it has no ``codec_config.json``.

    Raises CodecError for a file that is not JSON, a field of the wrong type, a field that nothing
    reads, and sizes that contradict each other.
    """
    path = directory / "codec_config.json"
    if not path.exists():
        return CodecConfig()
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise CodecError(f"{path} cannot be read: {error}") from error
    try:
        return parse_config(raw)
    except CodecError as error:
        raise CodecError(f"{path}: {error}") from None


def parse_config(raw: Any) -> CodecConfig:
    """``raw``: what ``codec_config.json`` holds. Raises CodecError like :func:`read_config`."""
    if not isinstance(raw, dict):
        raise CodecError("must hold an object")
    sections = {name: raw.get(name, {}) for name in _SECTIONS}
    for name, section in sections.items():
        if not isinstance(section, dict):
            raise CodecError(f"{name} must be an object")
    top = {k: v for k, v in raw.items() if k not in _SECTIONS and k not in _DEAD}
    default = CodecConfig()
    pre_post = dict(sections["pre_post_module"])
    head_dim = pre_post.pop("head_dim", None)
    config = CodecConfig(
        **_fill(default, top, _TOP, ""),
        **_fill(
            default,
            sections["transformer_general"],
            _ENCODER_TRANSFORMER,
            "transformer_general.",
        ),
        quantizer=QuantizerShape(
            **_fill(default.quantizer, sections["quantizer"], _QUANTIZER, "quantizer.")
        ),
        pre_post=WindowShape(**_complete(default.pre_post, pre_post)),
    )
    _check(config, head_dim)
    return config


def _complete(default: WindowShape, section: dict[str, Any]) -> dict[str, Any]:
    filled = {f.name: getattr(default, f.name) for f in fields(default)}
    return filled | _fill(default, section, _PRE_POST, "pre_post_module.")


def _fill(default: Any, section: dict[str, Any], names: dict[str, str], at: str) -> dict[str, Any]:
    """The given fields by our names, each checked against the type of its default."""
    filled: dict[str, Any] = {}
    for key, value in section.items():
        if key not in names:
            raise CodecError(f"unknown field {at}{key}")
        field = names[key]
        match getattr(default, field):
            case tuple():
                counts = field == "encoder_transformer_layers"
                if not _is_list_of_ints(value, least=0 if counts else 1):
                    raise CodecError(f"{at}{key} must be a list of positive whole numbers")
                filled[field] = tuple(value)
            case float():
                if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
                    raise CodecError(f"{at}{key} must be a positive number")
                filled[field] = float(value)
            case _:
                if not _is_list_of_ints([value], least=1):
                    raise CodecError(f"{at}{key} must be a positive whole number")
                filled[field] = value
    return filled


def _is_list_of_ints(value: Any, least: int) -> bool:
    return (
        isinstance(value, list)
        and len(value) > 0
        and all(type(item) is int and item >= least for item in value)
    )


def _check(config: CodecConfig, head_dim: Any) -> None:
    if math.prod(config.encoder_rates) != math.prod(config.decoder_rates):
        raise CodecError("encoder_rates and decoder_rates must have the same product")
    if len(config.encoder_transformer_layers) != len(config.encoder_rates):
        raise CodecError("encoder_transformer_layers needs one entry for each of encoder_rates")
    if config.decoder_dim % 2 ** len(config.decoder_rates):
        raise CodecError("decoder_dim must halve once for each of decoder_rates")
    if config.pre_post.dim != config.quantizer.latent_dim:
        raise CodecError("pre_post_module.dim must equal quantizer.input_dim")
    for block in range(len(config.encoder_rates)):
        shape = config.encoder_transformer(block)
        if shape is not None and shape.dim % config.encoder_head_dim:
            raise CodecError("transformer_general.head_dim must divide the encoder's width")
    if config.pre_post.dim % config.pre_post.heads or config.pre_post.head_dim % 2:
        raise CodecError("pre_post_module.n_head must divide dim into even heads")
    if head_dim not in (None, config.pre_post.head_dim):
        raise CodecError("pre_post_module.head_dim must be dim / n_head")

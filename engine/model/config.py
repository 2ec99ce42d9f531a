"""The shape of a DualAR model, read from ``config.json`` of either layout on disk.

Owns what each key means and which values are refused. Knows nothing of weights. No torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..checkpoint import (
    CheckpointError,
    bool_of,
    float_of,
    int_of,
    read_json,
    section_of,
)

S2_MODEL_TYPE = "fish_qwen3_omni"
FLAT_MODEL_TYPE = "dual_ar"


@dataclass(frozen=True, slots=True)
class StackConfig:
    """One transformer stack, slow or fast."""

    layers: int
    dim: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn_dim: int
    qk_norm: bool

    @property
    def qkv_dim(self) -> int:
        """Rows of the fused projection: queries, keys, values."""
        return (self.heads + 2 * self.kv_heads) * self.head_dim


@dataclass(frozen=True, slots=True)
class DualARConfig:
    """A DualAR model. ``rope_base`` and ``norm_eps`` hold for both stacks."""

    layout: Literal["s2", "flat"]
    vocab_size: int
    codebooks: int
    codebook_size: int
    max_seq_len: int
    rope_base: float
    norm_eps: float
    slow: StackConfig
    fast: StackConfig
    tied_head: bool
    scale_embeddings: bool
    """Divide the embedding of a frame by sqrt(codebooks + 1)."""
    norm_fast_input: bool
    """The fast stack is fed the slow stack's normed output, not its residual."""
    semantic_begin: int | None
    """From the config; a tokenizer that has semantic tokens overrides it."""
    end_token: int | None

    @property
    def projects_fast_input(self) -> bool:
        return self.slow.dim != self.fast.dim

    def semantic_ids(self, from_tokenizer: range | None) -> range:
        """The ids of the semantic tokens: one per code of the first codebook.

        Raises :class:`CheckpointError` when neither source has them, when their number is not
        ``codebook_size``, or when they lie outside the vocabulary.
        """
        if from_tokenizer is not None:
            ids = from_tokenizer
        elif self.semantic_begin is not None:
            ids = range(self.semantic_begin, self.semantic_begin + self.codebook_size)
        else:
            raise CheckpointError("neither tokenizer nor config.json has the semantic tokens")
        if len(ids) != self.codebook_size:
            raise CheckpointError(
                f"the tokenizer has {len(ids)} semantic tokens, "
                f"config.json says {self.codebook_size}"
            )
        if ids.start < 0 or ids.stop > self.vocab_size:
            raise CheckpointError(
                f"semantic tokens {ids.start}..{ids.stop - 1} lie outside the vocabulary "
                f"of {self.vocab_size}"
            )
        return ids


def read_config(directory: Path) -> DualARConfig:
    """``config.json`` of a checkpoint folder. Raises :class:`CheckpointError`."""
    path = directory / "config.json"
    raw = read_json(path)
    match raw.get("model_type"):
        case "fish_qwen3_omni":
            config = _s2(raw, str(path))
        case "dual_ar":
            config = _flat(raw, str(path))
        case other:
            raise CheckpointError(
                f"{path}: model_type {other!r} is unknown; "
                f"known are {S2_MODEL_TYPE} and {FLAT_MODEL_TYPE}"
            )
    _check(config, str(path))
    return config


def _s2(raw: Mapping[str, object], where: str) -> DualARConfig:
    text = section_of(raw, "text_config", where)
    audio = section_of(raw, "audio_decoder_config", where)
    text_where, audio_where = f"{where}: text_config", f"{where}: audio_decoder_config"
    slow = _stack(text, "", None, text_where)
    fast = _stack(audio, "", None, audio_where)
    text_dim = int_of(audio, "text_dim", slow.dim, audio_where)
    if text_dim != slow.dim:
        raise CheckpointError(
            f"{audio_where}: text_dim {text_dim} is not the slow stack's {slow.dim}"
        )
    codebook_size = int_of(audio, "vocab_size", None, audio_where)
    begin, end = raw.get("semantic_start_token_id"), raw.get("semantic_end_token_id")
    if begin is not None and end is not None:
        first = int_of(raw, "semantic_start_token_id", None, where)
        last = int_of(raw, "semantic_end_token_id", None, where)
        if last - first + 1 != codebook_size:
            raise CheckpointError(
                f"{where}: semantic tokens {first}..{last} are not codebook_size {codebook_size}"
            )
    return DualARConfig(
        layout="s2",
        vocab_size=int_of(text, "vocab_size", None, text_where),
        codebooks=int_of(audio, "num_codebooks", None, audio_where),
        codebook_size=codebook_size,
        max_seq_len=int_of(text, "max_seq_len", None, text_where),
        rope_base=float_of(text, "rope_base", None, text_where),
        norm_eps=float_of(text, "norm_eps", 1e-6, text_where),
        slow=slow,
        fast=fast,
        tied_head=bool_of(text, "tie_word_embeddings", True, text_where),
        scale_embeddings=True,
        norm_fast_input=True,
        semantic_begin=None
        if begin is None
        else int_of(raw, "semantic_start_token_id", None, where),
        end_token=None
        if raw.get("eos_token_id") is None
        else int_of(raw, "eos_token_id", None, where),
    )


def _flat(raw: Mapping[str, object], where: str) -> DualARConfig:
    slow = _stack(raw, "", None, where)
    return DualARConfig(
        layout="flat",
        vocab_size=int_of(raw, "vocab_size", None, where),
        codebooks=int_of(raw, "num_codebooks", None, where),
        codebook_size=int_of(raw, "codebook_size", None, where),
        max_seq_len=int_of(raw, "max_seq_len", None, where),
        rope_base=float_of(raw, "rope_base", None, where),
        norm_eps=float_of(raw, "norm_eps", 1e-5, where),
        slow=slow,
        fast=_stack(raw, "fast_", slow, where),
        tied_head=bool_of(raw, "tie_word_embeddings", True, where),
        scale_embeddings=bool_of(raw, "scale_codebook_embeddings", False, where),
        norm_fast_input=bool_of(raw, "norm_fastlayer_input", False, where),
        semantic_begin=None
        if raw.get("semantic_begin_id") is None
        else int_of(raw, "semantic_begin_id", None, where),
        end_token=None,
    )


def _stack(
    raw: Mapping[str, object], prefix: str, inherit: StackConfig | None, where: str
) -> StackConfig:
    """Keys with ``prefix``; what is absent or null there is taken from ``inherit``."""
    for key in ("attention_qkv_bias", "attention_o_bias"):
        if bool_of(raw, prefix + key, False, where):
            raise CheckpointError(f"{where}: {prefix}{key} true is not supported")
    if bool_of(raw, "use_moe", False, where):
        raise CheckpointError(f"{where}: use_moe true is not supported")
    dim = int_of(raw, f"{prefix}dim", inherit.dim if inherit else None, where)
    heads = int_of(raw, f"{prefix}n_head", inherit.heads if inherit else None, where)
    kv_heads = int_of(raw, f"{prefix}n_local_heads", inherit.kv_heads if inherit else -1, where)
    ffn_dim = 256 * -(-int(2 * 4 * dim / 3) // 256)
    head_dim = (inherit.head_dim if inherit else 0) or (dim // heads if heads > 0 else 0)
    return StackConfig(
        layers=int_of(raw, f"n_{prefix}layer", inherit.layers if inherit else None, where),
        dim=dim,
        heads=heads,
        kv_heads=heads if kv_heads == -1 else kv_heads,
        head_dim=int_of(raw, f"{prefix}head_dim", head_dim, where),
        ffn_dim=int_of(
            raw, f"{prefix}intermediate_size", inherit.ffn_dim if inherit else ffn_dim, where
        ),
        qk_norm=bool_of(
            raw, f"{prefix}attention_qk_norm", inherit.qk_norm if inherit else False, where
        ),
    )


def _check(config: DualARConfig, where: str) -> None:
    counts = {
        "vocab_size": config.vocab_size,
        "num_codebooks": config.codebooks,
        "codebook_size": config.codebook_size,
        "max_seq_len": config.max_seq_len,
    }
    for name, stack in (("slow", config.slow), ("fast", config.fast)):
        counts |= {
            f"{name} n_layer": stack.layers,
            f"{name} dim": stack.dim,
            f"{name} n_head": stack.heads,
            f"{name} n_local_heads": stack.kv_heads,
            f"{name} head_dim": stack.head_dim,
            f"{name} intermediate_size": stack.ffn_dim,
        }
    for key, value in counts.items():
        if value < 1:
            raise CheckpointError(f"{where}: {key} must be at least 1, is {value}")
    for name, stack in (("slow", config.slow), ("fast", config.fast)):
        if stack.heads % stack.kv_heads:
            raise CheckpointError(
                f"{where}: {name} n_head {stack.heads} is no multiple of "
                f"n_local_heads {stack.kv_heads}"
            )
        if stack.head_dim % 2:
            raise CheckpointError(f"{where}: {name} head_dim {stack.head_dim} must be even")
    if config.codebooks < 2:
        raise CheckpointError(f"{where}: num_codebooks must be at least 2, is {config.codebooks}")
    if config.rope_base <= 1.0 or config.norm_eps <= 0.0:
        raise CheckpointError(f"{where}: rope_base and norm_eps must be above 1 and 0")

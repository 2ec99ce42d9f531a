"""Models of random weights in the real shapes, for measuring where no checkpoint is at hand.

Owns the S2 Pro shape and what stands in for its files: weights drawn on the device, a byte
tokenizer with S2's control tokens at S2's ids, a random codec. What such a model says is noise, and
it hardly ever ends by itself; how long everything takes is real.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .codec import Codec
from .codec.config import CodecConfig
from .codec.load import codec_of, expected_shapes
from .cuda.load import GpuDtype, placed_weights
from .model.config import DualARConfig, StackConfig
from .model.weights import expected_shapes as model_shapes
from .tokenizer import Tokenizer

if TYPE_CHECKING:
    from .cuda.weights import CudaWeights

PREFIX = "random:"

_SEMANTIC_BEGIN = 151_678
_CONTROLS = {
    "<|endoftext|>": 151_643,
    "<|im_start|>": 151_644,
    "<|im_end|>": 151_645,
    "<|pad|>": 151_669,
    "<|voice|>": 151_673,
}

S2_PRO = DualARConfig(
    layout="s2",
    vocab_size=155_776,
    codebooks=10,
    codebook_size=4096,
    max_seq_len=32_768,
    rope_base=1_000_000.0,
    norm_eps=1e-6,
    slow=StackConfig(36, 2560, 32, 8, 128, 9728, qk_norm=True),
    fast=StackConfig(4, 2560, 32, 8, 128, 9728, qk_norm=False),
    tied_head=True,
    scale_embeddings=True,
    norm_fast_input=True,
    semantic_begin=_SEMANTIC_BEGIN,
    end_token=151_645,
)
SHAPES = {"s2-pro": S2_PRO}


def random_weights(config: DualARConfig, device: torch.device, seed: int = 0) -> dict[str, Tensor]:
    """bf16 weights under their canonical names, of a size that keeps activations near 1.

    Magnitudes differ from block to block, as trained weights' do: scales that are mixed up then
    show.
    """
    generator = torch.Generator(device).manual_seed(seed)
    weights: dict[str, Tensor] = {}
    for name, shape in model_shapes(config).items():
        if name.endswith("norm.weight"):
            weights[name] = torch.ones(shape, dtype=torch.bfloat16, device=device)
            continue
        scale = 1.0 / math.sqrt(shape[-1]) if len(shape) > 1 and "embed" not in name else 0.02
        drawn = torch.empty(shape, dtype=torch.bfloat16, device=device)
        weights[name] = drawn.normal_(0.0, scale, generator=generator)
        if len(shape) == 2 and shape[0] % 128 == 0:
            loud = torch.randint(-1, 2, (shape[0] // 128, 1, 1), device=device, generator=generator)
            weights[name].view(shape[0] // 128, 128, -1).mul_(torch.pow(2.0, loud))
    return weights


def random_cuda_weights(
    config: DualARConfig, device: torch.device, dtype: GpuDtype = "fp8"
) -> CudaWeights:
    """``random_weights`` as the kernels want them, for ``byte_tokenizer``."""
    drawn = random_weights(config, device)
    return placed_weights(config, drawn, byte_tokenizer(config), dtype, device, lambda _line: None)


def random_codec(device: torch.device, seed: int = 0) -> Codec:
    """A codec of S2's shape."""
    generator = torch.Generator(device).manual_seed(seed)
    config = CodecConfig()
    tensors: dict[str, Tensor] = {}
    for name, shape in expected_shapes(config).items():
        fan = math.prod(shape[1:]) if len(shape) > 1 else 1
        drawn = torch.empty(shape, device=device).normal_(generator=generator)
        tensors[name] = drawn / math.sqrt(max(1, fan)) if len(shape) > 1 else drawn.abs() + 0.5
    return codec_of(config, tensors, device)


def byte_tokenizer(config: DualARConfig) -> Tokenizer:
    """Bytes as ids 0..255, control and semantic tokens where S2 has them."""
    added = dict(_CONTROLS)
    for code in range(config.codebook_size):
        added[f"<|semantic:{code}|>"] = _SEMANTIC_BEGIN + code
    return Tokenizer(lambda text: list(text.encode("utf-8", "replace")), added)

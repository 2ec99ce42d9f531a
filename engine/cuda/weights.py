"""A DualAR's weights on the device, in the form its kernels want.

Owns the fusing of projections, the cut of the head to its candidates, and which stack is in bf16
and which in the wanted dtype. Called once at start.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from shoal.kernels.pages import Heads

from ..model.config import DualARConfig, StackConfig
from ..model.dual_ar import rope_table
from .product import Dtype, Product, narrowed
from .weight_cache import WeightCache


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """One block. Norms bf16 [dim]; products [out, in]; ``gate_up`` has the gate's rows first."""

    attention_norm: Tensor
    qkv: Product
    out: Product
    ffn_norm: Tensor
    gate_up: Product
    down: Product
    heads: Heads


@dataclass(frozen=True, slots=True, eq=False)
class StackWeights:
    """One transformer. ``head`` is the product behind its final norm."""

    config: StackConfig
    layers: tuple[Layer, ...]
    norm: Tensor
    head: Product
    eps: float


@dataclass(frozen=True, slots=True, eq=False)
class CudaWeights:
    """Everything a decode step reads. Tables bf16."""

    codebooks: int
    codebook_size: int
    semantic_begin: int
    end_token: int
    embedding_scale: float
    norm_fast_input: bool
    embeddings: Tensor
    codebook_embeddings: Tensor
    end_row: Tensor
    """bf16 [1, dim]: the head's row of the end token, kept apart so that the rest is a power of
    two."""
    fast_embeddings: Tensor
    fast_project: tuple[Tensor, Tensor] | None
    slow: StackWeights
    """As decode reads it, in the wanted dtype."""
    prefill: StackWeights
    """The slow stack that prompts are read with: in FP8 the same, else in bf16."""
    fast: StackWeights


def with_products(weights: CudaWeights, changed: Callable[[Product], Product]) -> CudaWeights:
    """``weights`` with ``changed`` of every product's weight, both heads included."""

    def of_stack(stack: StackWeights) -> StackWeights:
        layers = tuple(
            replace(
                layer,
                qkv=changed(layer.qkv),
                out=changed(layer.out),
                gate_up=changed(layer.gate_up),
                down=changed(layer.down),
            )
            for layer in stack.layers
        )
        return replace(stack, layers=layers, head=changed(stack.head))

    return replace(weights, slow=of_stack(weights.slow), fast=of_stack(weights.fast))


def device_weights(
    config: DualARConfig,
    weights: Mapping[str, Tensor],
    semantic: range,
    end_token: int,
    *,
    dtype: Dtype,
    device: torch.device,
    progress: Callable[[str], None] | None = None,
    cache: WeightCache | None = None,
) -> CudaWeights:
    """Move ``weights`` (canonical names) to ``device``. Raises ``ValueError`` for shapes that the
    quantised kernels cannot serve, and for a weight whose quantised blocks are not its own.

    ``cache``: quantised weights of an earlier start are taken from it, and new ones left in it.
    """
    say = progress or (lambda _line: None)

    def take(key: str) -> Tensor:
        taken = weights[key].to(device=device, dtype=torch.bfloat16).contiguous()
        # What lies in a file's memory may begin anywhere; the copy engine reads from whole lines.
        return taken.clone() if taken.data_ptr() % 16 else taken

    def product(name: str, weight: Tensor) -> Product:
        return weight if dtype == "bf16" else narrowed(name, weight, dtype, cache)

    embeddings = take("embeddings.weight")
    head = embeddings if config.tied_head else take("output.weight")
    semantic_head = head[semantic.start : semantic.stop].contiguous()
    end_row = head[end_token : end_token + 1].contiguous()
    say("slow stack")
    wide = _stack(config, config.slow, "layers", config.max_seq_len, take, lambda _, w: w, device)
    slow_layers = wide
    if dtype != "bf16":
        slow_layers = tuple(_narrow(f"layers.{i}", at, product) for i, at in enumerate(wide))
    norm = take("norm.weight")
    say("fast stack")
    fast_wide = _stack(config, config.fast, "fast_layers", config.codebooks, take, product, device)
    project = None
    if config.projects_fast_input:
        project = (take("fast_project_in.weight"), take("fast_project_in.bias"))
    slow = StackWeights(
        config.slow, slow_layers, norm, product("head", semantic_head), config.norm_eps
    )
    placed = CudaWeights(
        codebooks=config.codebooks,
        codebook_size=config.codebook_size,
        semantic_begin=semantic.start,
        end_token=end_token,
        embedding_scale=math.sqrt(config.codebooks + 1) if config.scale_embeddings else 1.0,
        norm_fast_input=config.norm_fast_input,
        embeddings=embeddings,
        codebook_embeddings=take("codebook_embeddings.weight"),
        end_row=end_row,
        fast_embeddings=take("fast_embeddings.weight"),
        fast_project=project,
        slow=slow,
        prefill=slow
        if dtype == "fp8"
        else StackWeights(config.slow, wide, norm, semantic_head, config.norm_eps),
        fast=StackWeights(
            config.fast,
            fast_wide,
            take("fast_norm.weight"),
            product("fast_head", take("fast_output.weight")),
            config.norm_eps,
        ),
    )
    if cache is not None and dtype != "bf16":
        cache.save()
    return placed


def _narrow(at: str, layer: Layer, product: Callable[[str, Tensor], Product]) -> Layer:
    def again(name: str, weight: Product) -> Product:
        if not isinstance(weight, Tensor):
            raise TypeError("a quantised weight is not quantised again")
        return product(f"{at}.{name}", weight)

    return Layer(
        attention_norm=layer.attention_norm,
        qkv=again("wqkv", layer.qkv),
        out=again("wo", layer.out),
        ffn_norm=layer.ffn_norm,
        gate_up=again("w1w3", layer.gate_up),
        down=again("w2", layer.down),
        heads=layer.heads,
    )


def _stack(
    config: DualARConfig,
    stack: StackConfig,
    prefix: str,
    positions: int,
    take: Callable[[str], Tensor],
    product: Callable[[str, Tensor], Product],
    device: torch.device,
) -> tuple[Layer, ...]:
    turns = torch.view_as_real(rope_table(positions, stack.head_dim, config.rope_base))
    rope = (
        turns[..., 0].to(device, torch.bfloat16).contiguous(),
        turns[..., 1].to(device, torch.bfloat16).contiguous(),
    )
    layers: list[Layer] = []
    for index in range(stack.layers):
        at = f"{prefix}.{index}"
        gate_up = torch.cat(
            [take(f"{at}.feed_forward.w1.weight"), take(f"{at}.feed_forward.w3.weight")]
        )
        qk = (None, None)
        if stack.qk_norm:
            qk = (take(f"{at}.attention.q_norm.weight"), take(f"{at}.attention.k_norm.weight"))
        layers.append(
            Layer(
                attention_norm=take(f"{at}.attention_norm.weight"),
                qkv=product(f"{at}.wqkv", take(f"{at}.attention.wqkv.weight")),
                out=product(f"{at}.wo", take(f"{at}.attention.wo.weight")),
                ffn_norm=take(f"{at}.ffn_norm.weight"),
                gate_up=product(f"{at}.w1w3", gate_up),
                down=product(f"{at}.w2", take(f"{at}.feed_forward.w2.weight")),
                heads=Heads(
                    queries=stack.heads,
                    keys=stack.kv_heads,
                    dim=stack.head_dim,
                    eps=config.norm_eps,
                    rope=rope,
                    query_weight=qk[0],
                    key_weight=qk[1],
                ),
            )
        )
    return tuple(layers)

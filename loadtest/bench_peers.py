"""What other ways of running the same frame cost: the peers of ``bench_step``, in its process.

*frame*: a whole frame of S2 Pro's shape as one CUDA graph in plain torch - 36 slow layers over
contiguous keys with SDPA, a draw, ten fast passes of 4 layers with a draw each, head cut to its
candidates - in bf16 (cuBLAS), in block-scaled FP8 (1x128 by 128x128, torch's own), and either with
each layer under ``torch.compile``. *chain*: one layer's four products alone, with weights that come
from memory, in these and DeepGEMM. Random weights; every peer that cannot run says why.
"""

# pyright: basic
# Torch's stubs are too loose for more.

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from shoal.engine.model.config import DualARConfig, StackConfig

from .bench_clock import captured, replay_ms

Weight = tuple[Tensor, ...]
ROTATED_BYTES = 190_000_000
"""More than three times the L2 cache: weights then come from memory."""
TOP_K = 30
DEEP_GEMM = "deep_gemm"


def run_ms(run: Callable[[], object]) -> float:
    """Milliseconds of ``run`` replayed as a CUDA graph, the median; on a CPU of one plain call."""
    run()
    if torch.cuda.is_available():
        return replay_ms(captured(run))
    begun = time.perf_counter()
    run()
    return (time.perf_counter() - begun) * 1e3


# Products -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Product:
    """A way to multiply: what it makes of a random weight [N, K], and rows times that."""

    make: Callable[[int, int, torch.device], Weight]
    apply: Callable[[Tensor, Weight], Tensor]
    multiple: int = 1
    """Rows must be a multiple of it."""

    def rows(self, batch: int) -> int:
        return -(-batch // self.multiple) * self.multiple


def bf16_weight(n: int, k: int, device: torch.device) -> Weight:
    return (torch.randn(n, k, device=device, dtype=torch.bfloat16) * k**-0.5,)


def bf16_apply(x: Tensor, weight: Weight) -> Tensor:
    return F.linear(x, weight[0])


def fp8_weight(n: int, k: int, device: torch.device) -> Weight:
    """e4m3 [N, K] and fp32 scales [N / 128, K / 128]."""
    blocks = bf16_weight(n, k, device)[0].float().view(n // 128, 128, k // 128, 128)
    scales = blocks.abs().amax((1, 3)) / 448.0
    return (blocks / scales[:, None, :, None]).to(torch.float8_e4m3fn).view(n, k), scales


def fp8_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """e4m3 [M, K] and fp32 scales [M, K / 128] whose columns are contiguous."""
    groups = x.float().view(x.shape[0], -1, 128)
    top = groups.abs().amax(-1).clamp(min=1e-10)
    rows = (groups * (448.0 / top)[..., None]).to(torch.float8_e4m3fn).view(x.shape)
    return rows, (top / 448.0).t().contiguous().t()


def torch_fp8_weight(n: int, k: int, device: torch.device) -> Weight:
    """As cuBLASLt wants it: K's scales contiguous and in fours."""
    values, scales = fp8_weight(n, k, device)
    return values.t(), F.pad(scales, (0, -(k // 128) % 4)).contiguous().t()


def torch_fp8_apply(x: Tensor, weight: Weight) -> Tensor:
    rows, scales = fp8_rows(x)
    kind = F.ScalingType
    return F.scaled_mm(
        rows,
        weight[0],
        scales,
        kind.BlockWise1x128,
        weight[1],
        kind.BlockWise128x128,
        output_dtype=torch.bfloat16,
    )


def deep_gemm_apply(x: Tensor, weight: Weight) -> Tensor:
    """Raises ImportError where it is not installed, and what it raises where it cannot run."""
    out = torch.empty(x.shape[0], weight[0].shape[0], device=x.device, dtype=torch.bfloat16)
    importlib.import_module(DEEP_GEMM).fp8_gemm_nt(fp8_rows(x), weight, out)
    return out


BF16 = Product(bf16_weight, bf16_apply)
BLOCK_FP8 = Product(torch_fp8_weight, torch_fp8_apply, multiple=4)
DEEP_GEMM_FP8 = Product(fp8_weight, deep_gemm_apply)


# A frame ------------------------------------------------------------------------------------------


class TorchLayer:
    """One layer's tensors. Keys [rows, kv heads, positions, dim]."""

    def __init__(
        self,
        config: StackConfig,
        product: Product,
        rows: int,
        positions: int,
        device: torch.device,
    ) -> None:
        shapes = (
            (config.qkv_dim, config.dim),
            (config.dim, config.heads * config.head_dim),
            (2 * config.ffn_dim, config.dim),
            (config.dim, config.ffn_dim),
        )
        self.weights = tuple(product.make(n, k, device) for n, k in shapes)
        self.norms = tuple(
            torch.ones(width, device=device, dtype=torch.bfloat16)
            for width in (config.dim, config.dim, config.head_dim, config.head_dim)
        )
        shape = (rows, config.kv_heads, positions, config.head_dim)
        self.keys = torch.randn(shape, device=device, dtype=torch.bfloat16)
        self.values = torch.randn(shape, device=device, dtype=torch.bfloat16)


def layer_forward(
    x: Tensor,
    config: StackConfig,
    apply: Callable[[Tensor, Weight], Tensor],
    weights: tuple[Weight, ...],
    norms: tuple[Tensor, ...],
    keys: Tensor,
    values: Tensor,
    length: int,
    position: Tensor,
    hidden: Tensor | None,
    cos: Tensor,
    sin: Tensor,
) -> Tensor:
    """[rows, dim] in and out; the key and value of ``position`` int64 [1] are written, the first
    ``length`` attended to, less those that ``hidden`` [length] hides."""
    m, dim = x.shape
    qkv = apply(F.rms_norm(x, (dim,), norms[0], 1e-6), weights[0])
    q, k, v = qkv.view(m, -1, config.head_dim).split(
        [config.heads, config.kv_heads, config.kv_heads], 1
    )
    if config.qk_norm:
        q = F.rms_norm(q, (config.head_dim,), norms[2], 1e-6)
        k = F.rms_norm(k, (config.head_dim,), norms[3], 1e-6)
    keys.index_copy_(2, position, rotated(k, cos, sin)[:, :, None])
    values.index_copy_(2, position, v[:, :, None])
    attended = F.scaled_dot_product_attention(
        rotated(q, cos, sin)[:, :, None],
        keys[:, :, :length],
        values[:, :, :length],
        attn_mask=hidden,
        enable_gqa=True,
    )
    x = x + apply(attended.reshape(m, -1), weights[1])
    gate, up = apply(F.rms_norm(x, (dim,), norms[1], 1e-6), weights[2]).chunk(2, -1)
    return x + apply(F.silu(gate) * up, weights[3])


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Interleaved pairs turned; cos and sin [dim / 2]."""
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack([even * cos - odd * sin, odd * cos + even * sin], -1).flatten(-2)


def drawn(logits: Tensor) -> Tensor:
    """Top-k, then a race: int64 [rows]."""
    best, index = logits.float().topk(TOP_K, -1)
    noise = torch.empty_like(best).exponential_()
    return index.gather(1, (best.softmax(-1) / noise).argmax(-1, keepdim=True))[:, 0]


class TorchFrame:
    """A frame of ``rows`` rows behind ``context`` positions."""

    def __init__(
        self,
        config: DualARConfig,
        product: Product,
        rows: int,
        context: int,
        device: torch.device,
        *,
        compiled: bool = False,
    ) -> None:
        slow, fast, books = config.slow, config.fast, config.codebooks
        self.config = config
        self.context = context
        self.apply = product.apply
        # One variant of compiled code serves every pass if those to come are masked, not cut off.
        self.masked = compiled
        self.forward = torch.compile(layer_forward, dynamic=False) if compiled else layer_forward
        self.x = torch.randn(rows, slow.dim, device=device, dtype=torch.bfloat16)
        self.slow = [
            TorchLayer(slow, product, rows, context + 1, device) for _ in range(slow.layers)
        ]
        self.fast = [TorchLayer(fast, product, rows, books, device) for _ in range(fast.layers)]
        self.head = product.make(config.codebook_size, slow.dim, device)
        self.fast_head = product.make(config.codebook_size, fast.dim, device)
        table = (config.codebook_size, fast.dim)
        self.embeddings = torch.randn(table, device=device, dtype=torch.bfloat16)
        half = torch.randn(2, slow.head_dim // 2, device=device).bfloat16()
        self.turn = (half[0], half[1])
        self.positions = torch.arange(max(books, context + 1), device=device)
        later = (
            torch.arange(books, device=device)[None] > torch.arange(books, device=device)[:, None]
        )
        self.hidden = torch.zeros(books, books, device=device, dtype=torch.bfloat16)
        self.hidden.masked_fill_(later, -torch.inf)

    def run(self) -> Tensor:
        """int64 [rows]: the last codebook's codes."""
        x = self._stack(self.slow, self.config.slow, self.x, self.context, None)
        code = drawn(self.apply(x, self.head))
        for book in range(self.config.codebooks):
            hidden = self.hidden[book : book + 1] if self.masked else None
            x = self._stack(self.fast, self.config.fast, x, book, hidden)
            if book:
                code = drawn(self.apply(x, self.fast_head))
            x = self.embeddings[code]
        return code

    def _stack(
        self,
        layers: Sequence[TorchLayer],
        config: StackConfig,
        x: Tensor,
        position: int,
        hidden: Tensor | None,
    ) -> Tensor:
        length = position + 1 if hidden is None else hidden.shape[1]
        at = self.positions[position : position + 1]
        for layer in layers:
            caches = (layer.keys, layer.values)
            x = self.forward(
                x, config, self.apply, layer.weights, layer.norms, *caches, length, at, hidden,
                *self.turn,
            )  # fmt: skip
        return x


KINDS: dict[str, tuple[Product, bool]] = {
    "torch bf16": (BF16, False),
    "torch block FP8": (BLOCK_FP8, False),
    "torch.compile bf16": (BF16, True),
    "torch.compile block FP8": (BLOCK_FP8, True),
}


def frames(
    config: DualARConfig,
    batches: Sequence[int],
    context: int,
    device: torch.device,
    kinds: Sequence[str] = tuple(KINDS),
) -> list[dict[str, Any]]:
    """Milliseconds of a frame, a row a kind and batch; None and the reason where it cannot run."""
    found: list[dict[str, Any]] = []
    for kind in kinds:
        product, compiled = KINDS[kind]
        for batch in batches:

            def timed(batch: int = batch, product: Product = product, compiled: bool = compiled):
                rows = product.rows(batch)
                frame = TorchFrame(config, product, rows, context, device, compiled=compiled)
                return run_ms(frame.run)

            found.append({"peer": kind, "batch": batch, **_outcome(timed, "step_ms", 3)})
            _next_peer(found[-1])
    return found


def chains(
    config: StackConfig, batches: Sequence[int], device: torch.device
) -> list[dict[str, Any]]:
    """Microseconds of one layer's four products, quantising their inputs included."""
    peers = {**KINDS, "DeepGEMM": (DEEP_GEMM_FP8, False)}
    found: list[dict[str, Any]] = []
    for name, (product, compiled) in peers.items():
        for batch in batches:

            def timed(batch: int = batch, product: Product = product, compiled: bool = compiled):
                return _chain_us(config, product, product.rows(batch), device, compiled)

            found.append({"peer": name, "batch": batch, **_outcome(timed, "layer_us", 1)})
            _next_peer(found[-1])
    return found


def chain_forward(
    inputs: Sequence[Tensor],
    weights: Sequence[Weight],
    apply: Callable[[Tensor, Weight], Tensor],
) -> list[Tensor]:
    return [apply(x, weight) for x, weight in zip(inputs, weights, strict=True)]


def _chain_us(
    config: StackConfig, product: Product, rows: int, device: torch.device, compiled: bool
) -> float:
    layers = [TorchLayer(config, product, 1, 1, device)]
    size = sum(tensor.nbytes for weight in layers[0].weights for tensor in weight)
    while len(layers) * size < ROTATED_BYTES or len(layers) < 2:
        layers.append(TorchLayer(config, product, 1, 1, device))
    widths = (config.dim, config.heads * config.head_dim, config.dim, config.ffn_dim)
    inputs = [torch.randn(rows, k, device=device, dtype=torch.bfloat16) for k in widths]
    forward = torch.compile(chain_forward, dynamic=False) if compiled else chain_forward

    def run() -> None:
        for layer in layers:
            forward(inputs, layer.weights, product.apply)

    return run_ms(run) * 1e3 / len(layers)


def _next_peer(result: dict[str, Any]) -> None:
    print(f"  {result}", flush=True)
    if torch.cuda.is_available():
        torch.compiler.reset()
        torch.cuda.empty_cache()


def _outcome(timed: Callable[[], float], figure: str, digits: int) -> dict[str, Any]:
    """One peer's time. It is others' code, whatever that raises is its result."""
    try:
        return {figure: round(timed(), digits)}
    except ImportError:
        return {figure: None, "why": "not available"}
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        return {figure: None, "why": f"{type(error).__name__}: {lines[0][:160]}"}

"""One transformer stack over the rows of a step, as the list of kernels that a graph records.

Owns the buffers between kernels and their order: in FP8, in bf16 (around cuBLAS, or around products
whose rows have the same bits in every bucket), in MXFP8. What attention reads and writes is the
caller's: it is handed the projection and fills the output. Buffers are allocated at construction
and never in a run.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from shoal.kernels.bf16_gemm import bf16_gemm, wide_tile_for
from shoal.kernels.gemm import gemm_partials, gemm_rows
from shoal.kernels.mxfp8 import Mx, gemm_mx, quantise_mx, swiglu_mx
from shoal.kernels.norm import NormedRows, add_norm, whole_norm
from shoal.kernels.quantise import Fp8Rows, Fp8Weight, quantise
from shoal.kernels.sampler import FastInput
from shoal.kernels.swiglu import swiglu
from shoal.kernels.tiles import rows_tile, tile_for

from .product import Product, is_mx_native
from .weights import Layer, StackWeights

Attend = Callable[[int, Layer, Tensor, NormedRows | None, "Tensor | Fp8Rows"], None]
"""(layer index, layer, projection [S, M, qkv], rows whose factor is still due, output to fill)."""


class Bf16Stack:
    """Plain products. ``residual`` bf16 [rows, dim] goes in, ``normed`` [rows, dim] comes out."""

    def __init__(
        self, weights: StackWeights, rows: int, device: torch.device, fixed: bool = False
    ) -> None:
        """``fixed``: a row has the same bits in any company and any bucket, which no BLAS promises.
        There are no logits then."""
        config = weights.config
        first = weights.layers[0]
        self._fixed = fixed

        def buffer(width: int) -> Tensor:
            return torch.zeros(rows, width, dtype=torch.bfloat16, device=device)

        def product(weight: Product) -> Tensor:
            n, k = wide(weight).shape
            splits = wide_tile_for(n, k, rows).splits if fixed else 1
            kind = torch.float32 if splits > 1 else torch.bfloat16
            return torch.zeros(splits, rows, n, dtype=kind, device=device)

        self._weights = weights
        self.residual = buffer(config.dim)
        self.normed = buffer(config.dim)
        self._qkv = product(first.qkv)
        self._attended = buffer(config.heads * config.head_dim)
        self._out = product(first.out)
        # Its consumer takes rows: one split, whatever the number of chunks.
        self._hidden = buffer(2 * config.ffn_dim).unsqueeze(0)
        self._gated = buffer(config.ffn_dim)
        self._down = product(first.down)
        self._logits = None if fixed else product(weights.head)

    def run(self, attend: Attend, *, begun: bool = False) -> None:
        """The whole stack. ``begun`` is the FP8 stack's."""
        weights, residual, normed = self._weights, self.residual, self.normed
        norms = [*(layer.attention_norm for layer in weights.layers), weights.norm]
        whole_norm(residual, norms[0], normed, weights.eps)
        for index, layer in enumerate(weights.layers):
            self._multiply(normed, layer.qkv, self._qkv)
            attend(index, layer, self._qkv, None, self._attended)
            self._multiply(self._attended, layer.out, self._out)
            whole_norm(residual, layer.ffn_norm, normed, weights.eps, self._out)
            self._multiply(normed, layer.gate_up, self._hidden)
            swiglu(self._hidden[0], self._gated)
            self._multiply(self._gated, layer.down, self._down)
            whole_norm(residual, norms[index + 1], normed, weights.eps, self._down)

    def logits(self, normed: Tensor) -> Tensor:
        """[1, R, candidates] bf16 of ``normed`` [R, dim], R at most the stack's rows."""
        assert self._logits is not None, "a stack of fixed sums draws nothing"
        out = self._logits[:, : normed.shape[0]]
        self._multiply(normed, self._weights.head, out)
        return out

    def embedded(self, _table: Tensor) -> FastInput | None:
        """A bf16 stack begins with its own norm."""
        return None

    def _multiply(self, x: Tensor, weight: Product, out: Tensor) -> None:
        if self._fixed:
            bf16_gemm(x, wide(weight), out)
        else:
            torch.mm(x, wide(weight).t(), out=out[0])


class Fp8Stack:
    """Block-scaled FP8 products whose partial sums the kernel behind them adds."""

    def __init__(
        self, weights: StackWeights, rows: int, device: torch.device, pdl: bool = False
    ) -> None:
        """``pdl``: programmatic dependent launch, a kernel's programs are placed while the one
        before it ends."""
        config = weights.config
        self._weights = weights
        self._pdl = pdl
        first = weights.layers[0]
        attended = config.heads * config.head_dim

        def partials(weight: Product) -> Tensor:
            n, k = narrow(weight).n, narrow(weight).k
            splits = tile_for(n, k, rows).splits
            return torch.zeros(splits, rows, n, dtype=torch.float32, device=device)

        def buffer(width: int) -> Tensor:
            return torch.zeros(rows, width, dtype=torch.bfloat16, device=device)

        self.residual = buffer(config.dim)
        self.normed = buffer(config.dim)
        self._rows = rows
        self._between = NormedRows.empty(rows, config.dim, device)
        self._qkv = partials(first.qkv)
        self._attended = Fp8Rows.empty(rows, attended, device)
        # Heads of 128 are a quantisation group each; others are quantised in a launch of their own.
        self._attended_wide = None if config.head_dim == 128 else buffer(attended)
        self._out = partials(first.out)
        self._hidden = buffer(2 * config.ffn_dim)
        self._gated = Fp8Rows.empty(rows, config.ffn_dim, device)
        self._down = partials(first.down)
        self._head_rows = Fp8Rows.empty(rows, config.dim, device)
        self._logits: dict[int, Tensor] = {}
        for count in {rows, rows // 2} - {0}:
            head = narrow(weights.head)
            splits = tile_for(head.n, head.k, count).splits
            self._logits[count] = torch.zeros(
                splits, count, head.n, dtype=torch.float32, device=device
            )

    def run(self, attend: Attend, *, begun: bool = False) -> None:
        """The whole stack. ``begun``: what :meth:`embedded` names was filled already."""
        weights, residual, between = self._weights, self.residual, self._between
        layers = weights.layers
        if not begun:
            add_norm(residual, layers[0].attention_norm, between, pdl=self._pdl)
        for index, layer in enumerate(layers):
            self._multiply(between, layer.qkv, self._qkv)
            if self._attended_wide is None:
                attend(index, layer, self._qkv, between, self._attended)
            else:
                attend(index, layer, self._qkv, between, self._attended_wide)
                quantise(self._attended_wide, self._attended, pdl=self._pdl)
            self._multiply(self._attended, layer.out, self._out)
            add_norm(residual, layer.ffn_norm, between, self._out, pdl=self._pdl)
            gemm_rows(
                between,
                narrow(layer.gate_up),
                self._hidden,
                rows_tile(self._rows),
                eps=weights.eps,
                pdl=self._pdl,
            )
            swiglu(self._hidden, self._gated, pdl=self._pdl)
            self._multiply(self._gated, layer.down, self._down)
            if index + 1 < len(layers):
                add_norm(
                    residual, layers[index + 1].attention_norm, between, self._down, pdl=self._pdl
                )
        whole_norm(residual, weights.norm, self.normed, weights.eps, self._down, pdl=self._pdl)

    def logits(self, normed: Tensor) -> Tensor:
        """[S, R, candidates] fp32, to be added, of ``normed`` [R, dim]; R is all rows or half."""
        count = normed.shape[0]
        rows = self._head_rows.narrow(0, count)
        quantise(normed, rows, pdl=self._pdl)
        out = self._logits[count]
        self._multiply(rows, self._weights.head, out)
        return out

    def embedded(self, table: Tensor) -> FastInput:
        """Where a draw may leave the embedding of its code from ``table``, normed and quantised."""
        norm = self._weights.layers[0].attention_norm
        return FastInput(table, self.residual, norm, self._between)

    def _multiply(self, x: Fp8Rows | NormedRows, weight: Product, out: Tensor) -> None:
        fp8 = narrow(weight)
        gemm_partials(x, fp8, out, tile_for(fp8.n, fp8.k, out.shape[1]), pdl=self._pdl)


class MxStack:
    """MXFP8 products of bf16 rows, quantised before each. Attention stays in bf16.

    The matrix unit's own where the device has it. Where it is emulated, every product runs in the
    tile of 64 rows, so that a row has the same bits in every bucket.
    """

    def __init__(self, weights: StackWeights, rows: int, device: torch.device) -> None:
        config = weights.config
        attended = config.heads * config.head_dim

        def buffer(width: int) -> Tensor:
            return torch.zeros(rows, width, dtype=torch.bfloat16, device=device)

        self._weights = weights
        self._native = is_mx_native(device)
        self.residual = buffer(config.dim)
        self.normed = buffer(config.dim)
        self._normed_rows = Mx.empty(rows, config.dim, device=device)
        self._qkv = buffer(config.qkv_dim)
        self._attended = buffer(attended)
        self._attended_rows = Mx.empty(rows, attended, device=device)
        self._delta = buffer(config.dim)
        self._hidden = buffer(2 * config.ffn_dim)
        self._gated = Mx.empty(rows, config.ffn_dim, device=device)
        self._logits = buffer(blocks_of_32(weights.head).values.shape[0]).unsqueeze(0)

    def run(self, attend: Attend, *, begun: bool = False) -> None:
        """The whole stack. ``begun`` is the FP8 stack's."""
        weights, residual, normed = self._weights, self.residual, self.normed
        norms = [*(layer.attention_norm for layer in weights.layers), weights.norm]
        whole_norm(residual, norms[0], normed, weights.eps)
        delta = self._delta.unsqueeze(0)
        for index, layer in enumerate(weights.layers):
            quantise_mx(normed, self._normed_rows)
            self._multiply(self._normed_rows, layer.qkv, self._qkv)
            attend(index, layer, self._qkv.unsqueeze(0), None, self._attended)
            quantise_mx(self._attended, self._attended_rows)
            self._multiply(self._attended_rows, layer.out, self._delta)
            whole_norm(residual, layer.ffn_norm, normed, weights.eps, delta)
            quantise_mx(normed, self._normed_rows)
            self._multiply(self._normed_rows, layer.gate_up, self._hidden)
            swiglu_mx(self._hidden, self._gated)
            self._multiply(self._gated, layer.down, self._delta)
            whole_norm(residual, norms[index + 1], normed, weights.eps, delta)

    def logits(self, normed: Tensor) -> Tensor:
        """[1, R, candidates] bf16 of ``normed`` [R, dim], R at most the stack's rows."""
        count = normed.shape[0]
        rows = Mx(self._normed_rows.values[:count], self._normed_rows.scales[:count])
        quantise_mx(normed, rows)
        out = self._logits[:, :count]
        self._multiply(rows, self._weights.head, out[0])
        return out

    def embedded(self, _table: Tensor) -> FastInput | None:
        """An MXFP8 stack begins with its own norm."""
        return None

    def _multiply(self, x: Mx, weight: Product, out: Tensor) -> None:
        gemm_mx(x, blocks_of_32(weight), out, native=self._native)


StackRun = Bf16Stack | Fp8Stack | MxStack


def make_stack(
    weights: StackWeights,
    rows: int,
    device: torch.device,
    pdl: bool = False,
    *,
    fixed: bool = False,
) -> StackRun:
    """The stack that goes with the weights' dtype. ``pdl`` is the FP8 stack's; ``fixed`` the bf16
    one's: of the others a row has the same bits in any company anyway."""
    if isinstance(weights.head, Fp8Weight):
        return Fp8Stack(weights, rows, device, pdl)
    if isinstance(weights.head, Mx):
        return MxStack(weights, rows, device)
    return Bf16Stack(weights, rows, device, fixed)


def wide(weight: Product) -> Tensor:
    """The bf16 weight."""
    if not isinstance(weight, Tensor):
        raise TypeError("this stack multiplies in bf16")
    return weight


def narrow(weight: Product) -> Fp8Weight:
    """The FP8 weight."""
    if not isinstance(weight, Fp8Weight):
        raise TypeError("this stack multiplies in FP8")
    return weight


def blocks_of_32(weight: Product) -> Mx:
    """The MXFP8 weight."""
    if not isinstance(weight, Mx):
        raise TypeError("this stack multiplies in MXFP8")
    return weight

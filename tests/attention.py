"""What tests of attention kernels share: heads, and rows to put through them. Imported after the
module that decides whether Triton interprets."""

from __future__ import annotations

import torch

from shoal.kernels.heads import rope_tables
from shoal.kernels.pages import Heads

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
EPS = 1e-6


def relative(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a.double() - b.double()).norm() / b.double().norm())


def random(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def make_heads(dim: int, qk_norm: bool, queries: int = 8, keys: int = 2) -> Heads:
    weights = [1 + 0.2 * random(dim, seed=s) for s in (1, 2)]
    return Heads(
        queries,
        keys,
        dim,
        EPS,
        rope_tables(2304, dim, 1e6, DEVICE),
        weights[0].bfloat16() if qk_norm else None,
        weights[1].bfloat16() if qk_norm else None,
    )

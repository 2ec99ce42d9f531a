"""Keys or values in pages: bf16, or e4m3 with a scale for each token and head, and plain torch on
them.

A page is ``[kv heads, page, head dim]``, so the tokens of a page lie together for each head; a
page is a multiple of 32 tokens. Scales lie likewise, a line of them beside a head's tokens. They
are fp32: of 132 bytes they are four, a copy to shared memory takes no fewer at once, and no value
that bf16 can hold is out of their range.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .rounding import FP8, FP8_MAX


@dataclass(frozen=True, slots=True, eq=False)
class Fp8Pages:
    """``values`` e4m3 [pages, kv heads, page, D], ``scales`` fp32 [pages, kv heads, page]:
    what is kept is their product."""

    values: torch.Tensor
    scales: torch.Tensor


Pages = torch.Tensor | Fp8Pages
"""bf16 [pages, kv heads, page, D], or the same in FP8."""


def page_values(pages: Pages) -> torch.Tensor:
    """[pages, kv heads, page, D], bf16 or e4m3."""
    return pages.values if isinstance(pages, Fp8Pages) else pages


def page_scales(pages: Pages) -> torch.Tensor:
    """fp32 [pages, kv heads, page]; of bf16 pages something that is not read."""
    return pages.scales if isinstance(pages, Fp8Pages) else pages


def check_pages(keys: Pages, values: Pages, heads: int, dim: int) -> bool:
    """Whether they are FP8. ValueError for pages that the kernels cannot serve."""
    narrow = isinstance(keys, Fp8Pages)
    if narrow != isinstance(values, Fp8Pages):
        raise ValueError("keys and values are not of one kind")
    k, v = page_values(keys), page_values(values)
    shape = (k.shape[0], heads, k.shape[2], dim)
    if k.shape != shape or v.shape != shape or k.shape[2] % 32:
        raise ValueError(
            f"keys {tuple(k.shape)} and values {tuple(v.shape)} are not "
            f"[pages, {heads}, a multiple of 32, {dim}]"
        )
    for part in (keys, values):
        if isinstance(part, Fp8Pages) and (
            part.scales.shape != shape[:3] or not part.scales.is_contiguous()
        ):
            raise ValueError(f"scales {tuple(part.scales.shape)} are not {shape[:3]} in order")
    return narrow


def gather_pages(pages: torch.Tensor, table: torch.Tensor, tokens: int) -> torch.Tensor:
    """[tokens, HKV, ...]: a context out of pages [pages, HKV, page, ...]."""
    return pages[table.long()].transpose(1, 2).flatten(0, 1)[:tokens]


def gather_wide(pages: Pages, table: torch.Tensor, tokens: int) -> torch.Tensor:
    """fp32 [tokens, HKV, D]: what a context's pages stand for."""
    if not isinstance(pages, Fp8Pages):
        return gather_pages(pages, table, tokens).float()
    narrow = Fp8Pages(pages.values[table.long()], pages.scales[table.long()])
    return dequantise_heads(narrow).transpose(1, 2).flatten(0, 1)[:tokens]


def quantise_heads(x: torch.Tensor) -> Fp8Pages:
    """[..., D] to e4m3 [..., D] and fp32 scales [...], by the formula of the kernels."""
    top = x.float().abs().amax(-1).clamp(min=1e-10)
    # A scalar over a tensor would be a reciprocal and a product: another rounding.
    inverse = torch.full_like(top, FP8_MAX) / top
    scaled = (x.float() * inverse[..., None]).clamp(-FP8_MAX, FP8_MAX)
    return Fp8Pages(scaled.to(FP8), top * (1 / FP8_MAX))


def dequantise_heads(pages: Fp8Pages) -> torch.Tensor:
    """fp32 [..., D]."""
    return pages.values.float() * pages.scales[..., None]

"""The slow stack's keys and values on the device, in bf16 or in FP8 with their scales.

Owns the memory and what a page of it takes. Knows nothing of whose pages they are. Allocated once;
written by the kernels of decode and prefill.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from shoal.kernels.kv import Fp8Pages, Pages
from shoal.kernels.rounding import FP8

KvDtype = Literal["bf16", "fp8"]
_SCALE_BYTES = 4


@dataclass(frozen=True, slots=True, eq=False)
class KvPool:
    """``keys`` and ``values`` [layers, pages, kv heads, page tokens, head dim], bf16 or e4m3; of
    e4m3 a scale for each token and head, fp32 [layers, pages, kv heads, page tokens].

    The last page is scratch: rows without a context of their own write there.
    """

    keys: Tensor
    values: Tensor
    key_scales: Tensor | None = None
    value_scales: Tensor | None = None

    @property
    def scratch_page(self) -> int:
        """The page that nobody reads."""
        return self.keys.shape[1] - 1

    @property
    def parts(self) -> tuple[Tensor, ...]:
        """All there is of a page, each [layers, pages, ...]."""
        if self.key_scales is None or self.value_scales is None:
            return self.keys, self.values
        return self.keys, self.values, self.key_scales, self.value_scales

    @staticmethod
    def empty(
        layers: int,
        pages: int,
        kv_heads: int,
        page_tokens: int,
        dim: int,
        device: torch.device,
        dtype: KvDtype = "bf16",
    ) -> KvPool:
        """``pages`` to hand out, plus the scratch page."""

        tokens = (layers, pages + 1, kv_heads, page_tokens)
        kind = FP8 if dtype == "fp8" else torch.bfloat16
        keys, values = (torch.zeros(*tokens, dim, dtype=kind, device=device) for _ in "kv")
        if dtype == "bf16":
            return KvPool(keys, values)
        scales = (torch.zeros(tokens, dtype=torch.float32, device=device) for _ in "kv")
        return KvPool(keys, values, *scales)

    def layer(self, index: int) -> tuple[Pages, Pages]:
        """Keys and values of one layer, as attention takes them."""
        keys, values = self.keys[index], self.values[index]
        if self.key_scales is None or self.value_scales is None:
            return keys, values
        scales = self.key_scales[index], self.value_scales[index]
        return Fp8Pages(keys, scales[0]), Fp8Pages(values, scales[1])

    def copy_page(self, source: int, target: int) -> None:
        """Copy one page in every layer. On the current stream."""
        for part in self.parts:
            part[:, target].copy_(part[:, source])


def page_bytes(
    layers: int, kv_heads: int, page_tokens: int, dim: int, dtype: KvDtype = "bf16"
) -> int:
    """What a page takes of all layers, scales included."""
    each = dim + _SCALE_BYTES if dtype == "fp8" else 2 * dim
    return 2 * layers * kv_heads * page_tokens * each

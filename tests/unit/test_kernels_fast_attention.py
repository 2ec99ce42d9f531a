"""The fast stack's attention against plain torch."""

from __future__ import annotations

import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before the first kernel is imported

from shoal.kernels.fast_attention import fast_attention
from shoal.kernels.heads import heads_reference
from shoal.kernels.pages import attention_reference
from shoal.kernels.quantise import Fp8Rows, dequantise_rows
from tests.attention import DEVICE, EPS, make_heads, random, relative


@pytest.mark.parametrize(("dim", "qk_norm"), [(128, False), (64, True)])
def test_fast_attention_with_its_first_two_positions_merged(dim: int, qk_norm: bool) -> None:
    heads = make_heads(dim, qk_norm)
    m, steps, parts = 3, 4, 2
    qkv = random(steps, parts, m, 12 * dim, seed=9)
    keys, values = (torch.full((m, 2, 16, dim), float("nan")).bfloat16().to(DEVICE) for _ in "kv")

    def run(position: int, projected: torch.Tensor, tokens: int) -> torch.Tensor:
        rows = projected.shape[1]
        out = torch.full((rows, 8 * dim), float("nan"), device=DEVICE).bfloat16()
        work = (keys, values, position)
        fast_attention(projected, None, heads, *work, out, tokens=tokens)
        if dim == 128:
            quantised = Fp8Rows.empty(rows, 8 * dim, DEVICE)
            fast_attention(projected, None, heads, *work, quantised, tokens=tokens)
            assert relative(dequantise_rows(quantised), out) < 0.032
        return out

    merged = run(0, torch.cat([qkv[0], qkv[1]], 1).contiguous(), 2)
    later = [run(p, qkv[p], 1) for p in range(2, steps)]
    got = torch.cat([merged.view(2, m, -1), torch.stack(later)])

    x = qkv.sum(1).bfloat16().view(steps, m, 12, dim)
    at = torch.arange(steps, device=DEVICE)
    for row in range(m):
        q = heads_reference(x[:, row, :8], heads.query_weight, heads.rope, at, EPS)
        k = heads_reference(x[:, row, 8:10], heads.key_weight, heads.rope, at, EPS)
        expected = attention_reference(q, k, x[:, row, 10:], 0).flatten(1)
        assert relative(got[:, row], expected) < 5e-3

    before = keys.clone()
    one_by_one = [run(p, qkv[p], 1) for p in range(2)]
    assert torch.equal(torch.stack(one_by_one), merged.view(2, m, -1))
    assert torch.equal(keys[:, :, :2], before[:, :, :2])


def test_heads_that_are_no_group_are_refused() -> None:
    heads = make_heads(64, False)
    cache = torch.zeros(2, 2, 32, 64, dtype=torch.bfloat16, device=DEVICE)
    rows, out = torch.zeros(1, 1, 512, device=DEVICE), Fp8Rows.empty(1, 512, DEVICE)
    with pytest.raises(ValueError, match="no quantisation group"):
        fast_attention(rows, None, heads, cache, cache, 0, out)

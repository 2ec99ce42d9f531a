"""The window transformer against plain attention over the whole sequence."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.engine.codec.config import WindowShape
from shoal.engine.codec.state import StatePlan, StreamState
from shoal.engine.codec.window import BlockWeights, WindowTransformer

CPU = torch.device("cpu")
SHAPE = WindowShape(layers=2, dim=32, heads=2, intermediate=48, window=8)


def weights() -> tuple[list[BlockWeights], Tensor]:
    generator = torch.Generator().manual_seed(1)

    def matrix(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator) / shape[-1] ** 0.5

    def vector(n: int) -> Tensor:
        return torch.rand(n, generator=generator) + 0.5

    d, f = SHAPE.dim, SHAPE.intermediate
    blocks = [
        BlockWeights(
            matrix(3 * d, d),
            matrix(d, d),
            matrix(f, d),
            matrix(d, f),
            matrix(f, d),
            vector(d),
            vector(d),
            vector(d),
            vector(d),
        )
        for _ in range(SHAPE.layers)
    ]
    return blocks, vector(d)


def reference_table(positions: int) -> Tensor:
    """The reference's rotary table: single precision throughout, then bfloat16."""
    exponent = torch.arange(0, SHAPE.head_dim, 2)[: SHAPE.head_dim // 2].float() / SHAPE.head_dim
    angle = torch.outer(torch.arange(positions), 1.0 / (10000.0**exponent))
    turns = torch.polar(torch.ones_like(angle), angle)
    return torch.stack((turns.real, turns.imag), -1).bfloat16()


def plain(x: Tensor) -> Tensor:
    """x [L, dim] through the formulas, with a mask over the whole sequence."""
    blocks, norm = weights()
    length, heads, eps = x.shape[0], SHAPE.heads, SHAPE.norm_eps
    table = reference_table(length).float()
    i = torch.arange(length)
    mask = (i[None] <= i[:, None]) & (i[None] > i[:, None] - SHAPE.window)

    def rms(v: Tensor, w: Tensor) -> Tensor:
        return v * torch.rsqrt(v.square().mean(-1, keepdim=True) + eps) * w

    def turned(v: Tensor) -> Tensor:
        even, odd = v[..., 0::2], v[..., 1::2]
        cos, sin = table[:, None, :, 0], table[:, None, :, 1]
        return torch.stack((even * cos - odd * sin, odd * cos + even * sin), -1).flatten(-2)

    for w in blocks:
        q, k, v = (rms(x, w.attention_norm) @ w.wqkv.T).view(length, 3, heads, -1).unbind(1)
        scores = torch.einsum("qhd,khd->hqk", turned(q), turned(k)) / SHAPE.head_dim**0.5
        share = scores.masked_fill(~mask, float("-inf")).softmax(-1)
        mixed = torch.einsum("hqk,khd->qhd", share, v).reshape(length, -1)
        x = x + w.attention_scale * (mixed @ w.wo.T)
        h = rms(x, w.ffn_norm)
        x = x + w.ffn_scale * ((F.silu(h @ w.w1.T) * (h @ w.w3.T)) @ w.w2.T)
    return rms(x, norm)


def built(plan: StatePlan, steps_per_frame: int = 1) -> WindowTransformer:
    blocks, norm = weights()
    return WindowTransformer(SHAPE, blocks, norm, steps_per_frame, plan)


@pytest.mark.parametrize("sizes", [[60], [1] * 60, [3, 20, 1, 1, 9, 26], [8] * 7 + [4]])
def test_any_cut_is_the_whole(sizes: list[int]) -> None:
    torch.manual_seed(0)
    x = torch.randn(60, SHAPE.dim)
    plan = StatePlan()
    network = built(plan)
    state = StreamState(plan, 3, CPU)
    slot, keep = torch.tensor([1]), torch.tensor([False])
    parts: list[Tensor] = []
    for piece in x[None].split(sizes, 1):
        step = state.begin(slot, keep)
        parts.append(network(piece, step)[0])
        state.commit(step, piece.shape[1])
    torch.testing.assert_close(torch.cat(parts), plain(x), rtol=0, atol=5e-6)


def test_positions_count_steps_not_frames() -> None:
    torch.manual_seed(0)
    x = torch.randn(24, SHAPE.dim)
    plan = StatePlan()
    network = built(plan, steps_per_frame=4)
    state = StreamState(plan, 1, CPU)
    slot, keep = torch.tensor([0]), torch.tensor([False])
    parts: list[Tensor] = []
    for piece in x[None].split([8, 4, 12], 1):
        step = state.begin(slot, keep)
        parts.append(network(piece, step)[0])
        state.commit(step, piece.shape[1] // 4)
    torch.testing.assert_close(torch.cat(parts), plain(x), rtol=0, atol=5e-6)


def test_rows_at_different_positions_and_a_reset() -> None:
    torch.manual_seed(0)
    long, short, fresh = (torch.randn(n, SHAPE.dim) for n in (20, 5, 3))
    plan = StatePlan()
    network = built(plan)
    state = StreamState(plan, 4, CPU)

    def run(slots: list[int], reset: list[bool], *rows: Tensor) -> Tensor:
        step = state.begin(torch.tensor(slots), torch.tensor(reset))
        y = network(torch.stack(rows), step)
        state.commit(step, rows[0].shape[0])
        return y

    run([3], [True], long[:17])
    run([0], [True], short[:2])
    run([2], [True], torch.randn(11, SHAPE.dim))
    y = run([0, 2, 3], [False, True, False], short[2:], fresh, long[17:])
    for got, wanted in zip(y, (plain(short)[2:], plain(fresh), plain(long)[17:]), strict=True):
        torch.testing.assert_close(got, wanted, rtol=0, atol=5e-6)


def test_rotation_has_the_reference_s_values_at_every_position_and_no_last_one() -> None:
    network = built(StatePlan())
    positions = 40_000
    position = torch.arange(positions)[None]
    turns = network._rotation(position)[0, :, 0]
    table = reference_table(positions).float()
    assert (torch.view_as_real(turns) != table).sum() <= 2
    alone = network._rotation(torch.tensor([[39_999]]))[0, 0, 0]
    assert torch.equal(alone, turns[39_999])
    far = network._rotation(torch.tensor([[10_000_000]]))
    assert torch.allclose(far.abs(), torch.ones(()), atol=1e-2)

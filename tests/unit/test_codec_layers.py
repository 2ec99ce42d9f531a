"""Each layer against the plain formula, whole and in pieces, packed and not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.engine.codec.layers import (
    CausalConv,
    Conv,
    ConvNeXt,
    Linear,
    ResidualUnit,
    UpConv,
    safe_alpha,
    snake_,
)
from shoal.engine.codec.state import StatePlan, Step, StreamState

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def in_pieces(
    layer: Callable[[Tensor, Step], Tensor], plan: StatePlan, x: Tensor, sizes: list[int]
) -> Tensor:
    """``x`` [1, L, C] through ``layer`` piece by piece, from a stream's start."""
    state = StreamState(plan, 2, CPU)
    slot, keep = torch.tensor([1]), torch.tensor([False])
    parts: list[Tensor] = []
    for piece in x.split(sizes, 1):
        step = state.begin(slot, keep)
        parts.append(layer(piece.contiguous(), step))
        state.commit(step, 1)
    return torch.cat(parts, 1)


def assert_same(got: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(got, wanted, rtol=0, atol=2e-6)


def snake(x: Tensor, alpha: Tensor) -> Tensor:
    """The formula of the reference; ``x`` [B, L, C], ``alpha`` [1, C, 1]."""
    a = alpha.transpose(1, 2)
    return x + torch.sin(a * x) ** 2 / (a + 1e-9)


def causal(x: Tensor, weight: Tensor, bias: Tensor, dilation: int = 1, stride: int = 1) -> Tensor:
    left = (weight.shape[2] - 1) * dilation + 1 - stride
    padded = F.pad(x.transpose(1, 2), (left, 0))
    y = F.conv1d(padded, weight, bias, dilation=dilation, stride=stride)
    return y.transpose(1, 2)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    ("k", "dilation", "stride", "groups"),
    [(7, 1, 1, 1), (7, 9, 1, 1), (1, 1, 1, 1), (8, 1, 4, 1), (7, 1, 1, 16), (3, 1, 1, 1)],
)
def test_conv_is_a_convolution(
    packed: bool, k: int, dilation: int, stride: int, groups: int
) -> None:
    weight, bias = torch.randn(32, 16 // groups, k) / 8, torch.randn(32)
    conv = Conv(weight, bias, stride=stride, dilation=dilation, groups=groups, packed=packed)
    x = torch.randn(3, 96, 16)
    wanted = F.conv1d(x.transpose(1, 2), weight, bias, stride, 0, dilation, groups)
    assert_same(conv(x), wanted.transpose(1, 2))
    assert conv(x).is_contiguous()


@pytest.mark.parametrize("packed", [False, True])
def test_conv_adds_in_place(packed: bool) -> None:
    weight, bias = torch.randn(8, 8, 1), torch.randn(8)
    conv = Conv(weight, bias, packed=packed)
    x, total = torch.randn(2, 20, 8), torch.randn(2, 20, 8)
    wanted = total + F.linear(x, weight[..., 0], bias)
    assert conv.add_to(total, x) is total
    assert_same(total, wanted)


@pytest.mark.parametrize("packed", [False, True])
def test_linear(packed: bool) -> None:
    weight, bias = torch.randn(12, 8), torch.randn(12)
    x = torch.randn(2, 3, 8)
    assert_same(Linear(weight, bias, packed=packed)(x), F.linear(x, weight, bias))
    assert_same(Linear(weight, packed=packed)(x), F.linear(x, weight))


@pytest.mark.parametrize(("k", "dilation", "stride"), [(7, 1, 1), (7, 3, 1), (7, 9, 1), (4, 1, 2)])
@pytest.mark.parametrize("sizes", [[120], [2] * 60, [2, 100, 4, 14]])
def test_causal_conv_continues(k: int, dilation: int, stride: int, sizes: list[int]) -> None:
    weight, bias, x = torch.randn(6, 4, k) / 5, torch.randn(6), torch.randn(1, 120, 4)
    plan = StatePlan()
    layer = CausalConv(Conv(weight, bias, dilation=dilation, stride=stride), plan)
    assert plan.floats == ((k - 1) * dilation + 1 - stride) * 4
    assert_same(in_pieces(layer, plan, x, sizes), causal(x, weight, bias, dilation, stride))


@pytest.mark.parametrize(("k", "stride"), [(2, 2), (5, 5), (16, 8), (12, 6), (4, 2)])
@pytest.mark.parametrize("sizes", [[12], [1] * 12, [1, 7, 4]])
def test_transposed_conv_continues(k: int, stride: int, sizes: list[int]) -> None:
    weight, bias, x = torch.randn(6, 4, k) / 3, torch.randn(4), torch.randn(1, 12, 6)
    plan = StatePlan()
    layer = UpConv(weight, bias, stride, plan)
    whole = F.conv_transpose1d(x.transpose(1, 2), weight, bias, stride=stride)
    wanted = whole[..., : 12 * stride].transpose(1, 2)
    assert_same(in_pieces(layer, plan, x, sizes), wanted)


def test_snake_with_its_alpha_in_the_neighbours() -> None:
    alpha = torch.tensor([1.0, -2.0, 30.0, 1e-3, 1e-10, 0.0]).view(1, 6, 1)
    x = torch.randn(1, 50, 6)
    safe = safe_alpha(alpha)
    assert_same(snake_(x * safe) / safe, snake(x, alpha))


@pytest.mark.parametrize("sizes", [[60], [1, 5, 54], [10] * 6])
def test_residual_unit_continues(sizes: list[int]) -> None:
    alphas = [torch.rand(1, 8, 1) + 0.2 for _ in range(2)]
    wide, narrow = (
        (torch.randn(8, 8, 7) / 7, torch.randn(8)),
        (torch.randn(8, 8, 1) / 3, torch.randn(8)),
    )
    plan = StatePlan()
    unit = ResidualUnit(alphas[0], wide, alphas[1], narrow, 3, plan)
    x = torch.randn(1, 60, 8)
    inner = causal(snake(x, alphas[0]), *wide, dilation=3)
    wanted = x + causal(snake(inner, alphas[1]), *narrow)
    assert_same(in_pieces(unit, plan, x.clone(), sizes), wanted)


@pytest.mark.parametrize("sizes", [[20], [1] * 20, [6, 14]])
def test_convnext_continues(sizes: list[int]) -> None:
    c = 8
    depthwise = (torch.randn(c, 1, 7) / 3, torch.randn(c))
    norm = (torch.rand(c) + 0.5, torch.randn(c))
    widen, narrow = (
        (torch.randn(4 * c, c) / 3, torch.randn(4 * c)),
        (torch.randn(c, 4 * c) / 6, torch.randn(c)),
    )
    gamma = torch.randn(c)
    plan = StatePlan()
    layer = ConvNeXt(depthwise, norm, widen, narrow, gamma, plan)
    x = torch.randn(1, 20, c)
    padded = F.pad(x.transpose(1, 2), (6, 0))
    y = F.conv1d(padded, *depthwise, groups=c).transpose(1, 2)
    y = F.layer_norm(y, (c,), *norm, eps=1e-6)
    y = F.linear(F.gelu(F.linear(y, *widen)), *narrow)
    assert_same(in_pieces(layer, plan, x, sizes), x + gamma * y)

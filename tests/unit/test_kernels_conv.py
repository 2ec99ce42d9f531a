"""The codec's convolutions in Triton's interpreter, against float64 and each other's bits."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before the first kernel is imported

from shoal.kernels.codec_rows import depthwise_norm
from shoal.kernels.conv import (
    GELU,
    GLU,
    PLAIN,
    SNAKE,
    ConvWeight,
    Normed,
    Scratch,
    Steps,
    Tile,
    conv,
    conv_reference,
    prepare_conv,
    prepare_up,
)
from shoal.kernels.conv_tiles import (
    PASS_STEPS,
    SCRATCH_TILES,
    SCRATCH_VALUES,
    WHOLE,
    fuses,
    tile_for,
)
from shoal.kernels.last_conv import last_conv, prepare_taps
from shoal.kernels.snake import snake_reference

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SMALL = Tile(64, 32, inner=32)


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def weight(outputs: int, inputs: int, taps: int, dilation: int = 1, seed: int = 1) -> ConvWeight:
    values = drawn(outputs, inputs, taps, seed=seed) / (inputs * taps) ** 0.5
    return prepare_conv(values, drawn(outputs, seed=seed + 1), dilation)


def inputs(rows: int, w: ConvWeight, length: int) -> Tensor:
    return drawn(rows, w.past + length, w.inputs, seed=9).half()


def steps(data: Tensor) -> Steps:
    return Steps(data, data.stride(0))


def apart(got: Tensor, wanted: Tensor) -> float:
    """The largest difference, where a value of fp16 may be off by its rounding."""
    return float((got.double() - wanted).abs().max() / wanted.abs().max())


@pytest.mark.parametrize("tma", [True, False])
@pytest.mark.parametrize(
    ("act", "outputs", "channels", "taps", "dilation"),
    [(PLAIN, 40, 48, 7, 3), (SNAKE, 24, 32, 7, 1), (GELU, 64, 80, 1, 1), (GLU, 64, 64, 1, 1)],
)
def test_a_convolution_is_the_sum_it_says(
    act: int, outputs: int, channels: int, taps: int, dilation: int, tma: bool
) -> None:
    w = weight(outputs, channels, taps, dilation)
    a = inputs(2, w, 70)
    n = outputs // 2 if act == GLU else outputs
    tile = replace(SMALL, tma=tma, weight_tma=tma, more=32 if act == GLU else 16)
    out = torch.zeros(2, 70, n, device=DEVICE)
    conv(a, w, 70, tile, act=act, out=steps(out))
    assert apart(out, conv_reference(a, w, act=act)) < 1e-5


def test_steps_of_many_rows_share_a_program() -> None:
    w = weight(32, 32, 3)
    a = inputs(20, w, 7)
    out = torch.zeros(20, 7, 32, device=DEVICE)
    conv(a, w, 7, SMALL, out=steps(out))
    assert apart(out, conv_reference(a, w)) < 1e-5


def test_a_whole_residual_unit_in_one_kernel() -> None:
    wide, narrow = weight(48, 48, 7, 3), weight(48, 48, 1, seed=5)
    a = inputs(2, wide, 20)
    x = drawn(2, 20, 48, seed=7).half()
    alpha = drawn(48, seed=8).abs() + 0.5
    wanted = conv_reference(a, wide, act=SNAKE, unit=narrow, residual=x)
    padded = torch.zeros(2, 4 + 20, 48, device=DEVICE, dtype=torch.float16)
    there = Steps(padded[:, 4:], padded.stride(0))
    tile = Tile(64, 32, 16, inner=32)
    ends = {"residual": steps(x), "out": steps(x), "alpha": alpha, "snaked": there}
    conv(a, wide, 20, tile, act=SNAKE, unit=narrow, **ends)
    assert apart(x, wanted) < 2e-3
    assert apart(padded[:, 4:], snake_reference(alpha.double() * wanted)) < 2e-3
    assert not padded[:, :4].any()  # the tail is another kernel's


@pytest.mark.parametrize("columns", [16, 32])
def test_a_sum_in_chunks_has_the_same_bits_however_many_programs_add_it(columns: int) -> None:
    w = weight(32, 64, 4)
    a = inputs(3, w, 30)
    scratch = Scratch.empty(DEVICE, 1 << 16, 64)
    results: list[Tensor] = []
    for splits in (1, 4):
        tile = Tile(64, columns, inner=32, chunks=4, splits=splits)
        for _ in range(2):  # the count of arrivals is zero again
            out = torch.zeros(3, 30, 32, device=DEVICE)
            conv(a, w, 30, tile, act=SNAKE, out=steps(out), scratch=scratch)
            results.append(out)
        assert not scratch.arrived.any()
    assert apart(results[0], conv_reference(a, w, act=SNAKE)) < 1e-5
    assert all(torch.equal(results[0], other) for other in results[1:])


def test_inputs_are_normed_by_the_squares_that_the_layer_before_left() -> None:
    """As in the transformer: a product leaves fp16 rows and sums of squares for the next."""
    before, after = weight(64, 32, 1), weight(48, 64, 1, seed=4)
    a, x = inputs(1, before, 70), drawn(70, 64, seed=6)
    halved = torch.zeros(70, 64, device=DEVICE, dtype=torch.float16)
    squares = torch.zeros(2, 70, device=DEVICE)
    wanted = conv_reference(a, before, residual=x[None])
    onto = {"residual": Steps(x, 64), "out": Steps(x, 64)}
    conv(a, before, 70, SMALL, **onto, halved=Steps(halved, 64), squares=squares)
    assert apart(x, wanted[0]) < 1e-5
    assert torch.equal(halved, x.half())
    assert torch.allclose(squares.sum(0), (x * x).sum(1), rtol=1e-5)
    out = torch.zeros(1, 70, 48, device=DEVICE)
    conv(halved[None], after, 70, SMALL, normed=Normed(squares, 1e-9), out=steps(out))
    assert apart(out, conv_reference(halved[None], after, normed=True)) < 1e-3


def test_a_transposed_convolution_is_one_of_two_taps() -> None:
    kernel, bias = drawn(16, 8, 6) / 7, drawn(8, seed=2)
    w = prepare_up(kernel, bias, 3)
    a = inputs(2, w, 12)
    out = torch.zeros(2, 12, 24, device=DEVICE)
    conv(a, w, 12, SMALL, out=steps(out))
    full = torch.nn.functional.conv_transpose1d(
        a.double().transpose(1, 2), kernel.half().double(), bias.double(), stride=3
    )
    # The first step in ``a`` is a tail; what it alone gives was sounded a call ago.
    wanted = full[:, :, 3 : 3 + 36].transpose(1, 2)
    assert apart(out.view(2, 36, 8), wanted) < 1e-5


def test_the_last_convolution_is_a_diagonal_of_products_with_its_taps() -> None:
    taps, bias = drawn(1, 32, 7) / 15, drawn(1, seed=2)
    w, alpha = weight(32, 32, 1), drawn(32, seed=3).abs() + 0.5
    a = inputs(2, w, 26)
    tapped = torch.zeros(2, 26, 8, device=DEVICE)
    last = prepare_taps(taps)
    conv(a, w, 26, SMALL, alpha=alpha, taps=last, tapped=steps(tapped))
    sounded = snake_reference(alpha.double() * conv_reference(a, w))
    wanted = torch.nn.functional.conv1d(
        sounded.transpose(1, 2), taps.double(), bias.double()
    ).tanh()
    out = torch.zeros(2, 20, device=DEVICE)
    last_conv(tapped, 7, bias, 20, out)
    assert apart(out, wanted[:, 0]) < 2e-3


def test_a_depthwise_convolution_with_its_norm() -> None:
    taps, bias = drawn(5, 24), drawn(24, seed=1)
    scale, shift = drawn(24, seed=2), drawn(24, seed=3)
    a = drawn(2, 4 + 6, 24, seed=4).half()
    y = torch.zeros(2, 6, 24, device=DEVICE, dtype=torch.float16)
    depthwise_norm(steps(a), 2, 6, (taps, bias), (scale, shift), y)
    mixed = torch.nn.functional.conv1d(
        a.double().transpose(1, 2), taps.t()[:, None].double(), bias.double(), groups=24
    )
    wanted = torch.nn.functional.layer_norm(
        mixed.transpose(1, 2), (24,), scale.double(), shift.double(), 1e-6
    )
    assert apart(y, wanted) < 2e-3


def test_what_does_not_fit_is_refused() -> None:
    w = weight(32, 64, 1)
    a, out = inputs(1, w, 8), torch.zeros(1, 8, 32, device=DEVICE)
    with pytest.raises(ValueError, match="inputs"):
        conv(a, w, 9, SMALL, out=steps(out))
    with pytest.raises(ValueError, match="3 chunks"):
        conv(a, w, 8, replace(SMALL, chunks=3), out=steps(out))
    with pytest.raises(ValueError, match="scratch"):
        conv(a, w, 8, replace(SMALL, chunks=2, splits=2), out=steps(out))
    with pytest.raises(ValueError, match="one program"):
        conv(a, w, 8, Tile(64, 16, inner=32), unit=w, out=steps(out))
    with pytest.raises(ValueError, match="9 taps"):
        prepare_taps(torch.zeros(1, 4, 9))


S2_SHAPES = (
    (3072, 1024, 1), (1024, 1024, 1), (1024, 3072, 1), (2048, 1024, 1), (4096, 1024, 1),
    (1024, 4096, 1), (1536, 1024, 7), (6144, 1536, 2), (3072, 768, 2), (768, 384, 2),
    (192, 192, 2), (768, 768, 7), (768, 768, 1), (384, 384, 7), (384, 384, 1), (192, 192, 7),
    (192, 192, 1), (96, 96, 7),
)  # fmt: skip


SIZES = (1, 4, 5, 31, 32, 64, 100, 256, 257, 1024, 4095, 4096, 1 << 14, 1 << 19)
KINDS: tuple[dict[str, bool], ...] = ({}, {"glu": True}, {"squares": True})


def shape_of(outputs: int, channels: int, taps: int) -> ConvWeight:
    return prepare_conv(torch.empty(outputs, channels, taps, device="meta"), None)


def power_of_2(n: int) -> bool:
    return n & (n - 1) == 0


def is_runnable(tile: Tile, w: ConvWeight, n: int, steps: int, kind: dict[str, bool]) -> None:
    """What the kernel and the matrix unit ask of a tile."""
    assert tile.steps in (64, 128, 256)
    assert power_of_2(tile.columns)
    assert 16 <= tile.columns <= 256
    assert tile.more == 0 or (power_of_2(tile.more) and 16 <= tile.more <= tile.columns)
    assert power_of_2(tile.inner)
    assert 16 <= tile.inner <= w.width
    assert power_of_2(w.width % tile.inner)
    assert w.width % tile.inner == 0 or w.width % tile.inner >= 16
    assert tile.splits in (1, tile.chunks)
    assert w.taps * (w.width // tile.inner) % tile.chunks == 0
    assert tile.chunks == 1 or (w.width % tile.inner == 0 and tile.more == 0)
    if tile.splits > 1:
        programs = -(-n // tile.columns) * -(-steps // tile.steps)
        if not kind.get("squares") or steps <= PASS_STEPS:
            assert programs <= SCRATCH_TILES
            assert programs * tile.splits * tile.steps * tile.columns <= SCRATCH_VALUES
    if kind.get("glu"):
        assert tile.more == tile.columns
    if kind.get("squares"):
        assert tile.more == 0
    if kind.get("unit") or kind.get("taps"):
        assert tile.columns + tile.more >= n


def has_fixed_bits(outputs: int, channels: int, taps: int) -> None:
    """The order of a sum is the same for any number of steps; where sums of columns are kept too,
    so is all of the tile, since a sum across threads goes by where values lie."""
    w = shape_of(outputs, channels, taps)
    for kind in KINDS:
        n = outputs // 2 if kind.get("glu") else outputs
        if n == 0:
            continue
        tiles = [tile_for(w, steps, **kind) for steps in SIZES]
        for tile, steps in zip(tiles, SIZES, strict=True):
            is_runnable(tile, w, n, steps, kind)
        assert len({(tile.inner, tile.chunks) for tile in tiles}) == 1
        if kind.get("squares"):
            assert len(set(tiles)) == 1


def units_have_fixed_bits(channels: int) -> None:
    """A residual unit: the same sums whether it is one kernel or two, and for any steps."""
    wide, narrow = shape_of(channels, channels, 7), shape_of(channels, channels, 1)
    orders: set[tuple[int, int]] = set()
    for steps in SIZES:
        kind = {"unit": True}
        if fuses(channels, steps):
            tile = tile_for(wide, steps, **kind)
            is_runnable(tile, wide, channels, steps, kind)
            assert tile.chunks == 1  # a unit's second sum is never cut
            orders.add((tile.inner, tile.chunks))
        else:
            pair = [tile_for(w, steps) for w in (wide, narrow)]
            orders.add((pair[0].inner, pair[0].chunks))
            if any(fuses(channels, size) for size in SIZES):
                assert pair[1].chunks == 1
        if channels <= WHOLE:
            taps = tile_for(narrow, steps, taps=True)
            is_runnable(taps, narrow, channels, steps, {"taps": True})
            assert taps.chunks == 1
    assert len(orders) == 1


@pytest.mark.parametrize("shape", S2_SHAPES)
def test_the_table_keeps_what_bits_depend_on_for_any_number_of_steps(
    shape: tuple[int, int, int],
) -> None:
    has_fixed_bits(*shape)


def test_every_number_of_channels_in_a_unit_has_a_tile() -> None:
    for channels in range(1, 521):
        units_have_fixed_bits(channels)
    for channels in (768, 1000, 1024, 1536, 2048):
        units_have_fixed_bits(channels)


@settings(deadline=None, max_examples=300)
@given(
    outputs=st.integers(1, 9000), channels=st.integers(1, 5000), taps=st.sampled_from((1, 2, 3, 7))
)
def test_every_convolution_has_a_tile_that_runs(outputs: int, channels: int, taps: int) -> None:
    has_fixed_bits(outputs, channels, taps)


def test_a_shape_that_no_table_knows_is_summed_right_and_alike_in_any_tile() -> None:
    w = weight(208, 224, 3)
    a = inputs(1, w, 70)
    wanted = conv_reference(a, w)
    scratch = Scratch.empty(DEVICE, SCRATCH_VALUES, SCRATCH_TILES)
    for kind in ({}, {"squares": True}):
        for steps in (70, 1 << 14):
            out = torch.zeros(1, 70, 208, device=DEVICE)
            conv(
                a, w, 70, tile_for(w, steps, **kind), out=Steps(out, out.stride(0)), scratch=scratch
            )
            assert apart(out, wanted) < 1e-5

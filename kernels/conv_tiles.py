"""Which tile a convolution uses, by its weight's shape and the number of steps: a fixed table.

``inner`` belongs to the weight, so that an output's bits do not depend on how many steps run beside
it; the rest may differ with their number.
"""

from __future__ import annotations

from dataclasses import replace

from .conv import ConvWeight, Tile

FEW = 256
"""Up to this many output steps a convolution is bound by its weights."""

FUSED_CHANNELS = 192
"""A residual unit of at most so many channels is one kernel."""


def tile_for(weight: ConvWeight, steps: int, *, glu: bool = False, unit: bool = False) -> Tile:
    """Tile of ``conv`` for ``steps`` output steps of all rows."""
    n = weight.outputs // 2 if glu else weight.outputs
    if unit:
        return _within(_unit_tile(n, steps), n)
    if glu:
        tile = Tile(64, 32, 32, 64, stages=4)
        return replace(tile, columns=min(32, power_of_2(n)), more=min(32, power_of_2(n)))
    if steps <= FEW:
        return _within(Tile(64, 32 if n <= 2048 else 64, inner=64, stages=5), n)
    if n % 128 == 0:
        return _within(Tile(128, 128, inner=64, warps=8, stages=4), n)
    if n % 192 == 0:
        return Tile(128, 128, 64, inner=64, warps=8, stages=3)
    return _within(Tile(128, 128, inner=64, warps=8, stages=3), n)


def _unit_tile(n: int, steps: int) -> Tile:
    if n <= 128:
        return Tile(128, 128, inner=32, warps=8, stages=4)
    return Tile(64, 128, 64, inner=64, warps=4, stages=3)


def _within(tile: Tile, n: int) -> Tile:
    """No wider than the outputs need."""
    if tile.more:
        return tile if n > tile.columns else replace(tile, columns=power_of_2(n), more=0)
    return replace(tile, columns=min(tile.columns, power_of_2(n)))


def power_of_2(n: int) -> int:
    """The next one that is at least 16, a matrix unit's least."""
    return max(16, 1 << (n - 1).bit_length())

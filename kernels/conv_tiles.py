"""Which tile a convolution uses, by its weight's shape and the number of steps: a fixed table.

``inner`` and ``chunks`` belong to the weight, so that an output's bits do not depend on how many
steps run beside it; the rest may differ with their number. Chosen on an H200 for the shapes of S2's
codec (``bench_codec --sweep``); any other shape gets the nearest tile that it allows.
"""

from __future__ import annotations

from dataclasses import replace

from .conv import ConvWeight, Tile

FEW = 256
"""Up to this many output steps a convolution is bound by its weights."""

SPREAD_STEPS = 4096
"""With fewer output steps a wide residual unit in one kernel would leave most of a GPU idle."""

WHOLE = 192
"""The most channels that one program has all of."""

PASS_STEPS = 256
"""The most rows times frames in one pass of the network."""

SCRATCH_VALUES = 1 << 22
SCRATCH_TILES = 4096
"""What the parts of sums in ``splits`` may take."""

CHUNKED_K = 2048
"""A sum over more inputs and taps than this, of few steps a frame, is cut into chunks."""
CHUNKS = 4
PROGRAMS = 128
"""About what one wave of programs is: with fewer tiles than this, chunks get programs of their own.
"""


def fuses(channels: int, steps: int) -> bool:
    """Whether a residual unit of ``channels``, ``steps`` of all rows, is one kernel."""
    return channels <= 128 or (channels <= WHOLE and steps >= SPREAD_STEPS)


def tile_for(
    weight: ConvWeight,
    steps: int,
    *,
    glu: bool = False,
    unit: bool = False,
    taps: bool = False,
    squares: bool = False,
) -> Tile:
    """Tile of ``conv`` for ``steps`` output steps of all rows, whatever the weight's shape.

    With ``unit`` and ``taps`` one program has all channels, at most :data:`WHOLE`. With ``squares``
    the tile is the same for any number of steps: sums of squares go by a program's columns.
    """
    n = weight.outputs // 2 if glu else weight.outputs
    if squares:
        tile = Tile(64, min(32, power_of_2(n)), inner=128, stages=4, ahead=8)
        if n >= 512 and weight.taps * weight.width > CHUNKED_K:
            tile = replace(tile, chunks=CHUNKS, splits=CHUNKS)
        return _fitted(tile, weight, n, PASS_STEPS)
    if unit or (taps and n <= WHOLE):
        return _fitted(_fused(n, steps), weight, n, steps)
    return _fitted(_wanted(weight, n, steps, glu), weight, n, steps)


def _wanted(weight: ConvWeight, n: int, steps: int, glu: bool) -> Tile:
    if glu:
        columns = min(32, power_of_2(n))
        return Tile(64, columns, columns, inner=128, stages=4, ahead=_ahead(steps))
    if n >= 512 and weight.width >= 1024:
        if weight.taps > 1:
            return _deep(n, steps)
        return _chunked(n, steps) if weight.width > CHUNKED_K else _flat(n, steps)
    if n >= 768 and weight.taps > 2:
        return _wide(n, steps)
    if n <= 128 and n % 64:
        return _fused(n, steps)
    if n == 192:
        if steps < SPREAD_STEPS:
            return Tile(64, 64, inner=64, stages=4, ahead=8)
        return Tile(64, 128, 64, inner=64, stages=3)
    if steps <= FEW:
        return Tile(64, min(32, power_of_2(n)), inner=64, stages=6, ahead=8)
    columns = min(128, power_of_2(n))
    if weight.taps == 1:
        return Tile(64, columns, inner=64, stages=4)
    return Tile(128, columns, inner=64, warps=8 if n >= 2048 else 4, stages=3)


def _flat(n: int, steps: int) -> Tile:
    """Products of few steps a frame, each with all of a weight."""
    if n < 4096:
        return Tile(64, 32, inner=128, stages=4, ahead=_ahead(steps))
    if steps <= 64:
        return Tile(64, 32, inner=64, stages=6, ahead=8)
    if steps <= FEW:
        return Tile(64, 64, inner=64, stages=5, ahead=8)
    return Tile(128, 128, inner=64, warps=8, stages=4)


def _chunked(n: int, steps: int) -> Tile:
    """The same, summing over more inputs."""
    tile = Tile(64, 32, inner=128, stages=4, chunks=CHUNKS, ahead=_ahead(steps))
    return _spread(tile, n, steps)


def _deep(n: int, steps: int) -> Tile:
    """The first convolution and the first transposed one."""
    chunks = CHUNKS if n < 4096 else 2
    if steps <= 64:
        columns = 32 if n < 4096 else 64
        return Tile(64, columns, inner=64, stages=6, chunks=chunks, splits=chunks, ahead=8)
    tile = Tile(128, 128, inner=64, warps=8, stages=4, chunks=chunks)
    return _spread(tile, n, steps, PROGRAMS // 2)


def _wide(n: int, steps: int) -> Tile:
    """The widest residual units."""
    if steps <= FEW:
        tile = Tile(64, 32, inner=64, stages=6, chunks=CHUNKS, ahead=8)
        return _spread(tile, n, steps)
    return Tile(128, 128, inner=64, warps=8, stages=4, chunks=CHUNKS)


def _fused(n: int, steps: int) -> Tile:
    """Residual units, and what has so few channels that one program has them all."""
    columns, more = _covering(n)
    if n <= 128:
        inner = 64 if n % 64 == 0 else 32
        return Tile(
            64 if steps < SPREAD_STEPS else 128,
            columns,
            more,
            inner=inner,
            stages=3 if n == 128 else 4,
        )
    return Tile(64, columns, more, inner=64, stages=3)


def _covering(n: int) -> tuple[int, int]:
    """Columns and more of them that hold ``n``, with the least to spare."""
    columns = power_of_2(n)
    half = columns // 2
    more = power_of_2(n - half) if half >= 16 else columns
    return (half, more) if more < half else (columns, 0)


def _spread(tile: Tile, n: int, steps: int, programs: int = PROGRAMS) -> Tile:
    """A program for each chunk where the tiles alone are fewer than ``programs``."""
    tiles = -(-n // tile.columns) * -(-steps // tile.steps)
    return replace(tile, splits=tile.chunks) if tiles < programs else tile


def _ahead(steps: int) -> int:
    return 8 if steps <= FEW else 0


def _fitted(tile: Tile, weight: ConvWeight, n: int, steps: int) -> Tile:
    """What of ``tile`` the weight's shape allows: products of a power of two of inputs, and such a
    rest; equal chunks of whole products; parts of sums that have room."""
    inner = tile.inner
    while inner > weight.width or (weight.width % inner) & (weight.width % inner - 1):
        inner //= 2
    chunks = tile.chunks
    if weight.width % inner:
        chunks = 1
    while weight.taps * (weight.width // inner) % chunks:
        chunks //= 2
    splits = chunks if tile.splits > 1 else 1
    programs = -(-n // tile.columns) * -(-steps // tile.steps)
    room = SCRATCH_VALUES // (tile.steps * tile.columns)
    if programs > SCRATCH_TILES or programs * splits > room:
        splits = 1
    return replace(tile, inner=inner, chunks=chunks, splits=splits)


def power_of_2(n: int) -> int:
    """The next one that is at least 16, a matrix unit's least."""
    return max(16, 1 << (n - 1).bit_length())

"""Which tile a product uses, by its weight's shape and the number of rows: a table of measurements.

The number of chunks along K (``splits * chunks``) belongs to the weight, so that a row's bits do
not depend on how many rows run beside it; everything else may differ from bucket to bucket. The
table is for an H200; weights of other shapes get tiles by the same rules.
"""

from __future__ import annotations

from .gemm import Tile

K_CHUNKS = {
    (6144, 2560): 4,
    (2560, 4096): 8,
    (2560, 9728): 8,
    (4096, 2560): 4,
}
"""Chunks along K of the weights [N, K] that were measured."""


def chunks_of(n: int, k: int) -> int:
    """Chunks along K for a weight [N, K]: 1, 4 or 8, enough to fill a large device at 16 rows."""
    known = K_CHUNKS.get((n, k))
    if known is not None:
        return known
    blocks = k // 128
    for chunks in (4, 8):
        if blocks < 2 * chunks:
            return 1 if chunks == 4 else 4
        if n // 64 * chunks >= 256:
            return chunks
    return 8


def tile_for(n: int, k: int, rows: int) -> Tile:
    """Tile of ``gemm_partials`` for a weight [N, K] and ``rows`` rows."""
    chunks = chunks_of(n, k)
    if rows <= 32:
        return Tile(16 if rows <= 16 else 32, 64, chunks, ahead=2)
    if rows <= 64 or (rows <= 128 and chunks < 4):
        return Tile(64, 64, chunks, tokens_long=True, ahead=2)
    if rows <= 128:
        return Tile(128, 64, chunks, stages=3, tokens_long=True, ahead=2)
    if chunks < 4:
        return Tile(64, 64, chunks, tokens_long=True)
    # Partials of many rows cost more than they gain: one program adds four chunks.
    return Tile(64, 64, chunks // 4, 4, tokens_long=True, ahead=2)


def rows_tile(rows: int) -> Tile:
    """Tile of ``gemm_rows`` for a weight of many rows (gate and up), one chunk along K."""
    if rows <= 32:
        return Tile(16 if rows <= 16 else 32, 64, ahead=2)
    if rows <= 64:
        return Tile(64, 64, tokens_long=True, ahead=2)
    return Tile(64, 128, stages=3, tokens_long=True, ahead=2 if rows <= 128 else 0)

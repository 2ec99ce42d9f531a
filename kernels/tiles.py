"""Which tile a product uses, by its weight's shape and the number of rows: a table of measurements.

The number of chunks along K (``splits * chunks``) belongs to the weight, so that a row's bits do
not depend on how many rows run beside it; everything else may differ from bucket to bucket.
"""

from __future__ import annotations

from .gemm import Tile

K_CHUNKS = {
    (6144, 2560): 4,
    (2560, 4096): 8,
    (2560, 9728): 8,
    (4096, 2560): 4,
}
"""Chunks along K of the products whose partials another kernel adds."""


def chunks_of(n: int, k: int) -> int:
    """Chunks along K for a weight [N, K], enough to fill a large device at 16 rows."""
    known = K_CHUNKS.get((n, k))
    if known is not None:
        return known
    tiles = max(1, n // 64)
    chunks = 1
    while chunks < 8 and chunks * 2 <= k // 128 and tiles * chunks < 256:
        chunks *= 2
    return chunks


def row_tile(m: int) -> int:
    """Tokens of one program for M rows."""
    return 16 if m <= 16 else 32 if m <= 32 else 64 if m <= 64 else 128

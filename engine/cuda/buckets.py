"""The batch sizes that graphs are captured for."""

from __future__ import annotations

from collections.abc import Sequence

SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256)


def buckets_up_to(rows: int) -> tuple[int, ...]:
    """The sizes below ``rows``, and ``rows`` itself."""
    return (*(size for size in SIZES if size < rows), rows)


def bucket_of(rows: int, buckets: Sequence[int]) -> int:
    """The smallest bucket that ``rows`` fit. Raises ``ValueError`` when none is."""
    for bucket in buckets:
        if rows <= bucket:
            return bucket
    raise ValueError(f"{rows} rows, at most {buckets[-1]}")

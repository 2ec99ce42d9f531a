"""The numbers of rows that graphs are captured for: of a decode step, and of a prefill."""

from __future__ import annotations

from collections.abc import Sequence

SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
PREFILL_SIZES = (16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
"""Columns of a chunk. An utterance is some tens of columns, a voice hundreds to thousands."""


def buckets_up_to(rows: int, sizes: Sequence[int] = SIZES) -> tuple[int, ...]:
    """The sizes below ``rows``, and ``rows`` itself."""
    return (*(size for size in sizes if size < rows), rows)


def bucket_of(rows: int, buckets: Sequence[int]) -> int:
    """The smallest bucket that ``rows`` fit. Raises ``ValueError`` when none is."""
    for bucket in buckets:
        if rows <= bucket:
            return bucket
    raise ValueError(f"{rows} rows, at most {buckets[-1]}")

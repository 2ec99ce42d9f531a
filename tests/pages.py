"""``Pages``: what every position of a scripted runner's KV pages holds, a number for each column.

Knows neither steps nor who may write what when; whoever reads a position that holds another's, or
nothing, breaks the runner's contract. Not for several threads at once.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shoal.engine.runner import Int32Array, RunnerSpec

_MIX = 0x9E3779B97F4A7C15
_MASK = (1 << 63) - 1


class ContractError(AssertionError):
    """A caller broke the runner's contract."""


def check(holds: bool, breach: str) -> None:
    if not holds:
        raise ContractError(breach)


def mix(value: int, part: int) -> int:
    """Another number below 2^63 for each ``value`` and ``part``."""
    return ((value ^ (part + 1)) * _MIX) & _MASK


def column_hash(column: Int32Array) -> int:
    """A number for a column; never 0."""
    value = 1
    for part in column.tolist():
        value = mix(value, part)
    return value or 1


class Pages:
    """The device's pages, and those that the host keeps."""

    def __init__(self, spec: RunnerSpec) -> None:
        self._tokens = spec.page_tokens
        self._cells = np.zeros((spec.pages, spec.page_tokens), np.int64)
        self._places = np.full_like(self._cells, -1)
        # Cells and places of the host's pages.
        self._kept = np.full((2, spec.host_pages, spec.page_tokens), -1, np.int64)

    def write(self, table: Sequence[int], position: int, column: Int32Array) -> None:
        page, offset = divmod(position, self._tokens)
        self._cells[table[page], offset] = column_hash(column)
        self._places[table[page], offset] = position

    def copy(self, source: int, target: int) -> None:
        self._cells[target], self._places[target] = self._cells[source], self._places[source]

    def save(self, pages: Sequence[int], host_pages: Sequence[int]) -> None:
        self._kept[:, list(host_pages)] = self._cells[list(pages)], self._places[list(pages)]

    def load(self, host_pages: Sequence[int], pages: Sequence[int]) -> None:
        self._cells[list(pages)], self._places[list(pages)] = self._kept[:, list(host_pages)]

    def digest(self, table: Sequence[int], length: int) -> int:
        """What positions ``0 .. length - 1`` hold, in one number; all of them must be written."""
        pages = np.asarray(table[: -(-length // self._tokens)], np.int64)
        places = self._places[pages].ravel()[:length]
        check(
            bool((places == np.arange(length)).all()),
            f"of {length} positions, these hold another or none: "
            f"{np.flatnonzero(places != np.arange(length))[:8].tolist()}",
        )
        cells = self._cells[pages].ravel()[:length].astype(np.uint64)
        weights = 2 * np.arange(length, dtype=np.uint64) + np.uint64(1)
        return int((cells * weights).sum(dtype=np.uint64)) & _MASK

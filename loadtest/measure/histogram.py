"""Durations in a high dynamic range histogram: mergeable, bounded, within 0.1 %. Pure.

Wraps the ``hdrhistogram`` package so that the rest speaks seconds, and so that a histogram in
the JSON result can be read by any HdrHistogram tool (V2 encoding, microseconds).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from hdrh.histogram import HdrHistogram  # pyright: ignore[reportMissingTypeStubs]

_LOWEST_US = 1
_HIGHEST_US = 3_600_000_000
_DIGITS = 3


class Histogram:
    """Non-negative durations up to one hour; what is outside is clamped to the edge."""

    def __init__(self) -> None:
        self._hdr: Any = HdrHistogram(_LOWEST_US, _HIGHEST_US, _DIGITS)

    def __getstate__(self) -> bytes:
        return self.encode()

    def __setstate__(self, encoded: bytes) -> None:
        self.__init__()
        self._hdr.decode_and_add(encoded)

    def record(self, seconds: float) -> None:
        self._hdr.record_value(min(max(round(seconds * 1e6), 0), _HIGHEST_US))

    def add(self, other: Histogram) -> None:
        """Merge ``other`` in; percentiles of the sum are those of all samples together."""
        self._hdr.decode_and_add(other.encode())

    @property
    def count(self) -> int:
        return int(self._hdr.get_total_count())

    def percentile(self, percent: float) -> float | None:
        """In seconds; ``None`` when empty. 100 is the maximum."""
        return self.percentiles((percent,))[0]

    def percentiles(self, percents: Sequence[float]) -> list[float | None]:
        """Several at once, in the order asked for; much cheaper than one by one."""
        if not self.count:
            return [None] * len(percents)
        found = self._hdr.get_percentile_to_value_dict(list(percents))
        return [found[percent] / 1e6 for percent in percents]

    @property
    def mean(self) -> float | None:
        return self._hdr.get_mean_value() / 1e6 if self.count else None

    def percentile_curve(self, points: int = 100) -> list[tuple[float, float]]:
        """(percent, seconds) pairs that get denser towards the tail, for a plot.

        Ends where the sample count ends: n samples say nothing beyond 100 (1 - 1/n) percent.
        """
        if not self.count:
            return []
        nines = math.log10(max(2, self.count))
        percents = [100.0 * (1.0 - 10.0 ** (-nines * i / points)) for i in range(points + 1)]
        values = self.percentiles(percents)
        return [(p, value) for p, value in zip(percents, values, strict=True) if value is not None]

    def encode(self) -> bytes:
        """The package's compressed base64 form."""
        return bytes(self._hdr.encode())

    @classmethod
    def decode(cls, encoded: bytes | str) -> Histogram:
        """The reverse of :meth:`encode`; raises on bytes that are no such histogram."""
        histogram = cls()
        data = encoded.encode("ascii") if isinstance(encoded, str) else encoded
        histogram._hdr.decode_and_add(data)
        return histogram

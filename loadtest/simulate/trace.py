"""A day of calls: how many turns begin in each second. Pure; the same seed gives the same day.

A day has a quiet night and two peaks, bursts that come within a minute or so and die away, noise
from one minute to the next, and Poisson arrivals on top of all that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from shoal.loadtest.plan.recorded import RecordedTurn, mean_gap_s

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
DAY_S = 86_400


@dataclass(frozen=True, slots=True)
class Day:
    """``peak_turns``: live turns at once at the day's peak, bursts apart."""

    peak_turns: float = 17_000.0
    night_share: float = 0.15
    turn_s: float = 7.0
    """How long a turn holds its slot, on average."""
    bursts: int = 30
    burst_most: float = 0.5
    """The strongest burst, as a share of what is there anyway."""
    burst_rise_s: tuple[float, float] = (20.0, 180.0)
    burst_fall_s: tuple[float, float] = (120.0, 900.0)
    noise: float = 0.04
    seconds: int = DAY_S


def rate(day: Day, seed: int) -> FloatArray:
    """Expected turns per second, float64 [seconds]."""
    rng = np.random.default_rng([seed, 1])
    hours = np.arange(day.seconds) / day.seconds * 24
    shape = 0.9 * _hump(hours, 11.0, 3.2) + _hump(hours, 19.5, 2.6)
    shape = day.night_share + (1 - day.night_share) * shape / shape.max()
    factor = np.ones(day.seconds)
    for _ in range(day.bursts):
        begin = rng.uniform(0, day.seconds)
        rise_s, fall_s = rng.uniform(*day.burst_rise_s), rng.uniform(*day.burst_fall_s)
        since = np.arange(day.seconds) - begin
        form = np.clip(since / rise_s, 0, 1) * np.exp(-np.clip(since - rise_s, 0, None) / fall_s)
        factor += day.burst_most * rng.power(2.0) * form
    minutes = -(-day.seconds // 60) + 1
    drift = np.cumsum(rng.normal(0, 1, minutes))
    drift = (drift - np.convolve(drift, np.ones(31) / 31, "same")) * day.noise / 2
    wander = np.interp(np.arange(day.seconds) / 60, np.arange(minutes), drift)
    expected = day.peak_turns / day.turn_s * shape * factor * np.exp(wander)
    return np.asarray(expected, np.float64)


def replayed(day: Day, turns: Sequence[RecordedTurn]) -> tuple[Day, FloatArray]:
    """A day in which turns come as they were recorded: expected turns per second, float64
    [seconds].

    The recording is stretched to ``day.seconds``, and each of its turns stands for the many of a
    fleet that come around then: a bell as wide as the mean gap between two of them. The busiest
    moment has ``day.peak_turns`` live turns; a turn takes as long as they took.
    """
    turn_s = sum(turn.held_s for turn in turns) / len(turns)
    stretch = day.seconds / (turns[-1].at_s + mean_gap_s(turns))
    width_s = stretch * mean_gap_s(turns)
    seconds = np.arange(day.seconds)
    form = np.zeros(day.seconds)
    for turn in turns:
        form += np.exp(-(((seconds - turn.at_s * stretch) / width_s) ** 2) / 2)
    return replace(day, turn_s=turn_s), form * day.peak_turns / turn_s / form.max()


def _hump(hours: FloatArray, at: float, width: float) -> FloatArray:
    distance = np.abs((hours - at + 12) % 24 - 12)
    return np.exp(-((distance / width) ** 2))


def arrivals(expected: FloatArray, seed: int) -> IntArray:
    """Turns that begin in each second, int64 [seconds]."""
    return np.random.default_rng([seed, 2]).poisson(expected)

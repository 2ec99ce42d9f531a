"""A player simulated over arrivals: when it starts, where it runs dry, how much it held. Pure.

The player waits until it holds ``prebuffer_s`` of audio (or the stream has ended), then plays.
When it runs dry it stands still until the next samples arrive and goes on at once, so every
stall is the shortest that a listener could have had with that prebuffer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .timeline import Arrival

INAUDIBLE_S = 0.001
"""A hole shorter than this is not counted as a stall: no clock here is finer."""


@dataclass(frozen=True, slots=True)
class Stall:
    """The player stood still for ``length_s`` from ``at_s``, ``after_audio_s`` into the audio."""

    at_s: float
    after_audio_s: float
    length_s: float


@dataclass(frozen=True, slots=True)
class Playout:
    """One simulated playback.

    ``min_lead_s`` is the least audio in hand just before an arrival, on a clock that never
    stops: negative means that starting that much later would have avoided every stall. ``None``
    when a single arrival held everything.
    """

    prebuffer_s: float
    start_s: float
    end_s: float
    stalls: tuple[Stall, ...]
    min_lead_s: float | None
    rate: int

    @property
    def total_stall_s(self) -> float:
        return sum(stall.length_s for stall in self.stalls)

    @property
    def worst_stall_s(self) -> float:
        return max((stall.length_s for stall in self.stalls), default=0.0)

    def heard_at_s(self, sample: int) -> float:
        """When sample number ``sample`` (from 0) comes out of the loudspeaker."""
        position_s = sample / self.rate
        waited_s = sum(s.length_s for s in self.stalls if s.after_audio_s <= position_s)
        return self.start_s + position_s + waited_s


def with_samples(arrivals: Iterable[Arrival]) -> list[Arrival]:
    """Only what can be played: headers and empty messages go."""
    return [arrival for arrival in arrivals if arrival.samples > 0]


def play(
    arrivals: Sequence[Arrival], rate: int, prebuffer_s: float, ended_s: float
) -> Playout | None:
    """Simulate one playback at ``rate`` samples/s; ``None`` when nothing could be played."""
    audio = with_samples(arrivals)
    if not audio:
        return None
    held_s = 0.0
    first = 0
    start_s = max(ended_s, audio[-1].at_s)
    for first, arrival in enumerate(audio):  # noqa: B007 - the index is used below
        held_s += arrival.samples / rate
        if held_s >= prebuffer_s:
            start_s = arrival.at_s
            break
    dry_at_s = start_s + held_s
    received_s = held_s
    stalls: list[Stall] = []
    leads: list[float] = []
    for arrival in audio[first + 1 :]:
        leads.append(received_s - (arrival.at_s - start_s))
        if arrival.at_s > dry_at_s:
            hole_s = arrival.at_s - dry_at_s
            if hole_s >= INAUDIBLE_S:
                stalls.append(Stall(dry_at_s, received_s, hole_s))
            dry_at_s = arrival.at_s
        dry_at_s += arrival.samples / rate
        received_s += arrival.samples / rate
    return Playout(
        prebuffer_s, start_s, dry_at_s, tuple(stalls), min(leads) if leads else None, rate
    )

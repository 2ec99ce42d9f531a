"""A player simulated over arrivals: when it starts, where it runs dry, how much it held. Pure.

The player waits until it holds ``prebuffer_s`` of audio (or the stream has ended), then plays.
When it runs dry it stands still until the next samples arrive and goes on at once, so every
stall is the shortest that a listener could have had with that prebuffer.

Text that comes token by token may itself be late: nobody can speak a sentence that is not there.
What a player waits for its text is a pause and no stall; see :mod:`.starving`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from .timeline import Arrival

INAUDIBLE_S = 0.001
"""A hole shorter than this is not counted as a stall: no clock here is finer."""


TextDue = Callable[[float], float | None]
"""Audio played when the player ran dry -> when the text of what is next came, if not long ago."""


@dataclass(frozen=True, slots=True)
class Stall:
    """The player stood still for ``length_s`` from ``at_s``, ``after_audio_s`` into the audio."""

    at_s: float
    after_audio_s: float
    length_s: float


@dataclass(frozen=True, slots=True)
class TextPause:
    """The player stood still because the text was not there; ``resume_s`` after it, audio was."""

    at_s: float
    after_audio_s: float
    length_s: float
    resume_s: float


@dataclass(frozen=True, slots=True)
class Playout:
    """One simulated playback.

    ``min_lead_s`` is the least audio in hand just before an arrival, on a clock that stops for
    pauses of the text only: negative means that starting that much later would have avoided
    every stall. ``None`` when a single arrival held everything.
    """

    prebuffer_s: float
    start_s: float
    end_s: float
    stalls: tuple[Stall, ...]
    pauses: tuple[TextPause, ...]
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
        still = [(s.after_audio_s, s.length_s) for s in (*self.stalls, *self.pauses)]
        return self.start_s + position_s + sum(s for after, s in still if after <= position_s)


def with_samples(arrivals: Iterable[Arrival]) -> list[Arrival]:
    """Only what can be played: headers and empty messages go."""
    return [arrival for arrival in arrivals if arrival.samples > 0]


def play(
    arrivals: Sequence[Arrival],
    rate: int,
    prebuffer_s: float,
    ended_s: float,
    text_due: TextDue | None = None,
    resume_s: float = 0.0,
) -> Playout | None:
    """Simulate one playback at ``rate`` samples/s; ``None`` when nothing could be played.

    With ``text_due``, waiting for the text is a pause. A server that speaks within ``resume_s``
    of the text is in time; if it takes longer, all that it took is a stall.
    """
    audio = with_samples(arrivals)
    if not audio:
        return None
    held_s, first, start_s = _fill(audio, rate, prebuffer_s, ended_s)
    dry_at_s = start_s + held_s
    received_s = held_s
    paused_s = 0.0
    stalls: list[Stall] = []
    pauses: list[TextPause] = []
    leads: list[float] = []
    for arrival in audio[first:]:
        hole_s = arrival.at_s - dry_at_s
        if hole_s > 0:
            due_s = text_due(received_s) if text_due else None
            took_s = math.inf if due_s is None else max(0.0, arrival.at_s - due_s)
            waits_s = hole_s if took_s <= resume_s else max(0.0, hole_s - took_s)
            if waits_s > 0:
                pauses.append(TextPause(dry_at_s, received_s, waits_s, took_s))
                paused_s += waits_s
            if hole_s - waits_s >= INAUDIBLE_S:
                stalls.append(Stall(dry_at_s + waits_s, received_s, hole_s - waits_s))
            dry_at_s = arrival.at_s
        leads.append(received_s - (arrival.at_s - start_s - paused_s))
        dry_at_s += arrival.samples / rate
        received_s += arrival.samples / rate
    return Playout(
        prebuffer_s,
        start_s,
        dry_at_s,
        tuple(stalls),
        tuple(pauses),
        min(leads) if leads else None,
        rate,
    )


def _fill(
    audio: Sequence[Arrival], rate: int, prebuffer_s: float, ended_s: float
) -> tuple[float, int, float]:
    """(audio in hand when the player starts, arrivals taken by then, when it starts)."""
    held_s = 0.0
    for taken, arrival in enumerate(audio, start=1):
        held_s += arrival.samples / rate
        if held_s >= prebuffer_s:
            return held_s, taken, arrival.at_s
    return held_s, len(audio), max(ended_s, audio[-1].at_s)

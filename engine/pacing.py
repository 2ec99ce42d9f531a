"""Who runs and how much sound to make at a time, from how far ahead each listener is.

Pure numbers. A listener's lead is the audio made for them that they have not heard yet. Steps go
to those who are about to run dry, then to those who have heard nothing yet; who has plenty sits
out while anybody is short. The first chunk of sound leaves as early as players take it; from then
on chunks grow with the lead, so that a short first chunk never empties a player and a comfortable
stream costs few messages.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from .config import Limits

FIRST_CHUNK_S = 0.08
_STEPS = ((0.1, 0.0), (0.6, 0.1), (1.0, 0.2))
"""(lead below which, smallest chunk): both in seconds."""
_COMFORTABLE_CHUNK_S = 0.4


def choose(
    leads: Sequence[float | None], starting: bool, limits: Limits
) -> tuple[list[int], float | None]:
    """Which of ``leads`` run in the next step, most urgent first, and in how many seconds somebody
    who was left out may be due (None: nobody was).

    A lead is None before the first sound. ``starting``: somebody else is being prepared for theirs.
    """
    urgency = [limits.urgent_lead_s if lead is None else lead for lead in leads]
    hurry = starting or any(value <= limits.urgent_lead_s for value in urgency)
    most = limits.park_lead_s / 2 if hurry else limits.park_lead_s
    if not hurry and all(value > most for value in urgency):
        # Nobody is near: an idle device may as well run ahead, up to a point.
        most = limits.furthest_lead_s
    # Sorting is stable, so among equals the order given holds: first come, first served.
    chosen = sorted(
        (index for index, value in enumerate(urgency) if value <= most),
        key=lambda index: urgency[index],
    )
    left_out = min((value for value in urgency if value > most), default=None)
    return chosen, None if left_out is None else left_out - most


@dataclass(slots=True)
class Playout:
    """One listener: since when audio has been reaching them, and how much did."""

    since_s: float | None = None
    sent_s: float = 0.0

    def lead_s(self, now: float) -> float:
        """Audio sent and not yet played; 0 before the first, and when it was all played."""
        return 0.0 if self.since_s is None else max(0.0, self.since_s + self.sent_s - now)

    def sent(self, seconds: float, now: float) -> bool:
        """Account for audio that leaves now; True when it begins a stretch of playing."""
        begins = self.lead_s(now) <= 0.0
        if begins:
            self.since_s, self.sent_s = now, 0.0
        self.sent_s += seconds
        return begins


def due_frames(ready: int, complete: bool, lead_s: float, frame_s: float) -> int:
    """How many of ``ready`` frames to decode now; 0: wait for more.

    ``complete``: no more will follow them. ``lead_s`` 0: nothing is playing.
    """
    return ready if ready and (complete or ready >= _least(lead_s, frame_s)) else 0


def due_in_s(ready: int, lead_s: float, frame_s: float) -> float | None:
    """When ``ready`` frames become due though no more arrive: in how many seconds, None: never."""
    for below_s, _ in reversed(_STEPS):
        if lead_s >= below_s and ready and ready >= _least(below_s - 1e-9, frame_s):
            return lead_s - below_s + 1e-3
    return None


def _least(lead_s: float, frame_s: float) -> int:
    """The smallest chunk, in frames, with ``lead_s`` left to play."""
    least_s = _COMFORTABLE_CHUNK_S
    if lead_s <= 0.0:
        least_s = FIRST_CHUNK_S
    elif lead_s < _STEPS[-1][0]:
        for below_s, size_s in _STEPS:
            if lead_s < below_s:
                least_s = size_s
                break
    # A hair less, so that two frames of 0.05 s are 0.1 s.
    return max(1, math.ceil(least_s / frame_s - 1e-6))

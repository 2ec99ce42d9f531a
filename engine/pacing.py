"""How much sound to make at a time, from what is ready and how far the listener is behind.

Pure numbers. The first chunk leaves as early as players take it; from then on chunks grow with
the lead, so that a short first chunk never empties a player and a comfortable stream costs few
messages.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

FIRST_CHUNK_S = 0.08
_STEPS = ((0.3, 0.0), (0.6, 0.1), (1.0, 0.2))
"""(lead below which, smallest chunk): both in seconds."""
_COMFORTABLE_CHUNK_S = 0.4


@dataclass(slots=True)
class Playout:
    """One listener: since when audio has been reaching them, and how much did."""

    since_s: float | None = None
    sent_s: float = 0.0

    def lead_s(self, now: float) -> float:
        """Audio sent and not yet played; 0 before the first."""
        return 0.0 if self.since_s is None else self.since_s + self.sent_s - now

    def sent(self, seconds: float, now: float) -> bool:
        """Account for audio that leaves now; True when it begins a stretch of playing."""
        begins = self.since_s is None or self.lead_s(now) <= 0.0
        if begins:
            self.since_s, self.sent_s = now, 0.0
        self.sent_s += seconds
        return begins


def due_frames(ready: int, complete: bool, first: bool, lead_s: float, frame_s: float) -> int:
    """How many of ``ready`` frames to decode now; 0: wait for more.

    ``complete``: no more will follow them. ``first``: the stretch has sent nothing yet.
    """
    if complete:
        return ready
    if first:
        least = FIRST_CHUNK_S
    else:
        least = next((size for lead, size in _STEPS if lead_s < lead), _COMFORTABLE_CHUNK_S)
    # A hair less, so that two frames of 0.05 s are 0.1 s.
    needed = max(1, math.ceil(least / frame_s - 1e-6))
    return ready if ready >= needed else 0

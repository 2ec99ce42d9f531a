"""``Listening``: how much of the last turn its client has played, and what was said in that.

Outlives the turn, whose audio may still play when the engine is through with it. Pure; owned by
the event loop's thread.
"""

from __future__ import annotations

from shoal.proto.messages import Heard

from .alignment import UNIT_S, Alignment
from .sent_text import SentText


class Listening:
    """One connection's. Times are seconds of the client's audio."""

    def __init__(self) -> None:
        self._alignment: Alignment | None = None
        self._sent = SentText()
        self._played_s: float | None = None
        self._pace_s = UNIT_S

    def begin(self, sample_rate: int, speed: float, detailed: bool, sent: SentText) -> Alignment:
        """A turn begins, at the pace that the one before had in the end; ``sent`` has its text."""
        self.forget()
        self._sent = sent
        self._alignment = Alignment(sample_rate, speed, detailed, self._pace_s)
        return self._alignment

    def forget(self) -> None:
        """Nothing of the turn plays any more."""
        if self._alignment is not None:
            self._pace_s = self._alignment.unit_s
        self._alignment = self._played_s = None
        self._sent = SentText()

    def played(self, audio_s: float) -> None:
        """The client says so; it never plays less than it said before."""
        self._played_s = max(audio_s, self._played_s or 0.0)

    def inserted(self, at_samples: int, total_s: float) -> None:
        """As ``Alignment.inserted``."""
        if self._alignment is not None:
            self._alignment.inserted(at_samples, total_s)

    def heard(self) -> Heard | None:
        """``None`` where there is no turn, or its client never said how far it is."""
        if self._alignment is None or self._played_s is None:
            return None
        chars = self._alignment.heard(self._played_s)
        return Heard(self._sent.upto(chars), chars)

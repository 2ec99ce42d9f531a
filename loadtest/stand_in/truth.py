"""What the stand-in really did, by its own clock: what a report about it is checked against."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from .lie import HONEST, Lie

MAX_TURNS = 10_000


@dataclass(slots=True)
class Truth:
    """One turn. Times of the monotonic clock, each taken just before the bytes were handed over.

    ``text_s`` is when the first text had been read; ``sent_s`` belongs to the chunks of audio.
    """

    number: int
    lie: Lie
    asked_s: float | None = None
    accepted_s: float | None = None
    text_s: float | None = None
    sent_s: list[float] = field(default_factory=list[float])
    sent_samples: list[int] = field(default_factory=list[int])
    header_s: float | None = None
    cut_s: float | None = None
    end_s: float | None = None
    declared_s: float = 0.0


class Ledger:
    """Hands out the lies in order, round and round, and keeps the last turns' truths."""

    def __init__(self, lies: Sequence[Lie] = ()) -> None:
        self.lies = tuple(lies) or (HONEST,)
        self.turns: deque[Truth] = deque(maxlen=MAX_TURNS)
        self._count = 0

    @property
    def next_lie(self) -> Lie:
        """The lie of the turn that will begin next; its handshake needs to know."""
        return self.lies[self._count % len(self.lies)]

    def begin(self) -> Truth:
        """The next turn."""
        truth = Truth(self._count, self.next_lie)
        self._count += 1
        self.turns.append(truth)
        return truth


def now_s() -> float:
    """The clock that the load tester uses too."""
    return time.monotonic()

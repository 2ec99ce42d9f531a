"""What was seen of one turn: plain facts with times, before any judgement. Pure.

All times are seconds of one monotonic clock shared by every process of the run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum


class Ending(Enum):
    """How a turn ended, from the client's side."""

    FINISHED = "finished"  # the protocol's own end signal arrived
    CUT = "cut"  # we interrupted it (barge-in)
    REFUSED = "refused"  # the server said that it is full
    FAILED = "failed"  # the server or the transport reported an error
    BROKEN = "broken"  # the connection ended without the end signal
    TIMEOUT = "timeout"  # nothing ended it within the time allowed


class Kind(Enum):
    """Which population a turn belongs to; they are never mixed in one figure."""

    WARM = "warm"  # connection and voice were prepared before the text was due
    COLD = "cold"  # the clock starts before connecting


@dataclass(frozen=True, slots=True)
class Arrival:
    """One message with audio. ``samples`` became decodable because of it; 0 for a bare header."""

    at_s: float
    size_bytes: int
    samples: int


@dataclass(frozen=True, slots=True)
class SentenceEnd:
    """A sentence of the text was complete at ``due_s``; ``chars`` of the text had come by then."""

    due_s: float
    chars: int


@dataclass(frozen=True, slots=True)
class Sound:
    """What the decoded audio itself shows. Sample counts are at the rate it is played at."""

    first_audible_sample: int | None = None
    peak: int = 0
    clipped_samples: int = 0
    tail_dbfs: float | None = None
    leftover_bytes: int = 0
    repeated_headers: int = 0


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn as it happened.

    ``scheduled_s`` is when its first text was due and ``began_s`` when that really left;
    ``speakable_s`` is when its first speakable text (a whole sentence, or all there is) was due
    and ``sent_s`` when that left. For text sent whole the two pairs are one. A tool that only
    keeps what really happened forgives a slow server.

    ``rate`` is the rate the audio is played at, ``header_rate`` what the stream itself declares
    (``None`` for headerless audio), ``declared_audio_s`` the length the server claims.
    ``sentences`` is when the text came, where it came piece by piece. ``parts`` is how many
    utterances a server may make of it: its sentences, of text that comes slowly its clauses too.
    """

    index: int
    user: int
    kind: Kind
    scheduled_s: float
    speakable_s: float
    began_s: float | None
    sent_s: float | None
    text_done_s: float | None
    ended_s: float
    ending: Ending
    chars: int
    rate: int
    voice: str = ""
    detail: str = ""
    connect_s: float | None = None
    prepare_s: float | None = None
    cut_s: float | None = None
    header_rate: int | None = None
    declared_audio_s: float | None = None
    arrivals: tuple[Arrival, ...] = ()
    sound: Sound = Sound()
    sentences: tuple[SentenceEnd, ...] = ()
    parts: int = 1
    stages: Mapping[str, float] = field(default_factory=dict[str, float])

    @property
    def samples(self) -> int:
        """Decodable samples received, those after a cut included."""
        return sum(arrival.samples for arrival in self.arrivals)

"""One stream as the decode thread sees it: its text, its place in the KV cache, its playout.

Owns per-stream facts and the small arithmetic on them; what happens to streams is the scheduler's.
One thread: decode's.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum, auto

from .api import Open, Priority, StreamId
from .jobs import Composed, Utterance
from .prefixes import PrefixKey
from .runner import Int32Array, SlotSampling
from .spans import Span
from .text import FlushMark, TextFeed


class Phase(Enum):
    """Where a stream is between one utterance and the next."""

    IDLE = auto()
    """Nothing to say: no slot, perhaps a context that may be evicted."""
    WAITING = auto()
    """An utterance is ready; a slot, pages or the voice's prefix are not."""
    PREFILLING = auto()
    """Has a slot; the utterance's KV is being written."""
    JOINING = auto()
    """Prefilled; the next step starts it."""
    RUNNING = auto()


_SEATED = (Phase.PREFILLING, Phase.JOINING, Phase.RUNNING)


@dataclass(slots=True, eq=False)
class Context:
    """A stream's KV: its page table (every page held once), and how far it is written.

    ``promised``: pages beyond these that the memory keeps free for the utterance being spoken.
    """

    pages: list[int]
    length: int
    promised: int = 0


@dataclass(slots=True, eq=False)
class Spoken:
    """An utterance and the columns it became: what a restarted context can be told again."""

    turn: Int32Array
    frames: list[Int32Array] = field(default_factory=list["Int32Array"])


@dataclass(slots=True, eq=False)
class Past:
    """Everything that made a context what it is, from when it began: enough to make it again.

    ``spoken``: what was retold first. ``draws``: how many frames the stream had drawn before.
    """

    spoken: Spoken | None
    draws: int
    utterances: list[Utterance] = field(default_factory=list[Utterance])


@dataclass(slots=True, eq=False)
class Stream:
    """See the module."""

    opened: Open
    id: StreamId = field(init=False)
    backfill: bool = field(init=False)
    """Nobody listens: it has what live streams leave over."""
    opened_s: float
    order: int
    """Rank of opening; first come, first served."""
    sampling: SlotSampling
    feed: TextFeed
    phase: Phase = Phase.IDLE
    paused: bool = False
    ending: bool = False
    """No more text will come."""

    # Voice
    prefix_columns: Int32Array | None = None
    prefix: PrefixKey | None = None
    announced: bool = False
    """``Opened`` was sent."""
    prefix_was_cached: bool = True
    note: str = ""
    """What ``Opened`` tells the client of its voice."""

    # Text
    composing: bool = False
    ready: deque[Composed | FlushMark] = field(default_factory=deque["Composed | FlushMark"])
    utterances: deque[Utterance] = field(default_factory=deque[Utterance])
    """What is left of the segment that is being spoken."""
    text: str | None = None
    """The source text that the next utterance begins, or None in the middle of a segment."""
    span: Span = field(default=Span())
    """Where it stands in what was pushed."""

    # Place
    slot: int | None = None
    generation: int = -1
    context: Context | None = None
    spoken: Spoken | None = None
    closed: bool = True
    """The context's last assistant turn was closed (or there is none)."""
    job: int | None = None
    """The prefill that is under way for this stream."""
    join_column: Int32Array | None = None
    join_position: int = 0
    """Where the utterance's first step feeds."""
    next_position: int = 0
    """The position that the next launched step feeds."""
    held_page: int | None = None
    """A prefix's page that the prefill under way copies from."""
    last_step: int = -1
    frames_left: int = 0
    draws: int = 0

    # Batch priority only
    past: Past | None = None
    silent: int = 0
    """How many utterances from the current one on are only said again, to make the context."""
    resuming: bool = False
    """The one after them was begun and parked: it is heard from where it was."""

    # Playout
    waiting_since_s: float | None = None
    """Since when the utterance that comes next has been waiting for a slot and pages."""
    text_s: float | None = None
    """When the first speakable segment was taken; likewise the next two, of that segment."""
    asked_s: float = 0.0
    slot_s: float = 0.0
    held_until_s: float | None = None
    """When a silence that the listener is not near enough for may follow."""
    started: bool = False
    """Some utterance was begun: this stream is never refused for want of a slot any more."""
    frames: int = 0
    """Frames of sound made so far, silences included."""
    playing_since_s: float | None = None
    """When the listener began to hear what is playing, which is all but the first
    ``frames_before`` frames; None when nothing is."""
    frames_before: int = 0

    def __post_init__(self) -> None:
        # Asked for many times a step, by every step.
        self.id = self.opened.stream
        self.backfill = self.opened.priority is Priority.BATCH

    @property
    def arriving(self) -> bool:
        """Somebody waits for its next sound, and it has no steps yet."""
        silent = self.playing_since_s is None and not self.backfill
        return silent and (self.composing or self.phase is Phase.WAITING)

    @property
    def waits_to_speak(self) -> bool:
        """It has text and no place, and somebody listens. Text that waits for more of it, or for a
        listener to go on, may do so for ever: it counts only until the voice was there once."""
        if self.backfill:
            return False
        if self.phase is Phase.WAITING:
            return True
        if not self.announced:
            return bool(self.composing or self.ready or not self.feed.empty)
        soon = self.composing or (bool(self.ready) and not self.paused)
        return soon and self.phase is Phase.IDLE and self.slot is None

    @property
    def only_speaks(self) -> bool:
        """Nothing but its steps is to be done until a command, a message or its end comes."""
        return (
            self.phase in _SEATED
            and self.announced
            and not (self.composing or self.backfill)
            and self.feed.empty
        )

    @property
    def at_rest(self) -> bool:
        """All that it was given is said; nothing is to be done until more comes."""
        return (
            self.phase is Phase.IDLE
            and not (self.composing or self.ready)
            and not self.feed.pending
        )

    def lead_s(self, now: float, frame_s: float) -> float | None:
        """Sound that was made and not heard yet; None while nothing is playing."""
        if self.playing_since_s is None:
            return None
        return self.playing_since_s + (self.frames - self.frames_before) * frame_s - now

    def begin_playing_anew(self, now: float, frame_s: float) -> None:
        """Count from the next sound on when the listener has run dry meanwhile."""
        lead = self.lead_s(now, frame_s)
        if lead is not None and lead <= 0.0:
            self.playing_since_s = None

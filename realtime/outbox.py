"""``Outbox``: what waits for one client, in order, and how many seconds of audio that is.

Pure: no clock, no socket. It counts audio from the moment the engine delivered it until the
client's machine has acknowledged the bytes: being encoded, queued here, or on the wire. Over the
high mark the engine shall pause the stream, under the low mark resume it. So a reader that stops
costs a bounded amount of memory and no generation. Owned by the event loop's thread.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final

from .link import Payload, payload_bytes

HIGH_S: Final = 5.0
LOW_S: Final = 2.5
WIRE_S: Final = 2.0
WIRE_BYTES: Final = 256 << 10
MAX_NOTES: Final = 64
MAX_MARKS: Final = 1024


class Kind(Enum):
    AUDIO = auto()
    FINISH = auto()
    MARK = auto()  # says something of the turn's audio before it, and goes with it
    NOTE = auto()  # an error, a log event or an answer


class OutboxFull(Exception):
    """The client provokes answers and does not read them."""


@dataclass(frozen=True, slots=True)
class Outgoing:
    """One message for the client. ``audio_s`` is how long its audio plays."""

    payload: Payload = field(repr=False)
    kind: Kind
    audio_s: float = 0.0


class Outbox:
    """See the module."""

    def __init__(
        self,
        high_s: float = HIGH_S,
        low_s: float = LOW_S,
        wire_s: float = WIRE_S,
        wire_bytes: int = WIRE_BYTES,
    ) -> None:
        """At most ``wire_s`` and ``wire_bytes`` are handed to the transport beyond what the
        client has acknowledged: the rest stays here, where a cancel can still drop it."""
        self._high_s = high_s
        self._low_s = low_s
        self._max_wire_s = wire_s
        self._max_wire_bytes = wire_bytes
        self._queue: deque[Outgoing] = deque()
        self._wire: deque[tuple[int, float]] = deque()
        self._encoding_s = 0.0
        self._queued_s = 0.0
        self._wire_s = 0.0
        self._wire_bytes = 0
        self._notes = 0
        self._marks = 0
        self._paused = False

    @property
    def held_s(self) -> float:
        """Audio that the engine delivered and the client has not got."""
        return self._encoding_s + self._queued_s + self._wire_s

    @property
    def empty(self) -> bool:
        return not self._queue

    @property
    def paused(self) -> bool:
        """Whether the engine was last told to pause."""
        return self._paused

    def expect(self, audio_s: float) -> None:
        """The engine delivered audio, which will be encoded."""
        self._encoding_s += audio_s

    def encoded(self, audio_s: float) -> None:
        """So much of what was expected went through the encoder; what came of it is pushed. That
        may play for longer or shorter: at another speed, or with a pause that was cut."""
        self._encoding_s = max(0.0, self._encoding_s - audio_s)

    def push(self, item: Outgoing) -> None:
        """:raises OutboxFull: too many notes or marks wait."""
        match item.kind:
            case Kind.AUDIO:
                self._queued_s += item.audio_s
            case Kind.FINISH:
                self._encoding_s = 0.0
            case Kind.NOTE:
                if self._notes >= MAX_NOTES:
                    raise OutboxFull
                self._notes += 1
            case Kind.MARK:
                if self._marks >= MAX_MARKS:
                    raise OutboxFull
                self._marks += 1
        self._queue.append(item)

    def pop(self) -> Outgoing | None:
        """The next message to put on the wire; ``None`` when there is none or the wire is full."""
        if not self._queue or self.wire_full:
            return None
        item = self._queue.popleft()
        self._queued_s = max(0.0, self._queued_s - item.audio_s)
        self._notes -= item.kind is Kind.NOTE
        self._marks -= item.kind is Kind.MARK
        size = payload_bytes(item.payload)
        self._wire.append((size, item.audio_s))
        self._wire_bytes += size
        self._wire_s += item.audio_s
        return item

    @property
    def wire_full(self) -> bool:
        return self._wire_s >= self._max_wire_s or self._wire_bytes >= self._max_wire_bytes

    @property
    def wire_bytes(self) -> int:
        """An upper bound of the bytes handed out and not known to be acknowledged."""
        return self._wire_bytes

    @property
    def must_ask(self) -> bool:
        """Whether it matters how much of what was handed out is acknowledged by now: the answer
        is a system call away, and what is not known counts as not acknowledged."""
        return self._paused or self.wire_full or self.held_s > self._high_s

    def unacknowledged(self, wire_bytes: int) -> None:
        """So many of the bytes handed out last are still on their way."""
        while self._wire and self._wire_bytes - self._wire[0][0] >= wire_bytes:
            size, audio_s = self._wire.popleft()
            self._wire_bytes -= size
            self._wire_s -= audio_s
        if not self._wire:
            self._wire_s = 0.0

    def drop_turn(self) -> None:
        """Forget the turn's audio, marks and finish; notes stay. What is on the wire stays sent."""
        self._queue = deque(item for item in self._queue if item.kind is Kind.NOTE)
        self._encoding_s = self._queued_s = 0.0
        self._marks = 0
        self._paused = False

    def pause_change(self) -> bool | None:
        """True: pause the engine now. False: resume it. ``None``: as before."""
        if not self._paused and self.held_s > self._high_s:
            self._paused = True
            return True
        if self._paused and self.held_s < self._low_s:
            self._paused = False
            return False
        return None

"""The engine's port: frozen commands in, frozen events out. No torch, no asyncio, no wire format.

Everything that crosses a thread boundary between a gateway and an engine is one of the
dataclasses below. A gateway calls :meth:`Engine.submit` from any thread; the engine calls the
``deliver`` function it was started with, from its own threads, with a whole batch of events.

Order: events of one stream arrive in order. ``Opened`` comes first, ``Finished`` or ``Failed``
exactly once and last. After a ``Cancel`` was submitted, nothing more needs to be delivered for
that stream: a receiver drops what still arrives for an id that it forgot, and an engine sends
no terminal event for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NewType, Protocol

from .spans import Span

StreamId = NewType("StreamId", int)
"""One turn. Never reused in a process, so stale audio cannot be mistaken for new audio."""


class Fault(Enum):
    """Whose fault a failure is; a gateway maps each to its own wire error."""

    CLIENT = "client"  # unknown voice, reference that is not audio, text over the limit
    BUSY = "busy"  # no slot came free within the bounded wait
    ENGINE = "engine"  # ours: a traceback was logged


class Latency(Enum):
    """How eagerly a segment is cut and how small the first chunk is."""

    LOW = "low"
    BALANCED = "balanced"
    NORMAL = "normal"


class Priority(Enum):
    """Who goes first when there is not room for all."""

    LIVE = "live"  # somebody listens
    BATCH = "batch"  # nobody does: takes what is left over, and gives it back at any frame


@dataclass(frozen=True, slots=True)
class Reference:
    """A recording and what is said in it.

    ``audio`` is the bytes of a file (wav, mp3, flac or ogg; any rate; mono or stereo).
    """

    audio: bytes = field(repr=False)
    text: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Voice:
    """Which voice speaks. All empty: the model's default voice.

    ``voice_id`` names a voice of the store and wins over ``references``. ``speakers``, two or more
    voices without speakers of their own, win over both: number i says what the text puts behind
    ``<|speaker:i|>``. Only for models with ``EngineInfo.speakers``.
    """

    voice_id: str | None = None
    references: tuple[Reference, ...] = ()
    speakers: tuple[Voice, ...] = ()


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn; ``None`` means the model's own default (``EngineInfo.sampling``).

    ``temperature`` 0 is greedy. Equal ``seed`` gives equal codes whatever else runs beside it;
    no seed means a fresh one per stream.
    """

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    max_frames_per_segment: int | None = None


@dataclass(frozen=True, slots=True)
class Segmentation:
    """How text deltas become the segments that the model speaks one after another.

    ``max_chars`` is an upper bound for one segment, ``min_chars`` keeps tiny sentences together
    while audio is already playing. ``normalize`` False: a model that reads letters only is given
    text as it is written, with digits one by one; for others it makes no difference.
    """

    latency: Latency = Latency.NORMAL
    max_chars: int = 300
    min_chars: int = 50
    normalize: bool = True


# Commands ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Prepare:
    """Prefill a voice's context into the cache before any stream asks for it. No event follows."""

    voice: Voice


@dataclass(frozen=True, slots=True)
class Open:
    """Begin a stream. Its voice is prepared and prefilled at once; no slot is taken yet.

    A stream of batch priority waits for its slot without a limit, may lose it to a live one in the
    middle of a word, and goes on from there later: what is heard is the same, given a seed.
    """

    stream: StreamId
    voice: Voice = Voice()
    sampling: Sampling = Sampling()
    segmentation: Segmentation = Segmentation()
    priority: Priority = Priority.LIVE


@dataclass(frozen=True, slots=True)
class PushText:
    """Append text verbatim. Text after ``EndText`` is ignored."""

    stream: StreamId
    text: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Flush:
    """Speak all that is buffered now; a hard boundary, not the end.

    ``Flushed(mark)`` follows once the audio of everything before it was delivered, at once when
    there was nothing.
    """

    stream: StreamId
    mark: int = 0


@dataclass(frozen=True, slots=True)
class EndText:
    """No more text: speak the rest, then ``Finished``."""

    stream: StreamId


@dataclass(frozen=True, slots=True)
class Cancel:
    """Forget the stream. Its slot is free at the next step boundary."""

    stream: StreamId


@dataclass(frozen=True, slots=True)
class Pause:
    """The client's side is full: produce no more until ``Resume``. Idempotent."""

    stream: StreamId


@dataclass(frozen=True, slots=True)
class Resume:
    """Undo ``Pause``. Idempotent."""

    stream: StreamId


Command = Prepare | Open | PushText | Flush | EndText | Cancel | Pause | Resume


# Events -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Opened:
    """The voice's context is prefilled: from here on only text stands between stream and sound."""

    stream: StreamId
    prefill_s: float
    cached: bool
    note: str = ""
    """What the client may want to know of its voice, in its terms."""


@dataclass(frozen=True, slots=True)
class SegmentStarted:
    """A segment's first frame is about to be delivered.

    ``text`` is what the client sent, less what is left out inside it (code, control characters)
    and around it; ``span`` is its place in that. ``at_samples``: where in the stream's audio (at
    the model's rate) it begins.
    """

    stream: StreamId
    index: int
    text: str = field(repr=False)
    at_samples: int
    span: Span = field(default=Span())


@dataclass(frozen=True, slots=True)
class Timing:
    """Where the time before a stream's first audio went, in seconds.

    From the first speakable text to the first chunk: waiting for a slot, prefilling the text,
    the first frames of the AR, the codec.
    """

    wait_s: float
    prefill_s: float
    first_frames_s: float
    codec_s: float


@dataclass(frozen=True, slots=True)
class Pcm:
    """Audio of one stream: mono signed 16-bit little-endian at ``EngineInfo.sample_rate``.

    ``seq`` counts from 0 without gaps. ``timing`` is set on the first chunk only. ``due_s``: when,
    by the engine's clock, whoever plays what came before has played it all; whoever is short of
    time sends what is due first.
    """

    stream: StreamId
    seq: int
    samples: bytes = field(repr=False)
    timing: Timing | None = None
    due_s: float = field(default=0.0, compare=False)


@dataclass(frozen=True, slots=True)
class Flushed:
    """All audio of what was pushed before ``Flush(mark)`` has been delivered."""

    stream: StreamId
    mark: int
    at_samples: int


@dataclass(frozen=True, slots=True)
class Finished:
    """Everything was spoken and delivered."""

    stream: StreamId
    frames: int
    samples: int
    segments: int


@dataclass(frozen=True, slots=True)
class Failed:
    """The stream ended early; ``message`` is in the client's terms and holds no text of theirs."""

    stream: StreamId
    fault: Fault
    message: str


Event = Opened | SegmentStarted | Pcm | Flushed | Finished | Failed


# The port ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What the loaded model is. Constant after start."""

    model: str
    sample_rate: int
    frame_samples: int
    codebooks: int
    slots: int
    max_positions: int
    device: str
    sampling: Sampling
    """The model's own defaults: every field but ``seed`` is set."""
    voices_by_reference: bool = True
    speakers: bool = True
    """Whether one stream may have several voices."""
    latin_only: bool = False
    """Whether letters of other scripts are left out of what is spoken."""
    note: str = ""
    """Shown to users when it matters, e.g. that weights are random."""


@dataclass(frozen=True, slots=True)
class TierStats:
    """One tier of the voice cache. ``promotions``: entries taken up from another tier."""

    entries: int = 0
    bytes: int = 0
    limit_bytes: int = 0
    hits: int = 0
    misses: int = 0
    evictions: int = 0
    promotions: int = 0


@dataclass(frozen=True, slots=True)
class EngineStats:
    """A snapshot for metrics; cheap to take from any thread."""

    slots_busy: int = 0
    streams_open: int = 0
    streams_waiting: int = 0
    oldest_wait_s: float = 0.0
    pages_used: int = 0
    pages_total: int = 0
    hot: TierStats = TierStats()
    """Voices as KV on the device: a promotion is a prefill of known codes, or a copy from warm."""
    warm: TierStats = TierStats()
    """Voices as KV in the host's memory: a promotion was copied from the device."""
    codes: TierStats = TierStats()
    """Voices as codes in the host's memory: a promotion was read from disk."""
    cold: TierStats = TierStats()
    """Codes on disk. Those beside stored recordings count as hits, but not as entries."""
    encoded: int = 0
    """Voices whose recordings had to go through the codec."""
    voices_waiting: int = 0
    """Voices whose recordings wait for the encoder, the one that it works on included."""
    voices_skipped: int = 0
    """Voices that nobody waited for any more before any work was done for them."""
    voices_refused: int = 0
    """Voices that were too many or too large beside those under way, or not there in time."""
    steps: int = 0
    frames: int = 0
    cut_off: int = 0
    """Utterances ended at their limit of frames: the model did not stop by itself."""
    last_step_s: float = 0.0
    min_lead_s: float = 0.0
    batch_slots: int = 0
    """Of ``slots_busy``, those of batch priority: a live turn may have them."""
    batch_waiting: int = 0
    """Streams of batch priority that wait for room."""
    parked: int = 0
    """How often a stream of batch priority lost its slot to a live one."""


@dataclass(frozen=True, slots=True)
class VoiceInfo:
    """A voice of the store."""

    voice_id: str
    seconds: float
    created_at: float
    doubt: str = field(default="", compare=False)
    """Where it was just added: why its transcripts cannot be what is said in its recordings."""


Deliver = Callable[[Sequence[Event]], None]
OnFatal = Callable[[BaseException], None]
Progress = Callable[[str], None]


class Engine(Protocol):
    """What a gateway needs of an engine. ``shoal.engine.service`` and ``.fake`` are the two."""

    @property
    def info(self) -> EngineInfo:
        """Valid from construction on."""
        ...

    def start(self, deliver: Deliver, on_fatal: OnFatal) -> None:
        """Warm up and start the threads; returns once a first turn would be fast.

        ``deliver`` is called from engine threads and must not block. ``on_fatal`` is called once
        when a thread died: the process should exit.
        """
        ...

    def submit(self, command: Command) -> None:
        """Hand over a command; never blocks, callable from any thread. Unknown ids are ignored."""
        ...

    def stats(self) -> EngineStats:
        """A snapshot, from any thread."""
        ...

    def voices(self) -> Sequence[VoiceInfo]:
        """The voices of the store. May read the disk: call it off an event loop."""
        ...

    def stop(self) -> None:
        """Stop the threads and join them. Streams that still run get no further event."""
        ...

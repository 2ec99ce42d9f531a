"""The live protocol's messages as frozen dataclasses, and the limits that hold for them.

Other wire formats are translated to the same messages. Nothing here does I/O or knows bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

MAX_MESSAGE_BYTES: Final = 32 << 20
"""Largest message from a client: references travel inside ``start``."""
MAX_TEXT_CHARS: Final = 1 << 20
"""Most text that may wait to be spoken in one turn."""
MAX_REFERENCES: Final = 20
MAX_AUDIO_BYTES: Final = 64 << 10
"""Largest audio payload of one message to a client."""
PROTOCOL_VERSION: Final = 1
"""What ``Ready`` names. It grows when a client that ignores what it does not know would break."""
MAX_ID_CHARS: Final = 256
"""Longest id that a client may give a turn, a flush or a voice."""
MIN_PCM_BYTES: Final = 1025
"""Least payload of a pcm message: clients in the field drop those of 1,024 bytes and fewer."""

AudioFormat = Literal["wav", "pcm", "mp3", "opus", "flac", "ulaw", "alaw", "pcm_f32le"]
LatencyMode = Literal["normal", "balanced", "low"]
PriorityName = Literal["live", "batch"]
ClientId = str | int
"""A name that a client chose; it comes back as it was."""
FinishReason = Literal["stop", "error"]


@dataclass(frozen=True, slots=True)
class Reference:
    """A recording to speak like, as the bytes of an audio file, and what is said in it."""

    audio: bytes = field(repr=False)
    text: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Prosody:
    """``speed`` 0.5..2.0 as a factor, ``volume_db`` -20..20."""

    speed: float = 1.0
    volume_db: float = 0.0
    normalize_loudness: bool = True


@dataclass(frozen=True, slots=True)
class TtsRequest:
    """What one turn shall sound like; every field within its range.

    ``None`` in the sampling fields means the model's own default. ``opus_bitrate_bps`` is -1000
    for automatic. ``max_new_tokens`` counts frames of one segment, ``None`` is no limit.
    """

    text: str = field(default="", repr=False)
    format: AudioFormat = "mp3"
    sample_rate: int = 44_100
    mp3_bitrate_kbps: int = 128
    opus_bitrate_bps: int = -1000
    chunk_length: int = 300
    min_chunk_length: int = 50
    latency: LatencyMode = "normal"
    normalize: bool = True
    prosody: Prosody = Prosody()
    reference_id: str | None = None
    references: tuple[Reference, ...] = field(default=(), repr=False)
    speakers: tuple[str | tuple[Reference, ...], ...] = field(default=(), repr=False)
    """Two or more voices of one turn, each an id or its recordings; number i speaks behind
    ``<|speaker:i|>``. With them, ``reference_id`` and ``references`` are empty."""
    temperature: float | None = None
    top_p: float | None = None
    repetition_penalty: float | None = None
    max_new_tokens: int | None = None
    condition_on_previous_chunks: bool = True
    seed: int | None = None
    priority: PriorityName = "live"
    """``batch``: nobody listens; live turns go first, at any time."""


# From the client --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Start:
    """Begin a turn; one that still runs is cancelled without a ``Finish``.

    ``timestamps``: the client wants :class:`Aligned` beside the audio. ``ready``: it wants a
    :class:`Ready` first. ``context_id`` comes back on everything that belongs to the turn.
    """

    request: TtsRequest
    timestamps: bool = False
    ready: bool = False
    context_id: ClientId | None = None


@dataclass(frozen=True, slots=True)
class Text:
    """Appended verbatim to the turn's text."""

    text: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Flush:
    """Speak all that was sent so far; not the end.

    With an ``id`` the client wants a :class:`Flushed` when all audio of it was sent, also when
    there was nothing to speak.
    """

    id: ClientId | None = None


@dataclass(frozen=True, slots=True)
class Stop:
    """No more text in this turn."""


@dataclass(frozen=True, slots=True)
class Cancel:
    """End the turn without its finish and without more audio; the connection stays.

    ``played_s`` as in :class:`Played`.
    """

    played_s: float | None = None


@dataclass(frozen=True, slots=True)
class Played:
    """The client's loudspeaker is at ``audio_s`` of the turn's audio."""

    audio_s: float


@dataclass(frozen=True, slots=True)
class Unknown:
    """An event of another version of the protocol: ignored."""


ClientMessage = Start | Text | Flush | Stop | Cancel | Played | Unknown


# To the client ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Audio:
    """The next bytes of the turn's one audio stream."""

    audio: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Finish:
    """The turn is over: ``stop`` after all audio was sent, else ``error`` with a ``message``."""

    reason: FinishReason
    message: str = ""


@dataclass(frozen=True, slots=True)
class Error:
    """Something was refused. ``max_concurrency`` is set when it was for lack of room."""

    error: str
    max_concurrency: int | None = None


@dataclass(frozen=True, slots=True)
class Log:
    """A remark for the client's developer; clients ignore it."""

    message: str


@dataclass(frozen=True, slots=True)
class Flushed:
    """All audio of what was sent before ``Flush(id)`` was sent: ``audio_s`` of the turn so far."""

    id: ClientId
    audio_s: float


@dataclass(frozen=True, slots=True)
class Heard:
    """How much of a turn's text was played, by its alignment; an estimate as that is.

    ``text`` is what the client sent up to the end of what was heard, or the last 100,000
    characters of that; ``chars`` counts code points from the turn's first.
    """

    text: str = field(repr=False)
    chars: int


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The turn was ended by :class:`Cancel`; ``audio_s`` of it had been sent.

    ``heard`` is there when the client had said how far it played.
    """

    audio_s: float
    heard: Heard | None = None


@dataclass(frozen=True, slots=True)
class Ready:
    """A turn began, and this is what will come: how its audio is written, and who speaks."""

    format: AudioFormat
    sample_rate: int
    model: str
    version: int = PROTOCOL_VERSION


@dataclass(frozen=True, slots=True)
class Word:
    """A word of a text, or a character of a script without spaces. Seconds from where its
    segment begins; ``begin`` and ``end`` are its place in the segment's text."""

    text: str = field(repr=False)
    start_s: float
    end_s: float
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Aligned:
    """When the words of one segment are spoken: a snapshot that replaces the one before.

    ``offset_s`` is where the segment begins in the turn's audio, ``audio_s`` how long it plays as
    far as that is known. ``final``: all its audio was made and the times will not change.
    ``chars``: so many code points of the turn's text were sent up to the end of the segment's.
    """

    segment: int
    text: str = field(repr=False)
    offset_s: float
    audio_s: float
    words: tuple[Word, ...] = field(repr=False)
    final: bool
    chars: int = 0


ServerMessage = Audio | Finish | Error | Log | Ready | Flushed | Cancelled | Aligned

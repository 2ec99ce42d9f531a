"""Frozen messages between the engine's threads, beside the port's own commands and events.

decode -> prefill: :class:`ComposeJob`, :class:`PrefillJob`, :class:`SaveJob`; decode -> voice:
:class:`VoiceJob`, :class:`VoiceDrop`; decode -> codec: the ``Codec...`` family. Back to decode:
:class:`Composed`, :class:`Prefilled`, :class:`Saved`, :class:`VoiceReady`, :class:`VoiceFailed`,
:class:`Sounded`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from .api import Event, Fault, StreamId, Voice
from .runner import Int32Array, PrefillChunk
from .spans import Span


@dataclass(frozen=True, slots=True)
class ComposeJob:
    """Turn a segment's text into the columns of user turns.

    ``speaker``: the number of the last speaker mark in the stream's text so far, None before one.
    """

    stream: StreamId
    text: str = field(repr=False)
    speaker: int | None = None
    span: Span = field(default=Span())
    normalize: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class Utterance:
    """One model input: the user turn int32 [L, 1 + codebooks], and how long its text is."""

    columns: Int32Array
    text_bytes: int


@dataclass(frozen=True, slots=True, eq=False)
class Composed:
    """A segment as the model will be asked to say it; no utterances: nothing in it is speakable.

    ``error``: it could not be composed (a traceback was logged).
    """

    stream: StreamId
    text: str = field(repr=False)
    utterances: tuple[Utterance, ...]
    error: bool = False
    span: Span = field(default=Span())


@dataclass(frozen=True, slots=True, eq=False)
class PrefillJob:
    """Write KV, chunk after chunk. ``urgent``: a listener waits for it.

    ``host_pages``, of jobs that are not urgent: where the KV of all the chunks' pages lies already.
    It is copied from there, and computed only where that fails.
    """

    job: int
    chunks: tuple[PrefillChunk, ...]
    urgent: bool
    host_pages: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Prefilled:
    """``job`` is done; ``error`` when it failed (a traceback was logged). ``loaded``: the KV was
    copied from the host's memory."""

    job: int
    error: bool = False
    loaded: bool = False


@dataclass(frozen=True, slots=True)
class SaveJob:
    """Copy the KV in ``pages`` into the host's memory, when there is nothing else to do."""

    job: int
    pages: tuple[int, ...]
    host_pages: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Saved:
    """``job`` is done; ``error`` when it failed (a traceback was logged)."""

    job: int
    error: bool = False


@dataclass(frozen=True, slots=True)
class VoiceJob:
    """Make the prefix columns of ``voice``. ``live``: somebody who listens may wait for it.

    Answered exactly once, with :class:`VoiceReady` or :class:`VoiceFailed`, dropped or not.
    """

    job: int
    voice: Voice
    live: bool = True


@dataclass(frozen=True, slots=True)
class VoiceDrop:
    """Nobody waits for ``job`` any more: do no work for it that was not begun."""

    job: int


@dataclass(frozen=True, slots=True, eq=False)
class VoiceReady:
    """Prefix columns int32 [L, 1 + codebooks] of a voice; ``note`` is for who asked for it."""

    job: int
    columns: Int32Array
    note: str = ""


@dataclass(frozen=True, slots=True)
class VoiceFailed:
    """The voice cannot be had; ``message`` is in the client's terms."""

    job: int
    fault: Fault
    message: str


@dataclass(frozen=True, slots=True)
class Sounded:
    """The listener had nothing left to play, and got sound again at ``at_s``.

    ``frames_before``: frames of the stream that were delivered earlier.
    """

    stream: StreamId
    at_s: float
    frames_before: int


@dataclass(frozen=True, slots=True)
class FirstTimes:
    """When a stream's first segment passed each stage (monotonic seconds): taken from the text,
    asked for a slot, got it, began its first step."""

    text_s: float
    asked_s: float
    slot_s: float
    joined_s: float


@dataclass(frozen=True, slots=True)
class CodecBegin:
    """A stretch of frames follows for ``stream`` on ``slot``, decoded from silence.

    ``text`` None: it continues the segment before it (the model was asked in several pieces).
    """

    stream: StreamId
    slot: int
    text: str | None = field(repr=False)
    times: FirstTimes | None = None
    again: bool = False
    """The stretch that was parked, from its beginning: what was delivered of it is not again."""
    span: Span = field(default=Span())
    """Where ``text`` stands in what was pushed."""


@dataclass(frozen=True, slots=True)
class CodecPark:
    """The stretch stops here; what was not delivered of it is dropped. It will begin again."""

    stream: StreamId


@dataclass(frozen=True, slots=True, eq=False)
class CodecFrames:
    """One step's sound: row i of ``codes`` int32 [rows, codebooks] belongs to ``streams[i]``."""

    streams: tuple[StreamId, ...]
    codes: Int32Array


@dataclass(frozen=True, slots=True)
class CodecEnd:
    """The stretch is complete: nothing is held back any longer."""

    stream: StreamId


@dataclass(frozen=True, slots=True)
class CodecSilence:
    """``frames`` of silence in place of a segment without anything to speak, or, with ``text``
    None, at the end of what the model was asked and had nothing to say to."""

    stream: StreamId
    text: str | None = field(repr=False)
    frames: int
    span: Span = field(default=Span())


@dataclass(frozen=True, slots=True)
class CodecMark:
    """Everything before it delivered, ``Flushed(mark)`` is."""

    stream: StreamId
    mark: int


@dataclass(frozen=True, slots=True)
class CodecFinish:
    """The stream's last message: ``Finished``, or ``failure`` in its place."""

    stream: StreamId
    failure: Event | None = None


@dataclass(frozen=True, slots=True)
class CodecDrop:
    """Forget the stream and what is held of it; nothing more is delivered."""

    stream: StreamId


CodecMessage = (
    CodecBegin
    | CodecPark
    | CodecFrames
    | CodecEnd
    | CodecSilence
    | CodecMark
    | CodecFinish
    | CodecDrop
)
ToPrefill = ComposeJob | PrefillJob | SaveJob
ToVoice = VoiceJob | VoiceDrop
ToDecode = Composed | Prefilled | Saved | VoiceReady | VoiceFailed | Sounded

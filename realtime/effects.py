"""What a session asks its shell to do, as frozen messages. Executed in order, on the event loop."""

from __future__ import annotations

from dataclasses import dataclass, field

from shoal.engine import api
from shoal.proto.messages import (
    Aligned,
    ClientId,
    Error,
    Finish,
    Heard,
    Log,
    Ready,
    TtsRequest,
)


@dataclass(frozen=True, slots=True)
class ToEngine:
    command: api.Command


@dataclass(frozen=True, slots=True)
class ToClient:
    message: Finish | Error | Log | Ready | Aligned


@dataclass(frozen=True, slots=True)
class BeginTurn:
    """Route the stream's events here, and encode its audio as the request says."""

    stream: api.StreamId
    request: TtsRequest = field(repr=False)


@dataclass(frozen=True, slots=True)
class Encode:
    """``samples``: mono s16le at the model's rate."""

    samples: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class EncodeFlush:
    """Send what the encoder holds back, as far as its format allows.

    With an ``id`` at once, and then say so to the client; else soon.
    """

    id: ClientId | None = None


@dataclass(frozen=True, slots=True)
class SayFlushed:
    """All that was encoded has been sent: tell the client, who asked with this ``id``."""

    id: ClientId


@dataclass(frozen=True, slots=True)
class EncodeEnd:
    """Send the rest and finalise the container."""


@dataclass(frozen=True, slots=True)
class EndTurn:
    """The stream's events are routed here no more; what was encoded is still sent."""

    stream: api.StreamId


@dataclass(frozen=True, slots=True)
class DropTurn:
    """Forget all audio and the finish of the turn before, as far as not yet on the wire."""


@dataclass(frozen=True, slots=True)
class SayCancelled:
    """``DropTurn``, and tell the client how much of the turn had been sent."""

    heard: Heard | None


@dataclass(frozen=True, slots=True)
class StartGrace:
    """Call ``grace_over`` after ``seconds`` unless a ``StopGrace`` comes first."""

    seconds: float


@dataclass(frozen=True, slots=True)
class StopGrace:
    pass


@dataclass(frozen=True, slots=True)
class Close:
    """Send what is queued, then close. The last effect that a session has."""

    code: int
    reason: str = ""


Effect = (
    ToEngine
    | ToClient
    | BeginTurn
    | Encode
    | EncodeFlush
    | EncodeEnd
    | SayFlushed
    | EndTurn
    | DropTurn
    | SayCancelled
    | StartGrace
    | StopGrace
    | Close
)

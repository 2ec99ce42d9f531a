"""What a session asks its shell to do, as frozen messages. Executed in order, on the event loop."""

from __future__ import annotations

from dataclasses import dataclass, field

from shoal.engine import api
from shoal.proto.messages import Error, Finish, Log, TtsRequest


@dataclass(frozen=True, slots=True)
class ToEngine:
    command: api.Command


@dataclass(frozen=True, slots=True)
class ToClient:
    message: Finish | Error | Log


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
    """Send what the encoder holds back, as far as its format allows."""


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
    | EndTurn
    | DropTurn
    | StartGrace
    | StopGrace
    | Close
)

"""A session to drive, and its usual effects by short names."""

from __future__ import annotations

from itertools import count

from shoal.engine import api
from shoal.proto.errors import Code, ProtocolError
from shoal.proto.messages import Error, Finish, Start, Text, TtsRequest
from shoal.realtime.effects import (
    BeginTurn,
    Close,
    DropTurn,
    Effect,
    Encode,
    EndTurn,
    StopGrace,
    ToClient,
    ToEngine,
)
from shoal.realtime.session import Rules, Session

S1, S2 = api.StreamId(1), api.StreamId(2)
REQUEST = TtsRequest(format="pcm", sample_rate=24_000)
START = Start(REQUEST)
SILENCE = Encode(bytes(2 * 9600))
PCM = b"\1\0" * 100
AWAY = "server is shutting down"


def check(request: TtsRequest) -> None:
    if request.format == "mp3":
        raise ProtocolError(Code.BAD_REQUEST, "no mp3 here")


def voice_of(reference_id: str | None) -> str | None:
    return {"alias": "alice", "hosted": None}.get(reference_id or "", reference_id)


def new_session(**changes: object) -> Session:
    numbers = count(1)
    defaults: dict[str, object] = {
        "new_stream": lambda: api.StreamId(next(numbers)),
        "check": check,
        "voice_of": voice_of,
        "sample_rate": 24_000,
        "slots": 4,
        "grace_s": 5.0,
    }
    return Session(Rules(**{**defaults, **changes}))  # type: ignore[arg-type]


def opened(stream: api.StreamId = S1) -> list[Effect]:
    return [
        DropTurn(),
        StopGrace(),
        BeginTurn(stream, REQUEST),
        ToEngine(
            api.Open(
                stream,
                segmentation=api.Segmentation(api.Latency.NORMAL, 300, 50, True),
            )
        ),
    ]


def push(text: str, stream: api.StreamId = S1) -> ToEngine:
    return ToEngine(api.PushText(stream, text))


def pcm(stream: api.StreamId = S1, seq: int = 0) -> api.Pcm:
    return api.Pcm(stream, seq, PCM)


def finished(stream: api.StreamId = S1) -> api.Finished:
    return api.Finished(stream, 1, 100, 1)


def cancelled(stream: api.StreamId = S1) -> list[Effect]:
    return [ToEngine(api.Cancel(stream)), EndTurn(stream)]


def failed(code: int, message: str, most: int | None = None) -> list[Effect]:
    return [
        ToClient(Error(message, most)),
        ToClient(Finish("error", message)),
        StopGrace(),
        Close(code, message),
    ]


def speaking(*texts: str) -> Session:
    session = new_session()
    session.receive(START)
    for text in texts:
        session.receive(Text(text))
    return session

"""One turn as the answer to one HTTP request: text in, a stream of audio out.

``speak`` begins a turn and waits for what decides the status: the first audio, or a refusal.
``SpokenResponse`` then streams the turn. Each message leaves the session only when the one before
was taken, so a client that reads slowly pauses the engine, as on a WebSocket; one that hangs up
cancels its turn at once. A turn that fails after its first audio ends in a connection that is cut
off, never in an answer that looks whole. Knows no wire format. Runs on the event loop.

    async def handler(request: Request) -> Response:      # inside admission.endpoint
        spoken = await speak(request, tts_request)          # raises Refused
        return SpokenResponse(spoken, audio_only, spoken.content_type)
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from types import MappingProxyType
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from shoal.proto.errors import CODE_OF_CLOSE, Code, ProtocolError
from shoal.proto.messages import (
    Aligned,
    Audio,
    ClientMessage,
    Finish,
    Log,
    ServerMessage,
    Start,
    Stop,
    TtsRequest,
)

from .answers import GONE, Refused, gateway_of, header_text, refusal_for
from .gateway import Refusal
from .link import Dialect, Disconnected, Frame, Payload
from .wire import Wire

CONTENT_TYPES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "mp3": "audio/mpeg",
        "wav": "audio/wav",
        "opus": "audio/ogg",
        "flac": "audio/flac",
        "pcm": "audio/pcm",
        "ulaw": "audio/basic",
        "alaw": "audio/x-alaw-basic",
        "pcm_f32le": "application/octet-stream",
    }
)
_HEADERS: Final = MappingProxyType({"cache-control": "no-store", "x-accel-buffering": "no"})
"""Ask proxies to hold nothing back."""
REMARK_HEADER: Final = "x-shoal-remark"


class SpeechFailed(Exception):
    """The turn ended early, for a client that already has a part of it."""


async def speak(
    request: Request,
    tts: TtsRequest,
    *,
    timestamps: bool = False,
    dialect: str = "fish_http",
) -> Spoken:
    """Speak ``tts.text`` as one turn; returns with its first audio, or its end if it has none.

    Call it when the body of ``request`` is read, inside an endpoint that counts its client
    (``admission.endpoint``). ``timestamps``: ``Aligned`` messages come among the audio.
    ``dialect`` names the endpoint in logs. What it returns must be closed, which
    :class:`SpokenResponse` does.

    :raises Refused: before any audio: 400 for a bad value or voice, 413, 429 and 503 with
        Retry-After, 500.
    """
    spoken = Spoken(request, tts, timestamps, dialect)
    try:
        await spoken.begin()
    except BaseException:
        await spoken.close()
        raise
    return spoken


class Spoken:
    """A turn that is being spoken: iterate for ``Audio``, ``Aligned`` and, last, a ``Finish``.

    Iterating raises :class:`SpeechFailed` when the turn fails or its client is gone.
    """

    def __init__(self, request: Request, tts: TtsRequest, timestamps: bool, dialect: str) -> None:
        self.content_type = CONTENT_TYPES.get(tts.format, "application/octet-stream")
        self.remarks: list[str] = []  # on the voice and the text: all come before any audio
        self._request = request
        self._link = _TurnLink(Start(tts, timestamps), Wire(request.scope))
        self._dialect = Dialect(dialect, _as_it_is, lambda message, _: [message])
        self._begun: deque[Audio | Aligned | Finish] = deque()
        self._tasks: tuple[asyncio.Task[None], asyncio.Task[None]] | None = None

    async def begin(self) -> None:
        """:raises Refused: see :func:`speak`."""
        gateway = gateway_of(self._request)
        turn = asyncio.create_task(gateway.serve(self._link, self._dialect, None, False))
        turn.add_done_callback(lambda _: self._link.ended())
        self._tasks = turn, asyncio.create_task(self._watch())
        while not any(isinstance(message, (Audio, Finish)) for message in self._begun):
            message = await self._link.take()
            if message is None:
                raise Refused(GONE)
            if isinstance(message, Finish) and message.reason == "error":
                raise Refused(await self._refusal(message.message))
            if isinstance(message, Log):
                self.remarks.append(message.message)
            if isinstance(message, (Audio, Aligned, Finish)):
                self._begun.append(message)

    async def _refusal(self, message: str) -> Refusal:
        """A failure is followed by a close, whose code says of which kind it was."""
        while await self._link.take() is not None:
            pass
        code = CODE_OF_CLOSE.get(self._link.close_code or 0, Code.ENGINE)
        return refusal_for(ProtocolError(code, message))

    async def _watch(self) -> None:
        while (await self._request.receive())["type"] != "http.disconnect":
            pass
        self._link.hang_up()

    async def __aiter__(self) -> AsyncIterator[Audio | Aligned | Finish]:
        while True:
            message = self._begun.popleft() if self._begun else await self._link.take()
            match message:
                case None:
                    raise SpeechFailed("the connection ended")
                case Finish(reason="error", message=text):
                    raise SpeechFailed(text)
                case Finish():
                    yield message
                    return
                case Audio() | Aligned():
                    yield message
                case _:
                    pass

    async def abort(self) -> None:
        """Hang up, so that nobody takes what was sent for the whole.

        :raises RuntimeError: the server below has no other way, and takes an error for that.
        """
        # Without chunks the end of the connection is the end of the answer.
        chunks = self._request.scope.get("http_version") != "1.0"
        if not self._link.wire.abort(reset=not chunks):
            raise RuntimeError("a turn failed after its first audio")
        if self._tasks is not None:
            await asyncio.wait([self._tasks[1]])  # until the server below has noticed, too

    async def close(self) -> None:
        """End the turn if it still runs: its slot comes free. May be called again."""
        if self._tasks is None:
            return
        turn, watch = self._tasks
        self._link.hang_up()
        watch.cancel()
        await asyncio.wait([turn, watch])
        turn.result()


def audio_only(message: ServerMessage) -> bytes:
    """What :class:`SpokenResponse` sends for an endpoint whose body is the audio itself."""
    return message.audio if isinstance(message, Audio) else b""


class SpokenResponse(Response):
    """Streams ``spoken``, every message as ``encode`` writes it, and closes it.

    A WebSocket's ``log`` is a header here, for a developer's eyes.
    """

    def __init__(
        self,
        spoken: Spoken,
        encode: Callable[[Audio | Aligned | Finish], bytes],
        media_type: str,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.status_code = 200
        self.media_type = media_type
        self.background = None
        self._spoken = spoken
        self._encode = encode
        remark = header_text("; ".join(spoken.remarks))
        told = {REMARK_HEADER: remark} if remark else {}
        self.init_headers({**_HEADERS, **told, **(headers or {})})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        try:
            await send(start)
            async for message in self._spoken:
                if body := self._encode(message):
                    await send({"type": "http.response.body", "body": body, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except SpeechFailed:
            await self._spoken.abort()
        finally:
            await self._spoken.close()


def _as_it_is(frame: Frame) -> ClientMessage:
    assert not isinstance(frame, (bytes, str)), "only this module's messages are received"
    return frame


class _TurnLink:
    """A ``Link`` whose client has said everything, and takes one message after the other."""

    def __init__(self, start: Start, wire: Wire) -> None:
        self.wire = wire
        self.close_code: int | None = None
        self._said: deque[ClientMessage] = deque([start, Stop()])
        self._over = asyncio.Event()
        self._offer: ServerMessage | None = None
        self._offered = asyncio.Event()
        self._taken = asyncio.Event()
        self._ended = False

    # For the session ----------------------------------------------------------------------------

    async def receive(self) -> Frame:
        if self._said:
            return self._said.popleft()
        await self._over.wait()
        raise Disconnected

    async def send(self, payload: Payload) -> None:
        """Returns when the message was dealt with."""
        if self._over.is_set():
            raise Disconnected
        assert not isinstance(payload, (bytes, str)), "messages are passed on as they are"
        self._offer = payload
        self._taken.clear()
        self._offered.set()
        await self._taken.wait()

    async def close(self, code: int, reason: str) -> None:
        self.close_code = code
        self._over.set()

    def abort(self) -> None:
        self._over.set()

    @property
    def backlogged(self) -> bool:
        return self.wire.backlogged

    def unacknowledged_bytes(self) -> int:
        return self.wire.unacknowledged_bytes()

    # For the response ---------------------------------------------------------------------------

    async def take(self) -> ServerMessage | None:
        """The next message; the one before was dealt with. ``None``: there will be none."""
        self._taken.set()
        await self._offered.wait()
        if self._ended:
            return None
        self._offered.clear()
        message, self._offer = self._offer, None
        return message

    def hang_up(self) -> None:
        """What was taken last was dealt with; nothing more will be taken."""
        self._taken.set()
        self._over.set()

    def ended(self) -> None:
        """The session is over: nothing more will be offered."""
        self._ended = True
        self._offered.set()

"""The two who speak for ``shoal batch``: a server's live endpoint, or an engine in this process.

Each speaks one job per thread that calls it. Knows neither files nor retries.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence
from itertools import count
from typing import Final

from websockets.exceptions import ConnectionClosed

from shoal.engine import api
from shoal.proto import codec
from shoal.proto.errors import CLOSE_CODES, Code, ProtocolError
from shoal.proto.messages import Audio, Error, Finish

from .audio import FormatUnavailable
from .batch import Job, Write
from .encode import TurnEncoder
from .opening import open_command, requested_voice
from .say import SayError, connected, live_address

CLIENTS_FAULT: Final = frozenset(
    CLOSE_CODES[code] for code in (Code.UNDECODABLE, Code.BAD_REQUEST, Code.TOO_BIG)
)
ABNORMAL: Final = 1006
FULL_EVENTS: Final = 256
"""So many waiting events pause the engine, until a quarter is left."""


class RemoteSpeaker:
    """A server. Each job has a connection of its own, so that a router may place it anywhere."""

    def __init__(self, url: str, api_key: str | None = None) -> None:
        self._address = live_address(url)
        self._api_key = api_key

    def check(self) -> None:
        """:raises SayError: it cannot be reached or refuses."""
        connected(self._address, self._api_key).close()

    def speak(self, job: Job, write: Write) -> None:
        """See :class:`.batch.Speaker`."""
        reason = ""
        with connected(self._address, self._api_key) as socket:
            try:
                socket.send(codec.encode_start({**job.fields, "text": ""}))
                socket.send(codec.encode_text(job.request.text))
                socket.send(codec.encode_stop())
                while True:
                    frame = socket.recv()
                    message = codec.decode_server(frame) if isinstance(frame, bytes) else None
                    match message:
                        case Audio(audio=audio):
                            write(audio)
                        case Error(error=error):
                            reason = error
                        case Finish(reason="error", message=text):
                            reason = text or reason
                        case Finish():
                            return
                        case _:
                            pass
            except ConnectionClosed as closed:
                code = closed.rcvd.code if closed.rcvd is not None else ABNORMAL
                text = reason or f"the server closed the connection ({code})"
                raise SayError(text, passing=code not in CLIENTS_FAULT) from None
            except ProtocolError as bad:
                text = f"the server sent what is not its protocol: {bad.message}"
                raise SayError(text) from None


class LocalSpeaker:
    """An engine that this starts and stops. A context manager."""

    def __init__(self, engine: api.Engine) -> None:
        self._engine = engine
        self._numbers = count(1)
        self._lock = threading.Lock()
        self._lines: dict[api.StreamId, queue.SimpleQueue[api.Event | None]] = {}
        self._paused: set[api.StreamId] = set()
        self._died: BaseException | None = None

    def __enter__(self) -> LocalSpeaker:
        self._engine.start(self._deliver, self._fatal)
        return self

    def __exit__(self, *raised: object) -> None:
        self._engine.stop()

    def speak(self, job: Job, write: Write) -> None:
        """See :class:`.batch.Speaker`."""
        request, engine, info = job.request, self._engine, self._engine.info
        try:
            encoder = TurnEncoder(request, info.sample_rate)
            voice = requested_voice(
                request, lambda named: named, info.voices_by_reference, info.speakers
            )
        except (FormatUnavailable, ProtocolError) as problem:
            raise SayError(str(problem)) from None
        with self._lock:
            if self._died is not None:
                raise SayError(f"the engine died: {self._died}")
            stream = api.StreamId(next(self._numbers))
            line = self._lines[stream] = queue.SimpleQueue()
        over = False
        try:
            engine.submit(open_command(stream, voice, request))
            engine.submit(api.PushText(stream, request.text))
            engine.submit(api.EndText(stream))
            while not over:
                event = line.get()
                self._flow(stream, line)
                match event:
                    case api.Pcm(samples=samples):
                        for chunk in encoder.feed(samples):
                            write(chunk.payload)
                    case api.Finished():
                        over = True
                    case api.Failed(fault=fault, message=message):
                        over = True
                        raise SayError(message, passing=fault is not api.Fault.CLIENT)
                    case None:
                        over = True
                        raise SayError(f"the engine died: {self._died}")
                    case _:
                        pass
            for chunk in encoder.finish():
                write(chunk.payload)
        finally:
            with self._lock:
                del self._lines[stream]
                self._paused.discard(stream)
            if not over:
                engine.submit(api.Cancel(stream))

    def _flow(self, stream: api.StreamId, line: queue.SimpleQueue[api.Event | None]) -> None:
        """The thread that reads is behind, or has caught up."""
        if stream not in self._paused and line.qsize() > FULL_EVENTS:
            self._paused.add(stream)
            self._engine.submit(api.Pause(stream))
        elif stream in self._paused and line.qsize() < FULL_EVENTS // 4:
            self._paused.discard(stream)
            self._engine.submit(api.Resume(stream))

    # From the engine's threads ------------------------------------------------------------------

    def _deliver(self, events: Sequence[api.Event]) -> None:
        with self._lock:
            for event in events:
                if (line := self._lines.get(event.stream)) is not None:
                    line.put(event)

    def _fatal(self, error: BaseException) -> None:
        with self._lock:
            self._died = error
            for line in self._lines.values():
                line.put(None)

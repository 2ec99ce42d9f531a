"""One turn for ``shoal say``: text in as it comes, audio to a sink as it comes.

Either as a client of a server, or straight on an engine in this process. Knows no terminal. The
caller's thread plays; a second one waits for text, so that audio starts before the text ends.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, InvalidURI
from websockets.sync.client import ClientConnection, connect

from shoal.engine import api
from shoal.proto import codec
from shoal.proto.errors import ProtocolError
from shoal.proto.messages import Audio, Error, Finish

from .playback import Sink

LIVE_PATH = "/v1/tts/live"
REMOTE_RATE = 44_100
CONNECT_TIMEOUT_S = 10.0
CLOSE_TIMEOUT_S = 2.0

OpenSink = Callable[[int], Sink]
"""Called with the sample rate once, at the first audio."""


class SayError(Exception):
    """The turn could not be spoken; the message is for the user. ``passing``: the same may well
    be spoken a little later."""

    def __init__(self, message: str, *, passing: bool = False) -> None:
        super().__init__(message)
        self.passing = passing


@dataclass(frozen=True, slots=True)
class Spoken:
    """How it went, in seconds: ``ttfa_s`` from the first text handed over to the first audio."""

    ttfa_s: float
    audio_s: float
    wall_s: float

    @property
    def rtf(self) -> float:
        """Seconds it took for a second of audio."""
        return self.wall_s / self.audio_s


class _Turn:
    """The figures of a turn while it runs. The feeder writes ``sent_s``, the player the rest."""

    def __init__(self, open_sink: OpenSink, rate: int) -> None:
        self.sent_s: float | None = None
        self._open_sink = open_sink
        self._rate = rate
        self._first_s: float | None = None
        self._samples = 0
        self._sink: Sink | None = None
        self._closing = contextlib.ExitStack()

    def play(self, pcm: bytes) -> None:
        if self._sink is None:
            self._first_s = time.monotonic()
            self._sink = self._closing.enter_context(self._open_sink(self._rate))
        self._samples += len(pcm) // 2
        self._sink.write(pcm)

    def __enter__(self) -> _Turn:
        self._closing.__enter__()
        return self

    def __exit__(self, *raised: object) -> None:
        self._closing.__exit__(*raised)  # pyright: ignore[reportArgumentType]

    def spoken(self, ended_s: float) -> Spoken:
        if self._first_s is None or self.sent_s is None:
            raise SayError("there was nothing to say")
        return Spoken(
            self._first_s - self.sent_s, self._samples / self._rate, ended_s - self.sent_s
        )


def live_address(url: str) -> str:
    """The WebSocket address for what a user may give: ``host:port``, ``http://`` or ``ws://``."""
    if "://" not in url:
        url = f"ws://{url}"
    if url.startswith("http"):
        url = url.replace("http", "ws", 1)
    scheme, _, rest = url.partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}://{host}{slash}{path}" if path else f"{scheme}://{host}{LIVE_PATH}"


def say_remote(
    url: str,
    pieces: Iterable[str],
    open_sink: OpenSink,
    *,
    voice: str | None = None,
    api_key: str | None = None,
    seed: int | None = None,
) -> Spoken:
    """Speak ``pieces`` through the server at ``url``.

    :raises SayError: it cannot be reached, refuses, or fails.
    :raises NoSoundOutput: from the sink.
    """
    address = live_address(url)
    request: dict[str, object] = {"format": "pcm", "sample_rate": REMOTE_RATE, "latency": "low"}
    if voice is not None:
        request["reference_id"] = voice
    if seed is not None:
        request["seed"] = seed
    with connected(address, api_key) as socket, _Turn(open_sink, REMOTE_RATE) as turn:
        socket.send(codec.encode_start(request))
        _feed(lambda: _send_pieces(socket, pieces, turn))
        return turn.spoken(_listen(socket, turn))


def connected(address: str, api_key: str | None) -> ClientConnection:
    """:raises SayError: it cannot be reached or refuses."""
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    try:
        return connect(
            address,
            additional_headers=headers,
            compression=None,
            open_timeout=CONNECT_TIMEOUT_S,
            close_timeout=CLOSE_TIMEOUT_S,
            max_size=1 << 20,
        )
    except InvalidStatus as refusal:
        status = refusal.response.status_code
        hint = {401: ": give --api-key", 429: ": it is full"}.get(status, "")
        passing = status in (429, 502, 503, 504)
        text = f"{address} answered with HTTP {status}{hint}"
        raise SayError(text, passing=passing) from None
    except (InvalidHandshake, InvalidURI) as failure:
        raise SayError(f"{address} is no such server: {failure}") from None
    except TimeoutError:
        text = f"{address} did not answer in {CONNECT_TIMEOUT_S:.0f} s"
        raise SayError(text, passing=True) from None
    except OSError as failure:
        reason = failure.strerror or str(failure)
        raise SayError(
            f"cannot reach {address} ({reason}): start one with 'shoal serve', or use --local",
            passing=True,
        ) from None


def _send_pieces(socket: ClientConnection, pieces: Iterable[str], turn: _Turn) -> None:
    with contextlib.suppress(ConnectionClosed):  # the listener reports it
        for piece in pieces:
            if turn.sent_s is None and piece.strip():
                turn.sent_s = time.monotonic()
            socket.send(codec.encode_text(piece))
        socket.send(codec.encode_stop())


def _listen(socket: ClientConnection, turn: _Turn) -> float:
    """Play until the end; returns when it came."""
    refusal = ""
    try:
        for frame in socket:
            message = codec.decode_server(frame) if isinstance(frame, bytes) else None
            match message:
                case Audio(audio=pcm):
                    turn.play(pcm)
                case Error(error=error):
                    refusal = error
                case Finish(reason="error", message=reason):
                    raise SayError(f"the server gave up: {reason or refusal or 'no reason given'}")
                case Finish():
                    return time.monotonic()
                case _:
                    pass
    except ConnectionClosed:
        pass
    except ProtocolError as bad:
        raise SayError(f"the server sent what is not its protocol: {bad.message}") from None
    raise SayError(f"the server closed the connection{f': {refusal}' if refusal else ''}")


def say_local(
    engine: api.Engine,
    pieces: Iterable[str],
    open_sink: OpenSink,
    *,
    voice: str | None = None,
    seed: int | None = None,
    on_ready: Callable[[], None] = lambda: None,
) -> Spoken:
    """Speak ``pieces`` on an engine that this starts and stops; ``on_ready`` in between.

    :raises SayError: the engine refused or failed.
    :raises NoSoundOutput: from the sink.
    """
    events: queue.SimpleQueue[api.Event | BaseException] = queue.SimpleQueue()

    def deliver(batch: Iterable[api.Event]) -> None:
        for event in batch:
            events.put(event)

    engine.start(deliver, events.put)
    on_ready()
    try:
        with _Turn(open_sink, engine.info.sample_rate) as turn:
            stream = api.StreamId(1)
            engine.submit(
                api.Open(
                    stream,
                    api.Voice(voice_id=voice),
                    api.Sampling(seed=seed),
                    api.Segmentation(latency=api.Latency.LOW),
                )
            )
            _feed(lambda: _push_pieces(engine, stream, pieces, turn))
            return turn.spoken(_play_events(events, turn))
    finally:
        engine.stop()


def _push_pieces(
    engine: api.Engine, stream: api.StreamId, pieces: Iterable[str], turn: _Turn
) -> None:
    for piece in pieces:
        if turn.sent_s is None and piece.strip():
            turn.sent_s = time.monotonic()
        engine.submit(api.PushText(stream, piece))
    engine.submit(api.EndText(stream))


def _play_events(events: queue.SimpleQueue[api.Event | BaseException], turn: _Turn) -> float:
    while True:
        match events.get():
            case api.Pcm(samples=pcm):
                turn.play(pcm)
            case api.Finished():
                return time.monotonic()
            case api.Failed(message=message):
                raise SayError(message)
            case BaseException() as died:
                raise SayError(f"the engine died: {died}") from died
            case _:
                pass


def _feed(work: Callable[[], None]) -> None:
    """Run ``work`` beside the player. A daemon: it may wait for text that never comes."""
    threading.Thread(target=work, name="text", daemon=True).start()

"""``shoal mcp``: speaking, and the voices, as tools of the Model Context Protocol.

A client of a running server, whatever machine that is on. Over stdio the tools belong to the
user's own machine: they play through its speakers, one call after another, and read and write its
files. Over HTTP they touch no file: sound travels in the answer and in the call. A call that its
client cancels falls silent. Coroutines run on the event loop, ``_say`` on a thread for each call.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import threading
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, Final, Self, cast
from urllib.parse import urlsplit

import httpx2 as httpx
import uvicorn
from mcp.server.mcpserver import Audio, MCPServer
from mcp.server.mcpserver.exceptions import ToolError

from .agent_http import LOOPBACK, Guard
from .playback import NoSoundOutput, Sink, check_sink, open_sink
from .say import SayError, Spoken, say_remote

MAX_CHARS: Final = 20_000
MAX_CHARS_HTTP: Final = 4_000  # some four minutes, 25 MB of sound in one answer
MAX_FILE_BYTES: Final = 32 << 20
MAX_VOICES: Final = 1000
TIMEOUT_S: Final = 60.0
INSTRUCTIONS: Final = """\
Speaks text aloud. Call speak when the user asks to hear something, or when spoken output serves \
them better than text: a short summary, a notification, a reading. Write what is to be spoken the \
way it is said, in plain sentences without markdown, tables or code. list_voices names the voices \
that speak accepts; clone_voice adds one from a recording of 3 to 60 seconds and its transcript, \
only with the consent of the person who speaks in it."""


@dataclass(frozen=True, slots=True)
class Place:
    """The shoal server that the tools use."""

    url: str
    """``http://host:port``, or without the scheme"""
    api_key: str | None = None

    def client(self) -> httpx.AsyncClient:
        headers = {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        url = self.url if "://" in self.url else f"http://{self.url}"
        return httpx.AsyncClient(base_url=url, headers=headers, timeout=TIMEOUT_S)


def local_tools(place: Place) -> MCPServer[Any]:
    """For stdio: plays and reads files where it runs."""
    server = _server(place)
    speakers = asyncio.Lock()

    @server.tool()
    async def speak(text: str, voice: str = "", file: str = "") -> str:
        """Speak text aloud through this machine's speakers, or into a WAV file.

        text: what to say, in plain sentences. voice: a name from list_voices; empty for the
        default voice. file: a path ending in .wav to write instead of playing.
        """
        path = _path(file) if file else None
        if path is not None and path.suffix.lower() != ".wav":
            raise ToolError("file must end in .wav")  # and so never be one of another kind
        try:
            check_sink(path)
        except NoSoundOutput as error:
            raise ToolError("nothing here can play sound: give a file to write instead") from error
        except OSError as error:
            raise ToolError(f"{file}: {error.strerror}") from error
        if path is not None:
            spoken = await _spoken(place, text, voice, path)
        else:
            async with speakers:
                spoken = await _spoken(place, text, voice, None)
        where = f"written to {path}" if path else "played"
        return f"{spoken.audio_s:.1f} s {where}, first audio after {spoken.ttfa_s * 1000:.0f} ms"

    @server.tool()
    async def clone_voice(name: str, file: str, transcript: str) -> str:
        """Add a voice from a recording, so that speak can use it by the id that this returns.

        name: what to call it. file: path of a wav, mp3, flac or ogg file, 3 to 60 seconds of one
        speaker who agreed to this. transcript: the words said in it, exactly.
        """
        try:
            audio = await asyncio.to_thread(_read, _path(file))
        except OSError as error:
            raise ToolError(f"{file}: {error.strerror}") from error
        return await _clone(place, name, audio, transcript)

    return server


def remote_tools(place: Place) -> MCPServer[Any]:
    """For HTTP: sound in the answer and in the call, no files."""
    server = _server(place)

    @server.tool()
    async def speak(text: str, voice: str = "") -> Audio:
        """Speak text; the answer is a WAV file.

        text: what to say, in plain sentences. voice: a name from list_voices; empty for the
        default voice.
        """

        if len(text) > MAX_CHARS_HTTP:
            raise ToolError(f"the text is longer than {MAX_CHARS_HTTP} characters: say it in parts")
        with TemporaryDirectory() as folder:
            path = Path(folder) / "spoken.wav"
            await _spoken(place, text, voice, path)
            return Audio(data=await asyncio.to_thread(path.read_bytes), format="wav")

    @server.tool()
    async def clone_voice(name: str, audio_base64: str, transcript: str) -> str:
        """Add a voice from a recording, so that speak can use it by the id that this returns.

        name: what to call it. audio_base64: a wav, mp3, flac or ogg file, 3 to 60 seconds of one
        speaker who agreed to this. transcript: the words said in it, exactly.
        """
        try:
            audio = base64.b64decode(audio_base64, validate=True)
        except binascii.Error as error:
            raise ToolError("audio_base64 is not base64") from error
        return await _clone(place, name, audio, transcript)

    return server


def _server(place: Place) -> MCPServer[Any]:
    server: MCPServer[Any] = MCPServer("shoal", instructions=INSTRUCTIONS, log_level="WARNING")

    @server.tool()
    async def list_voices() -> list[dict[str, str]]:
        """The voices that speak accepts: id and name of each. There is always a default one too."""
        page = await _ask(place, "GET", f"/model?page_size={MAX_VOICES}")
        items = cast("list[dict[str, Any]]", page.get("items", []))
        return [{"id": item["_id"], "name": item["title"]} for item in items]

    return server


def serve_http(place: Place, host: str, port: int) -> None:
    """Serve ``remote_tools`` at ``/mcp`` until interrupted."""
    app: Any = remote_tools(place).streamable_http_app(host=host)
    if host not in LOOPBACK:
        app = Guard(app, host, place.api_key)
    uvicorn.run(app, host=host, port=port, log_level="warning")


def _path(file: str) -> Path:
    try:
        return Path(file).expanduser()
    except RuntimeError as error:  # "~nobody"
        raise ToolError(f"{file}: {error}") from error


def _read(path: Path) -> bytes:
    """:raises OSError: it cannot be read."""
    if path.exists() and not path.is_file():
        raise ToolError(f"{path} is not a file")
    with path.open("rb") as file:
        audio = file.read(MAX_FILE_BYTES + 1)
    if len(audio) > MAX_FILE_BYTES:
        raise ToolError(f"{path} is larger than {MAX_FILE_BYTES >> 20} MiB")
    return audio


async def _spoken(place: Place, text: str, voice: str, path: Path | None) -> Spoken:
    stopped = threading.Event()
    try:
        return await asyncio.to_thread(_say, place, text, voice, path, stopped)
    finally:
        stopped.set()  # a cancelled call leaves its thread behind


class _Stoppable:
    """A sink that ends the turn when nobody waits for it any more."""

    def __init__(self, sink: Sink, stopped: threading.Event) -> None:
        self._sink = sink
        self._stopped = stopped

    def write(self, pcm: bytes) -> None:
        if self._stopped.is_set():
            raise SayError("it was cancelled")
        self._sink.write(pcm)

    def __enter__(self) -> Self:
        self._sink.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._sink.__exit__(kind, error, trace)


def _say(
    place: Place, text: str, voice: str, path: Path | None, stopped: threading.Event
) -> Spoken:
    """Blocks until it was spoken, into ``path`` or through the speakers."""
    if not text.strip():
        raise ToolError("there is nothing to say")
    if len(text) > MAX_CHARS:
        raise ToolError(f"the text is longer than {MAX_CHARS} characters: say it in parts")

    def sink(rate: int) -> Sink:
        return _Stoppable(open_sink(path, rate), stopped)

    try:
        return say_remote(place.url, [text], sink, voice=voice or None, api_key=place.api_key)
    except (SayError, NoSoundOutput, OSError) as error:
        raise ToolError(str(error)) from error


async def _clone(place: Place, name: str, audio: bytes, transcript: str) -> str:
    fields = {"title": name, "type": "tts", "train_mode": "fast", "texts": transcript}
    voice = await _ask(place, "POST", "/model", data=fields, files={"voices": ("upload", audio)})
    return str(voice["_id"])


async def _ask(place: Place, method: str, path: str, **content: Any) -> dict[str, Any]:
    try:
        async with place.client() as client:
            answer = await client.request(method, path, **content)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        host = urlsplit(place.url).netloc or place.url
        raise ToolError(
            f"no shoal server at {host} ({error}): start one with 'shoal serve'"
        ) from error
    try:
        body = cast("dict[str, Any]", answer.json())
        reason = str(body.get("message", f"the server answered {answer.status_code}"))
    except (ValueError, AttributeError) as error:
        raise ToolError(f"{place.url} is no shoal server") from error
    if answer.status_code == 401:
        raise ToolError("the server asks for a key: start 'shoal mcp' with --api-key")
    if answer.is_error:
        raise ToolError(reason)
    return body

"""Where a command's audio goes: a WAV file, or the sound card through whatever can reach it.

Knows nothing of engines or sockets. Everything here blocks and belongs to a command's own thread.
"""

from __future__ import annotations

import errno
import importlib
import shutil
import subprocess
import wave
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

NO_OUTPUT = (
    "nothing here can play sound: install alsa-utils (aplay), or write a file with -o out.wav"
)


class NoSoundOutput(Exception):
    """Nothing on this machine can play; the message says what would."""


class Sink(Protocol):
    """Takes mono signed 16-bit little-endian audio; a context manager that ends it properly."""

    def write(self, pcm: bytes) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


class WavFile:
    """A WAV file, written as the audio comes."""

    def __init__(self, path: Path, rate: int) -> None:
        """:raises OSError: the file cannot be written."""
        self._file = path.open("wb")
        self._wave = wave.open(self._file, "wb")
        self._wave.setnchannels(1)
        self._wave.setsampwidth(2)
        self._wave.setframerate(rate)

    def write(self, pcm: bytes) -> None:
        self._wave.writeframes(pcm)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._wave.close()
        self._file.close()


# Programs that play raw audio from their standard input, in the order they are tried.
PLAYERS: tuple[tuple[str, ...], ...] = (
    ("aplay", "-q", "-t", "raw", "-f", "S16_LE", "-c", "1", "-r", "{rate}", "-"),
    ("paplay", "--raw", "--format=s16le", "--channels=1", "--rate={rate}"),
    ("pw-cat", "-p", "--format=s16", "--channels=1", "--rate={rate}", "-"),
    ("play", "-q", "-t", "raw", "-e", "signed", "-b", "16", "-c", "1", "-r", "{rate}", "-"),
    ("ffplay", "-nodisp", "-autoexit", "-loglevel", "error", "-f", "s16le", "-ar", "{rate}", "-"),
)


class Player:
    """A player program fed through a pipe."""

    def __init__(self, command: tuple[str, ...], rate: int) -> None:
        self.name = command[0]
        self._process = subprocess.Popen(
            [part.format(rate=rate) for part in command],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self._words: str | None = None

    def write(self, pcm: bytes) -> None:
        """:raises NoSoundOutput: the player gave up, with its own last words."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(pcm)
            self._process.stdin.flush()
        except BrokenPipeError:
            raise NoSoundOutput(f"{self.name} stopped: {self._last_words()}") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._process.stdin is not None
        if kind is not None:
            self._process.kill()
        try:
            self._process.stdin.close()
        except BrokenPipeError:
            pass
        words = self._last_words()
        if kind is None and self._process.returncode != 0:
            raise NoSoundOutput(f"{self.name} failed: {words}")

    def _last_words(self) -> str:
        if self._words is not None:
            return self._words
        assert self._process.stderr is not None
        lines = self._process.stderr.read().decode(errors="replace").strip().splitlines()
        self._process.stderr.close()
        self._process.wait()
        words = lines[-1] if lines else f"exit code {self._process.returncode}"
        self._words = words
        return words


class SoundCard:
    """The default output of the ``sounddevice`` package."""

    def __init__(self, sounddevice: Any, rate: int) -> None:
        self._stream = sounddevice.RawOutputStream(samplerate=rate, channels=1, dtype="int16")
        self._stream.start()

    def write(self, pcm: bytes) -> None:
        self._stream.write(pcm)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self._stream.stop()  # waits until everything was heard
        else:
            self._stream.abort()
        self._stream.close()


def sounddevice_or_none() -> Any | None:
    """The ``sounddevice`` module if it is installed and has an output to play on."""
    try:
        module = importlib.import_module("sounddevice")
    except (ImportError, OSError):  # OSError: the package without PortAudio
        return None
    try:
        module.query_devices(kind="output")
    except (module.PortAudioError, ValueError):
        return None
    return module


def player_or_none() -> tuple[str, ...] | None:
    """The first player program that is installed."""
    return next((command for command in PLAYERS if shutil.which(command[0])), None)


def sound_output() -> str | None:
    """What would play, in words; ``None`` when nothing can."""
    if sounddevice_or_none() is not None:
        return "sounddevice"
    command = player_or_none()
    return command[0] if command else None


def check_sink(path: Path | None) -> None:
    """Find out before long work whether :func:`open_sink` would fail.

    :raises NoSoundOutput, OSError: as it would.
    """
    if path is None:
        if sound_output() is None:
            raise NoSoundOutput(NO_OUTPUT)
    elif not path.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "no such folder", str(path.parent))
    elif path.is_dir():
        raise IsADirectoryError(errno.EISDIR, "is a folder", str(path))


def open_sink(path: Path | None, rate: int) -> Sink:
    """A sink for ``path``, or for the sound card when there is none.

    :raises NoSoundOutput: no path was given and nothing can play.
    :raises OSError: the file cannot be written.
    """
    if path is not None:
        return WavFile(path, rate)
    module = sounddevice_or_none()
    if module is not None:
        return SoundCard(module, rate)
    command = player_or_none()
    if command is not None:
        return Player(command, rate)
    raise NoSoundOutput(NO_OUTPUT)

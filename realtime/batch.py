"""``shoal batch``: many texts to a folder of recordings, each exactly once, behind live turns.

Reads a file of JSON lines, speaks what the folder does not have yet, several at a time, and says
how far it is. A line that fails is noted and the rest goes on; what may pass is tried again. Knows
no terminal. The caller's thread reads the file; worker threads speak and write.
"""

from __future__ import annotations

import hashlib
import json
import threading
import wave
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol, cast

from shoal.proto.errors import ProtocolError
from shoal.proto.messages import TtsRequest
from shoal.proto.request import RATES, default_rate, format_of, is_voice_id, parse_request

from .batch_folder import Folder
from .say import SayError

EXTENSIONS: Final[Mapping[str, str]] = {
    "wav": "wav", "mp3": "mp3", "opus": "opus", "flac": "flac", "pcm": "pcm",
    "ulaw": "ulaw", "alaw": "alaw", "pcm_f32le": "f32",
}  # fmt: skip
FAILED: Final = "failed.jsonl"
MAX_LINE_BYTES: Final = 4 << 20
MAX_NAME_CHARS: Final = 128
RETRY_S: Final = (0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 30.0, 30.0, 30.0)
"""Waits before what may pass is tried again; behind the last it counts as failed."""


class GaveWay(SayError):
    """Who spoke the job had to leave its place to live turns, or has none yet: no failure, and the
    job's turn comes again for as long as it takes."""

    def __init__(self, message: str) -> None:
        super().__init__(message, passing=True)


class LineError(Exception):
    """A line asks for nothing that can be spoken; the message says why, without its text."""


@dataclass(frozen=True, slots=True)
class Job:
    """One utterance. A seed that it did not name follows from its id, so that a second run would
    say the same.

    ``request`` is what a server is asked, as checked, and ``fields`` the same as it is sent: for
    a file that is to be wav both ask for pcm, and the header is written here.
    """

    line: int
    id: str
    file: str
    key: str
    wav: bool
    request: TtsRequest = field(repr=False)
    fields: Mapping[str, object] = field(repr=False)


Write = Callable[[bytes], None]


class Speaker(Protocol):
    """Speaks one job at a time on each of several threads."""

    def speak(self, job: Job, write: Write) -> None:
        """Give the bytes of the request's format to ``write``.

        :raises SayError: it cannot be spoken, or not now.
        """
        ...


@dataclass(slots=True)
class Tally:
    """How far it is. ``lines`` counts those read so far."""

    lines: int = 0
    there: int = 0
    """Made by an earlier run."""
    spoken: int = 0
    failed: int = 0
    bytes: int = 0

    @property
    def done(self) -> int:
        return self.there + self.spoken

    def __str__(self) -> str:
        text = f"{self.done} done ({self.there} before), {self.failed} failed"
        return f"{text}, {self.bytes / 1e6:.1f} MB written"


def read_jobs(path: Path) -> Iterator[Job | tuple[int, str, str]]:
    """Jobs, or (line number, id or "", what is wrong with it); blank lines are none.

    :raises OSError: the file cannot be read.
    """
    seen: set[str] = set()
    with path.open("rb") as file:
        for number, raw in enumerate(iter(lambda: file.readline(MAX_LINE_BYTES), b""), 1):
            if not raw.strip():
                continue
            identity = ""
            try:
                fields = _fields(raw)
                identity = _identity(fields)
                if identity in seen:
                    raise LineError("this id was there before")
                seen.add(identity)
                yield _job(number, identity, fields)
            except LineError as error:
                yield number, identity, str(error)
            except ProtocolError as error:
                yield number, identity, error.message


def _fields(raw: bytes) -> Mapping[str, object]:
    try:
        found: object = json.loads(raw)
    except (ValueError, RecursionError):
        raise LineError("not JSON") from None
    if not isinstance(found, dict):
        raise LineError("not a JSON object")
    return cast("dict[str, object]", found)


def _identity(fields: Mapping[str, object]) -> str:
    value = fields.get("id")
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str) or not is_voice_id(value) or len(value) > MAX_NAME_CHARS:
        raise LineError(f"id must be a file name of at most {MAX_NAME_CHARS} characters")
    return value


def _job(number: int, identity: str, fields: Mapping[str, object]) -> Job:
    text = fields.get("text")
    if not isinstance(text, str) or not text.strip():
        raise LineError("text is missing")
    name = fields.get("format", "wav")
    audio_format = format_of(name) if isinstance(name, str) else None
    if audio_format is None:
        raise LineError(f"format must be one of {', '.join(RATES)}")
    seed = fields.get("seed")
    if seed is None:
        seed = int.from_bytes(hashlib.sha256(identity.encode()).digest()[:4], "big")
    asked: dict[str, object] = {
        **{key: value for key, value in fields.items() if key not in ("id", "voice")},
        "format": "pcm" if audio_format == "wav" else audio_format,
        "sample_rate": fields.get("sample_rate") or default_rate(audio_format),
        "seed": seed,
        "priority": "batch",
    }
    if fields.get("voice") is not None:
        asked["reference_id"] = fields["voice"]
    request = parse_request(asked)
    known = json.dumps(dict(fields), sort_keys=True).encode()
    key = hashlib.sha256(known).hexdigest()[:32]
    file = f"{identity}.{EXTENSIONS[audio_format]}"
    return Job(number, identity, file, key, audio_format == "wav", request, asked)


class Sink:
    """The file of one utterance; ``wav`` gets a header that is right."""

    def __init__(self, path: Path, wav_rate: int | None) -> None:
        self._wave: wave.Wave_write | None = None
        self.bytes = 0
        if wav_rate is None:
            self._file = path.open("wb")
            return
        self._file = path.open("w+b")
        self._wave = wave.open(self._file, "wb")
        self._wave.setparams((1, 2, wav_rate, 0, "NONE", "not compressed"))

    def write(self, data: bytes) -> None:
        self.bytes += len(data)
        if self._wave is not None:
            self._wave.writeframes(data)
        else:
            self._file.write(data)

    def __enter__(self) -> Sink:
        return self

    def __exit__(self, *raised: object) -> None:
        try:
            if self._wave is not None:
                self._wave.close()
        finally:
            self._file.close()


def run_batch(
    source: Path,
    folder: Folder,
    speaker: Speaker,
    *,
    workers: int,
    report: Callable[[Tally], None] = lambda _: None,
    retry_s: tuple[float, ...] = RETRY_S,
) -> Tally:
    """Speak what ``source`` asks for and ``folder`` lacks; lines that failed are in ``FAILED``.

    :raises OSError: the source cannot be read, or the folder not be written.
    """
    tally = Tally()
    stop = threading.Event()
    failures = folder.path / FAILED
    pending: dict[Future[int], Job] = {}
    with failures.open("w", encoding="utf-8") as failed, ThreadPoolExecutor(workers) as pool:

        def note(line: int, identity: str, problem: str) -> None:
            tally.failed += 1
            failed.write(json.dumps({"line": line, "id": identity, "error": problem}) + "\n")
            failed.flush()

        def settle(most: int) -> None:
            while len(pending) > most:
                ended, _ = wait(pending, return_when=FIRST_COMPLETED)
                for future in ended:
                    job = pending.pop(future)
                    try:
                        tally.bytes += future.result()
                        tally.spoken += 1
                    except SayError as error:
                        note(job.line, job.id, str(error))
                report(tally)

        try:
            for found in read_jobs(source):
                tally.lines += 1
                if not isinstance(found, Job):
                    note(*found)
                elif folder.done(found.id, found.key, found.file):
                    tally.there += 1
                else:
                    work = pool.submit(_make, found, folder, speaker, stop, retry_s)
                    pending[work] = found
                    settle(2 * workers)
            settle(0)
        except BaseException:
            stop.set()
            for future in pending:
                future.cancel()
            raise
    if not tally.failed:
        failures.unlink()
    report(tally)
    return tally


def _make(
    job: Job, folder: Folder, speaker: Speaker, stop: threading.Event, retry_s: tuple[float, ...]
) -> int:
    """Speak into the folder; returns the bytes written."""
    pauses = iter(retry_s)
    while True:
        try:
            size = _attempt(job, folder, speaker)
            folder.finish(job.id, job.key, job.file)
            return size
        except GaveWay:
            folder.abandon(job.file)
            if stop.is_set():
                raise
        except SayError as error:
            folder.abandon(job.file)
            pause_s = next(pauses, None)
            if not error.passing or pause_s is None or stop.wait(pause_s):
                raise
        except BaseException:
            folder.abandon(job.file)
            raise


def _attempt(job: Job, folder: Folder, speaker: Speaker) -> int:
    rate = job.request.sample_rate if job.wav else None
    with Sink(folder.begin(job.file), rate) as sink:
        speaker.speak(job, sink.write)
    if not sink.bytes:
        raise SayError("there was nothing to say")
    return sink.bytes

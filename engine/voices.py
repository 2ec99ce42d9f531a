"""The voice store: recordings on disk under an id, and the codes made from them.

Owns the folder's layout and its safety: a voice appears and disappears by one rename, and is
replaced by two, so a reader or a crash never sees half of one; between the two there is none.
Writers take turns by a lock that dies with its process; whoever has it clears away what a killed
one left, and finishes a replacement that it did not. Knows nothing of the model; codes are kept
under the fingerprint of the codec that made them, so another codec never reads them. Any thread
and process.

``<root>/<id>/``: ``voice.json`` (id, created_at, seconds, texts), ``audio-<n>``,
``codes-<fingerprint>.npz``. ``<root>/.lock``, and ``<root>/.new-*`` while something is written.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import re
import shutil
import tempfile
import time
import zipfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from .api import Reference, VoiceInfo
from .audio_file import AudioFileError, read_audio
from .runner import Int32Array
from .soundcheck import reference_doubt

log = logging.getLogger(__name__)

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_PROBE_RATE = 16_000
MAX_REFERENCES = 20
_TRIES = 3
_MOST_S = 253_402_300_800.0  # the year 10000: beyond it no date can be written
_SCRATCH = ".new-"
_READY = "-ready"


class VoiceError(Exception):
    """The voice cannot be stored or found; the message is in the client's terms."""


class UnknownVoice(VoiceError):
    pass


class BadVoiceId(UnknownVoice):
    """No voice can be called that."""


class UnreadableVoice(UnknownVoice):
    """There is one, but what is kept of it is damaged."""


class VoiceExists(VoiceError):
    pass


@dataclass(frozen=True, slots=True, eq=False)
class StoredVoice:
    """``stamp`` names this recording of the voice among all that had its id."""

    stamp: float
    references: tuple[Reference, ...]


@dataclass(frozen=True, slots=True)
class _Facts:
    """What ``voice.json`` says, and no more than a voice can be."""

    created_at: float
    seconds: float
    texts: tuple[str, ...]


class VoiceStore:
    """Voices below ``root``, which is made when the first one is added."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._unreadable: frozenset[str] = frozenset()  # those that the log has told of
        if root.is_dir() and any(root.glob(_SCRATCH + "*")):
            with suppress(OSError), self._locked():  # a folder that only others may write
                pass

    @property
    def root(self) -> Path:
        return self._root

    def add(
        self, voice_id: str, references: Sequence[Reference], *, replace: bool = False
    ) -> VoiceInfo:
        """Store a voice. Raises :class:`VoiceError` for a bad id, one that is taken, no or too many
        references, and recordings that cannot be used. Transcripts that cannot be what is said in
        them are logged and told."""
        place = self._place(voice_id)
        if not 0 < len(references) <= MAX_REFERENCES:
            raise VoiceError(f"a voice takes 1 to {MAX_REFERENCES} references")
        if place.exists() and not replace:
            raise VoiceExists(f"voice {voice_id!r} exists already")
        lengths_s = [_length_s(reference) for reference in references]
        seconds = sum(lengths_s)
        texts = [reference.text for reference in references]
        doubt = reference_doubt(texts, lengths_s)
        info = VoiceInfo(voice_id, seconds, time.time(), doubt)
        if doubt:
            log.warning("voice %r: %s", voice_id, doubt)
        with self._scratch() as scratch:
            for index, reference in enumerate(references):
                _write(scratch / f"audio-{index}", reference.audio)
            facts = {
                "id": voice_id,
                "created_at": info.created_at,
                "seconds": seconds,
                "texts": texts,
            }
            _write(scratch / "voice.json", json.dumps(facts).encode())
            if place.exists() and not replace:  # somebody was faster
                raise VoiceExists(f"voice {voice_id!r} exists already")
            self._swap_in(scratch, place)
        return info

    def rename(self, voice_id: str, new_id: str) -> None:
        """Raises :class:`UnknownVoice`, and :class:`VoiceError` for a new id that is taken."""
        place, new_place = self._place(voice_id), self._place(new_id)
        with self._scratch():
            self._facts(place)
            if new_place.exists():
                raise VoiceExists(f"voice {new_id!r} exists already")
            place.rename(new_place)
            self._sync()

    def remove(self, voice_id: str) -> None:
        """Raises :class:`UnknownVoice`."""
        place = self._place(voice_id)
        if not place.exists():
            raise UnknownVoice(f"no voice is called {voice_id!r}")
        with self._scratch() as scratch:
            try:
                place.rename(scratch / "gone")
            except FileNotFoundError:
                raise UnknownVoice(f"no voice is called {voice_id!r}") from None
            self._sync()

    def list(self) -> tuple[VoiceInfo, ...]:
        """All voices that can be read, by id. The log tells of the others, once."""
        found: list[VoiceInfo] = []
        unreadable: set[str] = set()
        for voice_id in sorted(VoiceStore.ids(self)):
            try:
                found.append(self.info(voice_id))
            except UnreadableVoice as error:
                unreadable.add(voice_id)
                if voice_id not in self._unreadable:
                    log.warning("%s", error)
            except UnknownVoice:
                pass  # removed meanwhile
        self._unreadable = frozenset(unreadable)
        return tuple(found)

    def ids(self) -> frozenset[str]:
        """Of all voices, without a look at what is in them."""
        if not self._root.is_dir():
            return frozenset()
        return frozenset(
            entry.name
            for entry in self._root.iterdir()
            if self.could_be(entry.name) and (entry / "voice.json").exists()
        )

    @staticmethod
    def could_be(voice_id: str) -> bool:
        """Whether a voice of a store may have this id."""
        return _ID.fullmatch(voice_id) is not None

    def info(self, voice_id: str) -> VoiceInfo:
        """Raises :class:`UnknownVoice`."""
        facts = self._facts(self._place(voice_id))
        return VoiceInfo(voice_id, facts.seconds, facts.created_at)

    def load(self, voice_id: str) -> StoredVoice:
        """Recordings and transcripts. Raises :class:`UnknownVoice`."""
        place = self._place(voice_id)
        problem = UnknownVoice(f"no voice is called {voice_id!r}")
        for _ in range(_TRIES):
            try:
                facts = self._facts(place)
                stored = StoredVoice(
                    facts.created_at,
                    tuple(
                        Reference((place / f"audio-{index}").read_bytes(), text)
                        for index, text in enumerate(facts.texts)
                    ),
                )
                if self.stamp(voice_id) == stored.stamp:
                    return stored
            except UnknownVoice as error:
                problem = error  # it may be in the middle of being replaced
            except OSError:
                problem = _unreadable(voice_id)
        raise problem

    def stamp(self, voice_id: str) -> float:
        """Changes when the voice is replaced. Raises :class:`UnknownVoice`."""
        return self.info(voice_id).created_at

    def codes(self, voice_id: str, fingerprint: str, stamp: float) -> tuple[Int32Array, ...] | None:
        """Codes int32 [frames, codebooks] per reference as ``fingerprint``'s codec made them of the
        voice with that ``stamp``."""
        path = self._place(voice_id) / f"codes-{fingerprint}.npz"
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
                if float(stored["stamp"]) != stamp:
                    return None
                return tuple(
                    np.asarray(stored[f"r{index}"], np.int32)
                    for index in range(len(stored.files) - 1)
                )
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
            return None  # absent, or damaged: they are made again

    def keep_codes(
        self, voice_id: str, fingerprint: str, stamp: float, codes: Sequence[Int32Array]
    ) -> None:
        """Store codes beside a voice; does nothing when it is gone."""
        place = self._place(voice_id)
        if not place.exists():
            return
        with self._scratch() as scratch:
            path = scratch / "codes.npz"
            arrays = {f"r{index}": one.astype(np.int16) for index, one in enumerate(codes)}
            with path.open("wb") as file:
                cast(Any, np.savez_compressed)(file, stamp=np.float64(stamp), **arrays)
                file.flush()
                os.fsync(file.fileno())
            try:
                path.rename(place / f"codes-{fingerprint}.npz")
            except OSError:
                return

    def _place(self, voice_id: str) -> Path:
        if not self.could_be(voice_id):
            raise BadVoiceId(
                "a voice id is 1 to 64 letters, digits, dots, dashes or underscores, "
                "and begins with a letter or digit"
            )
        return self._root / voice_id

    def _facts(self, place: Path) -> _Facts:
        try:
            return _facts_in((place / "voice.json").read_bytes())
        except (FileNotFoundError, NotADirectoryError):
            raise UnknownVoice(f"no voice is called {place.name!r}") from None
        except (OSError, ValueError, RecursionError):
            raise _unreadable(place.name) from None

    @contextmanager
    def _locked(self) -> Generator[None]:
        """Alone among all writers of every process; what dead ones left is gone."""
        self._root.mkdir(parents=True, exist_ok=True)
        with (self._root / ".lock").open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # closing it lets go
            self._sweep()
            yield

    def _sweep(self) -> None:
        left = list(self._root.glob(_SCRATCH + "*"))
        for path in left:
            if path.name.endswith(_READY) and (path.with_name(path.name[: -len(_READY)])).exists():
                self._finish_replacing(path)
        for path in left:
            shutil.rmtree(path, ignore_errors=True)

    def _finish_replacing(self, fresh: Path) -> None:
        """The old voice was taken away and the new one, whole, did not come in its place."""
        old = fresh.with_name(fresh.name[: -len(_READY)]) / "old"
        try:
            place = self._place(str(json.loads((fresh / "voice.json").read_bytes())["id"]))
        except (UnknownVoice, OSError, ValueError, KeyError, TypeError, RecursionError):
            return
        if old.exists() and not place.exists():
            fresh.rename(place)
            self._sync()

    @contextmanager
    def _scratch(self) -> Generator[Path]:
        """A folder beside the voices, on the same file system; gone afterwards. Locked."""
        with self._locked():
            path = Path(tempfile.mkdtemp(prefix=_SCRATCH, dir=self._root))
            try:
                yield path
            finally:
                shutil.rmtree(path, ignore_errors=True)

    def _swap_in(self, scratch: Path, place: Path) -> None:
        fresh = scratch.with_name(scratch.name + _READY)
        scratch.rename(fresh)
        scratch.mkdir()  # takes what is replaced
        try:
            if place.exists():
                place.rename(scratch / "old")
            fresh.rename(place)
        except OSError as error:
            with suppress(OSError):
                (scratch / "old").rename(place)
            shutil.rmtree(fresh, ignore_errors=True)
            raise VoiceError(f"voice {place.name!r} cannot be stored") from error
        self._sync()

    def _sync(self) -> None:
        directory = os.open(self._root, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def _unreadable(voice_id: str) -> UnreadableVoice:
    return UnreadableVoice(f"voice {voice_id!r} cannot be read")


def _facts_in(written: bytes) -> _Facts:
    """:raises ValueError: it is not what a voice's file says."""
    said = cast(object, json.loads(written))
    if not isinstance(said, dict):
        raise ValueError("no map")
    fields = cast("dict[str, object]", said)
    texts = fields.get("texts")
    if not isinstance(texts, list) or not 0 < len(cast("list[object]", texts)) <= MAX_REFERENCES:
        raise ValueError("no texts")
    spoken = tuple(text for text in cast("list[object]", texts) if isinstance(text, str))
    if len(spoken) < len(cast("list[object]", texts)):
        raise ValueError("texts that are none")
    return _Facts(_number(fields, "created_at"), _number(fields, "seconds"), spoken)


def _number(fields: dict[str, object], name: str) -> float:
    value = fields.get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < _MOST_S:
        raise ValueError(f"no {name}")
    return float(value)


def _length_s(reference: Reference) -> float:
    try:
        return len(read_audio(reference.audio, _PROBE_RATE)) / _PROBE_RATE
    except AudioFileError as error:
        raise VoiceError(str(error)) from error


def _write(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())

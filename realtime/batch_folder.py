"""A folder of finished recordings, and what makes each of them appear whole and once.

Owns file names, the manifest and the lock. An utterance is written to a hidden file beside its
place, noted in the manifest, and then renamed: all three reach the disk in this order, so that a
crash at any moment leaves either nothing, or a file that the next run recognises. Knows nothing of
how speech is made. Called from several threads; the manifest has a lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, cast

MANIFEST: Final = "manifest.jsonl"
LOCK: Final = ".lock"


class FolderBusy(Exception):
    """Another run writes there."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A finished utterance: ``key`` is what it was made from, in one number."""

    id: str
    key: str
    file: str
    bytes: int
    sha256: str


class Folder:
    """``path`` is made when it is not there. Use as a context manager: it is one run's.

    :raises FolderBusy: another run has it.
    """

    def __init__(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._closing = contextlib.ExitStack()
        lock = self._closing.enter_context((path / LOCK).open("wb"))
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._closing.close()
            raise FolderBusy(f"another run writes to {path}") from None
        self._entries = _read(path / MANIFEST)
        self._manifest = self._closing.enter_context((path / MANIFEST).open("ab"))
        self._noting = threading.Lock()
        _end_torn_line(path / MANIFEST, self._manifest)

    def __enter__(self) -> Folder:
        return self

    def __exit__(self, *raised: object) -> None:
        self._closing.close()

    def done(self, identity: str, key: str, file: str) -> bool:
        """Whether it is there, made from the same; one that was noted and not renamed now is."""
        entry = self._entries.get(identity)
        if entry is None or (entry.key, entry.file) != (key, file):
            return False
        final = self.path / file
        if _is(final, entry):
            return True
        part = self._part(file)
        if not _is(part, entry):
            return False
        self._rename(part, final)
        return True

    def begin(self, file: str) -> Path:
        """Where to write it meanwhile; whatever an earlier run left there is void."""
        part = self._part(file)
        part.unlink(missing_ok=True)
        return part

    def finish(self, identity: str, key: str, file: str) -> Entry:
        """What :meth:`begin` gave is complete: note it and put it in its place."""
        part = self._part(file)
        with part.open("rb") as written:
            os.fsync(written.fileno())
            digest = hashlib.file_digest(written, "sha256").hexdigest()
        entry = Entry(identity, key, file, part.stat().st_size, digest)
        line = {
            "id": identity,
            "file": file,
            "bytes": entry.bytes,
            "sha256": digest,
            "key": key,
        }
        with self._noting:
            self._manifest.write(json.dumps(line).encode() + b"\n")
            self._manifest.flush()
            os.fsync(self._manifest.fileno())
            self._entries[identity] = entry
        self._rename(part, self.path / file)
        return entry

    def abandon(self, file: str) -> None:
        """It will not be finished."""
        self._part(file).unlink(missing_ok=True)

    def _part(self, file: str) -> Path:
        return self.path / f".{file}.part"

    def _rename(self, part: Path, final: Path) -> None:
        os.replace(part, final)
        folder = os.open(self.path, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _is(path: Path, entry: Entry) -> bool:
    try:
        if path.stat().st_size != entry.bytes:
            return False
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == entry.sha256
    except OSError:
        return False


def _read(path: Path) -> dict[str, Entry]:
    """The last entry of each id. A line that a crash cut off is none."""
    entries: dict[str, Entry] = {}
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        return entries
    for line in lines:
        try:
            found: object = json.loads(line)
        except ValueError:
            continue
        if isinstance(found, dict) and (entry := _entry(cast("dict[str, Any]", found))):
            entries[entry.id] = entry
    return entries


def _entry(found: Mapping[str, Any]) -> Entry | None:
    try:
        identity, key, file = str(found["id"]), str(found["key"]), str(found["file"])
        return Entry(identity, key, file, int(found["bytes"]), str(found["sha256"]))
    except (KeyError, TypeError, ValueError):
        return None


def _end_torn_line(path: Path, manifest: BinaryIO) -> None:
    with path.open("rb") as written:
        if written.seek(0, os.SEEK_END) and written.seek(-1, os.SEEK_END) >= 0:
            if written.read(1) != b"\n":
                manifest.write(b"\n")
                manifest.flush()

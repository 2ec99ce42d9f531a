"""``Catalogue``: the voices of the store with what people say of them: titles, tags, pictures.

A voice is what the store has, whole or not at all; a row of SQLite says more about it, and a voice
without one (added by the command) goes by its id. So a crash between the two leaves a row that
nobody sees; it is swept out when it is an hour old. Every call opens its own connection: any
thread and process, never the event loop, for all of it waits for the disk.
"""

from __future__ import annotations

import fcntl
import json
import sqlite3
import time
import uuid
from collections.abc import Callable, Generator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Literal, cast

from shoal.engine.api import Reference, VoiceInfo
from shoal.engine.voices import VoiceError, VoiceStore

FILE: Final = ".catalogue.sqlite"
LOCK_FILE: Final = ".catalogue.lock"
MAX_VOICES: Final = 10_000
ORPHAN_S: Final = 3600.0
BUSY_S: Final = 10.0
Visibility = Literal["public", "unlist", "private"]

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS voices (
    id TEXT PRIMARY KEY,
    written REAL NOT NULL,
    stamp REAL,
    title TEXT NOT NULL,
    description TEXT NOT NULL,
    visibility TEXT NOT NULL,
    tags TEXT NOT NULL,
    languages TEXT NOT NULL,
    cover BLOB,
    cover_type TEXT
)
"""
_FIELDS: Final = (
    "id, written, stamp, title, description, visibility, tags, languages, cover IS NOT NULL"
)
_Row = tuple[str, float, float | None, str, str, str, str, str, int]


@dataclass(frozen=True, slots=True)
class Cover:
    media_type: str
    data: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Details:
    """What people say of a voice. ``languages``: empty when they are not known."""

    title: str
    description: str = ""
    visibility: Visibility = "private"
    tags: tuple[str, ...] = ()
    languages: tuple[str, ...] = ()
    cover: Cover | None = None


@dataclass(frozen=True, slots=True)
class Changes:
    """``None``: as before."""

    title: str | None = None
    description: str | None = None
    visibility: Visibility | None = None
    tags: tuple[str, ...] | None = None
    cover: Cover | None = None


@dataclass(frozen=True, slots=True)
class Model:
    """A voice as it is listed. Times in seconds since 1970."""

    voice_id: str
    seconds: float
    created_at: float
    updated_at: float
    title: str
    description: str
    visibility: Visibility
    tags: tuple[str, ...]
    languages: tuple[str, ...]
    has_cover: bool
    doubt: str = field(default="", compare=False)
    """Where it was just made: why it may not be what its maker expects of it."""


class Catalogue:
    """See the module. ``clock`` tells seconds since 1970."""

    def __init__(
        self, voices: VoiceStore, root: Path, clock: Callable[[], float] = time.time
    ) -> None:
        self._voices = voices
        self._root = root
        self._clock = clock

    def create(self, references: Sequence[Reference], details: Details) -> Model:
        """:raises VoiceError: in the client's terms, when it cannot be kept."""
        if len(self._voices.list()) >= MAX_VOICES:
            raise VoiceError(f"over {MAX_VOICES} voices are not kept")
        voice_id = uuid.uuid4().hex
        with self._open() as database:
            self._sweep(database)
            self._write(database, voice_id, None, details)
        try:
            info = self._voices.add(voice_id, references)
        except BaseException:
            self._forget(voice_id)
            raise
        return replace(self._model(info, self._rows(voice_id).get(voice_id)), doubt=info.doubt)

    def get(self, voice_id: str) -> Model:
        """:raises UnknownVoice:"""
        return self._model(self._voices.info(voice_id), self._rows(voice_id).get(voice_id))

    def list(self) -> Sequence[Model]:
        """All of them, the newest first."""
        voices = self._voices.list()
        rows = self._rows() if voices else {}
        models = [self._model(info, rows.get(info.voice_id)) for info in voices]
        return sorted(models, key=lambda model: (-model.created_at, model.voice_id))

    def update(self, voice_id: str, changes: Changes) -> Model:
        """:raises UnknownVoice:"""
        info = self._voices.info(voice_id)
        with self._open() as database:
            old = self._model(info, self._rows(voice_id, database).get(voice_id))
            cover = changes.cover or (self._cover(database, voice_id) if old.has_cover else None)
            details = Details(
                old.title if changes.title is None else changes.title,
                old.description if changes.description is None else changes.description,
                changes.visibility or old.visibility,
                old.tags if changes.tags is None else changes.tags,
                old.languages,
                cover,
            )
            self._write(database, voice_id, info.created_at, details)
            row = self._rows(voice_id, database).get(voice_id)
        return self._model(info, row)

    def add_named(self, voice_id: str, reference: Reference) -> str:
        """Keep a recording under an id of the client's, of which nothing more is said.

        Returns why its transcript cannot be what is said in it; empty when it can.

        :raises VoiceError: in the client's terms, when it cannot be kept."""
        if len(self._voices.list()) >= MAX_VOICES:
            raise VoiceError(f"over {MAX_VOICES} voices are not kept")
        return self._voices.add(voice_id, [reference]).doubt

    def rename(self, voice_id: str, new_id: str) -> None:
        """:raises UnknownVoice:
        :raises VoiceError: the new id is taken, or none."""
        self._voices.rename(voice_id, new_id)
        if (self._root / FILE).exists():
            with self._open() as database:
                database.execute("DELETE FROM voices WHERE id = ?", (new_id,))
                database.execute("UPDATE voices SET id = ? WHERE id = ?", (new_id, voice_id))

    def delete(self, voice_id: str) -> None:
        """:raises UnknownVoice:"""
        self._voices.remove(voice_id)
        self._forget(voice_id)

    def cover(self, voice_id: str) -> Cover | None:
        """:raises UnknownVoice:"""
        if not self.get(voice_id).has_cover:
            return None
        with self._open() as database:
            return self._cover(database, voice_id)

    # Rows ---------------------------------------------------------------------------------------

    @contextmanager
    def _open(self) -> Generator[sqlite3.Connection]:
        """One transaction. Committed to the disk, or nothing of it.

        They take turns by a lock of the system's: SQLite's own wait is not fair, and gives up."""
        self._root.mkdir(parents=True, exist_ok=True)
        path = self._root / FILE
        with (
            (self._root / LOCK_FILE).open("ab") as lock,
            closing(sqlite3.connect(path, timeout=BUSY_S, isolation_level=None)) as database,
        ):
            fcntl.flock(lock, fcntl.LOCK_EX)
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("PRAGMA synchronous = FULL")
            database.execute("BEGIN IMMEDIATE")
            try:
                database.execute(_SCHEMA)
                yield database
            except BaseException:
                database.execute("ROLLBACK")
                raise
            database.execute("COMMIT")

    def _rows(
        self, voice_id: str | None = None, database: sqlite3.Connection | None = None
    ) -> dict[str, _Row]:
        """All rows by id, or that of one voice."""
        if database is None:
            if not (self._root / FILE).exists():
                return {}
            with self._open() as opened:
                return self._rows(voice_id, opened)
        where = "" if voice_id is None else " WHERE id = ?"
        found = database.execute(
            f"SELECT {_FIELDS} FROM voices{where}", () if voice_id is None else (voice_id,)
        )
        return {row[0]: row for row in cast("list[_Row]", found.fetchall())}

    def _write(
        self, database: sqlite3.Connection, voice_id: str, stamp: float | None, details: Details
    ) -> None:
        cover = details.cover
        database.execute(
            "INSERT OR REPLACE INTO voices VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                voice_id,
                self._clock(),
                stamp,
                details.title,
                details.description,
                details.visibility,
                json.dumps(details.tags),
                json.dumps(details.languages),
                cover.data if cover else None,
                cover.media_type if cover else None,
            ),
        )

    def _forget(self, voice_id: str) -> None:
        if (self._root / FILE).exists():
            with self._open() as database:
                database.execute("DELETE FROM voices WHERE id = ?", (voice_id,))

    @staticmethod
    def _cover(database: sqlite3.Connection, voice_id: str) -> Cover | None:
        found = database.execute("SELECT cover_type, cover FROM voices WHERE id = ?", (voice_id,))
        row = cast("tuple[str | None, bytes | None] | None", found.fetchone())
        if row is None or row[0] is None or row[1] is None:
            return None
        return Cover(row[0], row[1])

    def _sweep(self, database: sqlite3.Connection) -> None:
        """Rows of voices that there are not, unless one is just being written."""
        old = database.execute(
            "SELECT id FROM voices WHERE written < ?", (self._clock() - ORPHAN_S,)
        )
        known = {info.voice_id for info in self._voices.list()}
        gone = [row for row in cast("list[tuple[str]]", old.fetchall()) if row[0] not in known]
        database.executemany("DELETE FROM voices WHERE id = ?", gone)

    @staticmethod
    def _model(info: VoiceInfo, row: _Row | None) -> Model:
        if row is None or row[2] not in (None, info.created_at):  # of an earlier voice by this id
            return Model(
                info.voice_id,
                info.seconds,
                info.created_at,
                info.created_at,
                title=info.voice_id,
                description="",
                visibility="private",
                tags=(),
                languages=(),
                has_cover=False,
            )
        return Model(
            info.voice_id,
            info.seconds,
            info.created_at,
            updated_at=max(row[1], info.created_at),
            title=row[3],
            description=row[4],
            visibility=cast(Visibility, row[5]),
            tags=tuple(json.loads(row[6])),
            languages=tuple(json.loads(row[7])),
            has_cover=bool(row[8]),
        )

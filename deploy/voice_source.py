"""Where a replica's voices come from: a directory that all replicas see, or object storage.

``RemoteVoices`` is a voice store on the replica's own disk in front of a bucket that all replicas
share: a voice that is not here is fetched when it is asked for, one that is added, replaced or
removed here is so there too, and so are the codes made of it, which the other replicas then need
not make. What storage cannot do at the moment (it is away, it is slow) is logged and costs a voice
its freshness, never a turn its voice. Knows no Ray. Any thread.

``<url>/<id>.tar``: one voice's folder as its store keeps it. One object, so it is never half there.
"""

from __future__ import annotations

import io
import logging
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, cast

from shoal.engine.api import Reference, VoiceInfo
from shoal.engine.runner import Int32Array
from shoal.engine.voices import StoredVoice, UnknownVoice, VoiceStore

from .settings import ReplicaSettings

FRESH_S: Final = 30.0
"""A voice that was looked at is not asked for again before."""
MAX_VOICE_BYTES: Final = 256 << 20

logger = logging.getLogger("shoal.voices")


def voice_store(settings: ReplicaSettings) -> VoiceStore | None:
    """The store of ``settings``; ``None`` when it names none."""
    where = settings.voices
    if where is None:
        return None
    if "://" not in where:
        return VoiceStore(Path(where).expanduser())
    return RemoteVoices(where, Path(settings.voices_cache))


class RemoteVoices(VoiceStore):
    """See the module. ``options`` go to fsspec, and beyond it to the storage's own library."""

    def __init__(
        self,
        url: str,
        cache: Path,
        clock: Callable[[], float] = time.monotonic,
        **options: Any,
    ) -> None:
        import fsspec  # pyright: ignore[reportMissingTypeStubs]

        super().__init__(cache)
        self._clock = clock
        files, folder = cast("Any", fsspec).core.url_to_fs(url, **options)
        self._files: Any = files
        self._folder = str(folder)
        self._looked_s: dict[str, float] = {}
        self._versions: dict[str, str] = {}
        self._fetching = threading.Lock()

    # Reading ------------------------------------------------------------------------------------

    def info(self, voice_id: str) -> VoiceInfo:
        self._fetch(voice_id)
        return super().info(voice_id)

    def load(self, voice_id: str) -> StoredVoice:
        self._fetch(voice_id)
        return super().load(voice_id)

    def codes(self, voice_id: str, fingerprint: str, stamp: float) -> tuple[Int32Array, ...] | None:
        self._fetch(voice_id)
        return super().codes(voice_id, fingerprint, stamp)

    def list(self) -> tuple[VoiceInfo, ...]:
        for voice_id in self._there():
            self._fetch(voice_id)
        return super().list()

    def ids(self) -> frozenset[str]:
        """Those in storage, without fetching any, and those that are here."""
        return super().ids() | set(self._there())

    # Writing ------------------------------------------------------------------------------------

    def add(
        self, voice_id: str, references: Sequence[Reference], *, replace: bool = False
    ) -> VoiceInfo:
        self._fetch(voice_id)  # whether the id is taken is known there
        info = super().add(voice_id, references, replace=replace)
        self._push(voice_id)
        return info

    def rename(self, voice_id: str, new_id: str) -> None:
        self._fetch(voice_id)
        self._fetch(new_id)
        super().rename(voice_id, new_id)
        self._push(new_id)
        self._delete(voice_id)

    def remove(self, voice_id: str) -> None:
        self._fetch(voice_id)
        super().remove(voice_id)
        self._delete(voice_id)

    def keep_codes(
        self, voice_id: str, fingerprint: str, stamp: float, codes: Sequence[Int32Array]
    ) -> None:
        super().keep_codes(voice_id, fingerprint, stamp, codes)
        self._push(voice_id)

    # Storage ------------------------------------------------------------------------------------

    def _object(self, voice_id: str) -> str:
        self._place(voice_id)  # the id is one
        return f"{self._folder}/{voice_id}.tar"

    def _there(self) -> list[str]:
        """Ids of the voices in storage; none while it is away."""
        try:
            self._files.invalidate_cache()
            names = [str(path).rpartition("/")[2] for path in self._files.ls(self._folder, False)]
        except FileNotFoundError:
            return []
        except Exception as error:  # the edge of a library: storage has errors of many kinds
            _complain("list", error)
            return []
        ids = [name.removesuffix(".tar") for name in names if name.endswith(".tar")]
        return [voice_id for voice_id in ids if self.could_be(voice_id)]

    def _fetch(self, voice_id: str) -> None:
        """Bring the voice here as it is there; gone there, it goes here too."""
        source = self._object(voice_id)
        with self._fetching:
            looked_s = self._looked_s.get(voice_id)
            if looked_s is not None and self._clock() - looked_s < FRESH_S:
                if (self.root / voice_id).exists():
                    return
            try:
                self._files.invalidate_cache()
                version = _version(self._files.info(source))
                if version != self._versions.get(voice_id) or not self._here(voice_id):
                    self._unpack(voice_id, self._files.cat_file(source))
                self._versions[voice_id] = version
            except FileNotFoundError:
                if self._versions.pop(voice_id, None) is not None and self._here(voice_id):
                    super().remove(voice_id)
            except Exception as error:  # the edge of a library: what is here has to do
                _complain("fetch", error)
            self._looked_s[voice_id] = self._clock()

    def _here(self, voice_id: str) -> bool:
        try:
            super().info(voice_id)
        except UnknownVoice:
            return False
        return True

    def _push(self, voice_id: str) -> None:
        packed = io.BytesIO()
        try:
            with tarfile.open(fileobj=packed, mode="w") as archive:
                for path in sorted((self.root / voice_id).iterdir()):
                    archive.add(path, path.name)
            target = self._object(voice_id)
            self._files.pipe_file(target, packed.getvalue())
            self._files.invalidate_cache()
            with self._fetching:
                self._versions[voice_id] = _version(self._files.info(target))
                self._looked_s[voice_id] = self._clock()
        except Exception as error:  # the edge of a library: the voice is kept here all the same
            _complain("push", error)

    def _delete(self, voice_id: str) -> None:
        with self._fetching:
            self._versions.pop(voice_id, None)
        try:
            self._files.rm_file(self._object(voice_id))
        except FileNotFoundError:
            pass
        except Exception as error:  # the edge of a library
            _complain("delete", error)

    def _unpack(self, voice_id: str, packed: bytes) -> None:
        if len(packed) > MAX_VOICE_BYTES:
            raise ValueError("a voice that large is none of ours")
        place = self._place(voice_id)
        with self._scratch() as scratch:
            whole = Path(tempfile.mkdtemp(dir=scratch))
            with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
                archive.extractall(whole, filter="data")
            if place.exists():
                place.rename(scratch / "old")
            whole.chmod(0o755)
            whole.rename(place)


def _version(facts: dict[str, Any]) -> str:
    """What changes when the object does, as this kind of storage names it."""
    for name in ("ETag", "etag", "mtime", "LastModified", "created"):
        if facts.get(name) is not None:
            return f"{facts[name]}:{facts.get('size')}"
    return str(facts.get("size"))


def _complain(what: str, error: Exception) -> None:
    logger.warning("voices_%s_failed", what, extra={"fields": {"error": type(error).__name__}})

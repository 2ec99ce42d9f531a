"""The tiers of voices as codes: in the host's memory, and cold, on disk.

A voice's codes are some thousand times smaller than its KV, the same for every device and dtype,
and a prefill makes KV of them. Of KV there are two tiers more: hot, on the device, is
:mod:`.prefixes`, and warm, in the host's memory, :mod:`.warm`.

Owns what is kept, for how long, and the folder of the cold tier; knows nothing of who asks. A
stream holds its prefix's columns itself, so nothing here needs to be pinned for one. What is in
memory belongs to the voice thread. Of the cold tier the voice thread calls :meth:`ColdTier.find`
and the voice-encode thread :meth:`ColdTier.keep`; other processes may use the same folder.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
import zipfile
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import numpy as np

from .api import TierStats
from .prompt import PromptReference
from .runner import Int32Array

Prepared = tuple[PromptReference, ...]
"""A voice's transcripts and codes."""

_SUFFIX = ".npz"
_LEAVE = 0.9
"""Of the limit, what is left once room was made: a full folder is not listed at every write."""
_SURVEY_AFTER = 64
"""Writes after which a folder is listed again: other processes write there too."""
_ABANDONED_S = 3600.0


class CodesTier:
    """Prepared voices by the content they were made of; least recently used first out."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._used = 0
        self._entries: OrderedDict[bytes, Prepared] = OrderedDict()
        self._hits = 0
        self._misses = 0
        self._evictions = 0
        self._promotions = 0

    def find(self, key: bytes) -> Prepared | None:
        entry = self._entries.get(key)
        if entry is None:
            self._misses += 1
            return None
        self._hits += 1
        self._entries.move_to_end(key)
        return entry

    def keep(self, key: bytes, prepared: Prepared, *, promoted: bool = False) -> None:
        """``promoted``: it was read from the cold tier. One entry stays however large it is."""
        self._promotions += promoted
        if key in self._entries:
            return
        self._entries[key] = prepared
        self._used += _size(prepared)
        while self._used > self._limit and len(self._entries) > 1:
            _, gone = self._entries.popitem(last=False)
            self._used -= _size(gone)
            self._evictions += 1

    def stats(self) -> TierStats:
        return TierStats(
            entries=len(self._entries),
            bytes=self._used,
            limit_bytes=self._limit,
            hits=self._hits,
            misses=self._misses,
            evictions=self._evictions,
            promotions=self._promotions,
        )


def _size(prepared: Prepared) -> int:
    return sum(one.codes.nbytes + len(one.text.encode("utf-8", "replace")) for one in prepared)


class ColdTier:
    """Codes of recordings by the recordings' content, as files; least recently used first out.

    ``<root>/<sha256 of codec and recording>.npz``. A file comes by one rename and is checked when
    it is read; what is damaged counts as absent. ``fingerprint`` names the codec.
    """

    def __init__(self, root: Path, fingerprint: str, limit_bytes: int) -> None:
        self._root = root
        self._fingerprint = fingerprint
        self._limit = limit_bytes
        self._hits = 0
        self._misses = 0
        self._evictions = 0
        self._entries, self._used = 0, 0
        self._uncounted = 0
        self._survey()

    def find(self, recording: bytes) -> Int32Array | None:
        """Codes int32 [frames, codebooks] of a recording's bytes."""
        path = self._path(recording)
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
                codes = np.asarray(stored["codes"], np.int32)
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
            return None
        with suppress(OSError):
            os.utime(path)
        return codes

    def note(self, *, found: bool) -> None:
        """Count a voice that was looked for."""
        self._hits += found
        self._misses += not found

    def keep(self, recording: bytes, codes: Int32Array) -> None:
        """Raises ``OSError`` when the folder cannot be written."""
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=self._root, prefix=".new-")
        try:
            with open(handle, "wb") as file:
                cast(Any, np.savez_compressed)(file, codes=codes.astype(np.int16))
            size = os.stat(name).st_size
            os.rename(name, self._path(recording))
        except BaseException:
            with suppress(OSError):
                os.unlink(name)
            raise
        self._entries += 1
        self._used += size
        self._uncounted += 1
        if self._used > self._limit or self._uncounted >= _SURVEY_AFTER:
            self._survey()

    def stats(self) -> TierStats:
        return TierStats(
            entries=self._entries,
            bytes=self._used,
            limit_bytes=self._limit,
            hits=self._hits,
            misses=self._misses,
            evictions=self._evictions,
        )

    def _path(self, recording: bytes) -> Path:
        digest = hashlib.sha256(f"{self._fingerprint}\n".encode() + recording)
        return self._root / (digest.hexdigest() + _SUFFIX)

    def _survey(self) -> None:
        """Count what lies there, whoever put it there, and let go what is too much."""
        files = self._files()
        used = sum(size for _, size, _ in files)
        gone = 0
        if used > self._limit:
            while used > self._limit * _LEAVE and gone < len(files) - 1:
                _, size, path = files[gone]
                with suppress(OSError):
                    path.unlink()
                used -= size
                gone += 1
        self._evictions += gone
        self._entries, self._used, self._uncounted = len(files) - gone, used, 0

    def _files(self) -> list[tuple[float, int, Path]]:
        """Last use, bytes and path of every file, the longest unused first."""
        found: list[tuple[float, int, Path]] = []
        with suppress(OSError), os.scandir(self._root) as entries:
            for entry in entries:
                with suppress(OSError):  # another process let it go
                    about = entry.stat()
                    if entry.name.endswith(_SUFFIX):
                        found.append((about.st_mtime, about.st_size, Path(entry.path)))
                    elif time.time() - about.st_mtime > _ABANDONED_S:
                        os.unlink(entry.path)  # its writer was killed
        return sorted(found)

"""Quantised weights kept in a file beside the checkpoint, so that a second start quantises nothing.

Owns the file: its name, what it says it was made from, its checksums, and how it is replaced. Knows
nothing of formats: an entry is a few tensors under a name. A file that is stale, torn or altered
counts as none; a folder that cannot be written to is no error. Used once at start, by one thread.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

FORMAT = "1"
"""Counts up whenever the same weights would be quantised to other bytes."""
WORTH_KEEPING_BYTES = 256 << 20
"""Less than this is quantised again in no time."""
_END_BYTES = 1 << 20
_PATTERNS = ("config.json", "model*.safetensors", "model.safetensors.index.json", "model*.pth")


def source_key(model_dir: Path) -> str:
    """Names the checkpoint in ``model_dir`` by its files' names, sizes, times and both ends."""
    digest = hashlib.sha256()
    files = {path for pattern in _PATTERNS for path in model_dir.glob(pattern)}
    for path in sorted(files):
        known = path.stat()
        digest.update(f"{path.name} {known.st_size} {known.st_mtime_ns}\n".encode())
        with path.open("rb") as file:
            digest.update(file.read(_END_BYTES))
            file.seek(max(0, known.st_size - _END_BYTES))
            digest.update(file.read(_END_BYTES))
    return digest.hexdigest()


class WeightCache:
    """What an earlier start left, and what this one adds. Tensors are contiguous."""

    def __init__(
        self,
        model_dir: Path,
        dtype: str,
        device: torch.device,
        say: Callable[[str], None],
        *,
        worth_bytes: int = WORTH_KEEPING_BYTES,
    ) -> None:
        """Looks at once whether the file of ``dtype`` in ``model_dir`` may be used."""
        self.path = model_dir / f"shoal-{dtype}.safetensors"
        self._device = device
        self._say = say
        self._worth_bytes = worth_bytes
        self._key = source_key(model_dir)
        self._sums: dict[str, list[int]] = {}
        self._entries: dict[str, tuple[Tensor, ...]] = {}
        self._changed = False
        self._usable = self._open()

    def get(self, name: str) -> tuple[Tensor, ...] | None:
        """The tensors of ``name`` on the device as they were kept, or None."""
        if not self._usable or name not in self._sums:
            return None
        try:
            with safe_open(self.path, framework="pt", device=str(self._device)) as file:
                tensors = tuple(
                    file.get_tensor(f"{name}/{part}") for part in range(len(self._sums[name]))
                )
        except (SafetensorError, OSError):
            tensors = ()
        if [checksum(tensor) for tensor in tensors] != self._sums[name]:
            self.distrust(f"{name} is damaged")
            return None
        self._entries[name] = tensors
        return tensors

    def keep(self, name: str, tensors: Sequence[Tensor]) -> None:
        """Have ``tensors`` under ``name`` in the file that :meth:`save` writes."""
        self._entries[name] = tuple(tensors)
        self._changed = True

    def distrust(self, why: str) -> None:
        """Take nothing more from the file; :meth:`save` replaces it."""
        self._say(f"{self.path.name}: {why}; it is made anew")
        self._usable = False

    def save(self) -> bool:
        """Write the file if anything in it would change; True when it was written.

        A reader sees the old file or the new one. Where it cannot be written, says so.
        """
        if not self._changed or _bytes(self._entries.values()) < self._worth_bytes:
            return False
        tensors = {
            f"{name}/{part}": tensor
            for name, parts in self._entries.items()
            for part, tensor in enumerate(parts)
        }
        sums = {name: [checksum(t) for t in parts] for name, parts in self._entries.items()}
        about = {"format": FORMAT, "source": self._key, "sums": json.dumps(sums)}
        self._say(f"writing {self.path.name}")
        partial: str | None = None
        try:
            handle, partial = tempfile.mkstemp(prefix=f".{self.path.name}.", dir=self.path.parent)
            os.close(handle)
            save_file(tensors, partial, metadata=about)
            os.chmod(partial, 0o644)
            os.replace(partial, self.path)
        except (OSError, SafetensorError) as error:
            if partial is not None:
                with contextlib.suppress(OSError):
                    os.unlink(partial)
            self._say(f"{self.path.name} cannot be kept ({error}); the next start quantises again")
            return False
        return True

    def _open(self) -> bool:
        if not self.path.exists():
            return False
        try:
            with safe_open(self.path, framework="pt") as file:
                about = file.metadata() or {}
            sums = json.loads(about.get("sums", "{}"))
            self._sums = {str(name): [int(part) for part in parts] for name, parts in sums.items()}
        except (SafetensorError, OSError, ValueError, TypeError, AttributeError):
            self._say(f"{self.path.name} cannot be read; it is made anew")
            return False
        if about.get("format") != FORMAT or about.get("source") != self._key:
            self._say(f"{self.path.name} belongs to other weights; it is made anew")
            return False
        return True


def checksum(tensor: Tensor) -> int:
    """Of a contiguous tensor's bytes; sees altered, zeroed and exchanged rows."""
    rows = tensor.view(torch.uint8).view(tensor.shape[0], -1)
    if rows.shape[1] % 4 == 0:
        rows = rows.view(torch.int32)
    sums = rows.sum(1, dtype=torch.int64)
    return int((sums * torch.arange(1, len(sums) + 1, device=sums.device)).sum())


def _bytes(entries: Iterable[Iterable[Tensor]]) -> int:
    return sum(tensor.nbytes for parts in entries for tensor in parts)

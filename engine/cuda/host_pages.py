"""Pages of KV in pinned memory of the host, and the copies to and from the device's pool.

Owns the pinned memory, which is allocated once: to pin takes long, and stops other threads' calls
of the device meanwhile. Knows nothing of whose pages they are. The prefill thread copies, on a
stream of its own; decode's steps run beside.

A page of the pool lies in as many pieces as there are layers; one of the host's is a single piece.
So it goes through a page on the device: one kernel and one large copy a part, in stream order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from ..host_memory import host_memory_bytes
from .kv_pool import KvPool

SLAB_BYTES = 1 << 30
"""Memory is pinned in pieces of this size, and of smaller powers of two: others are rounded up to
one by the allocator."""
HOST_BYTES = 4 << 30
"""What is pinned at most where nothing is said: of S2 Pro, voices of 10 s by the fifty."""
_HOST_SHARE = 8
"""And of the host's memory at most one byte in so many."""


def usual_bytes(device_bytes: int) -> int:
    """What to pin beside pages of the device that take ``device_bytes``."""
    return min(HOST_BYTES, host_memory_bytes() // _HOST_SHARE, device_bytes)


def slab_sizes(limit_bytes: int, page_bytes: int) -> list[int]:
    """Pages of each piece, together in ``limit_bytes``."""
    slabs: list[int] = []
    size = SLAB_BYTES
    while size >= page_bytes:
        if size <= limit_bytes:
            slabs.append(size // page_bytes)
            limit_bytes -= size
        else:
            size //= 2
    return slabs


class HostPages:
    """Of at most ``limit_bytes``. Nothing is pinned before :meth:`allocate`."""

    def __init__(self, pool: KvPool, limit_bytes: int, device: torch.device) -> None:
        self._pool = pool
        # Flat: what a page has of each part.
        self._sizes = [part[:, 0].numel() * part.element_size() for part in pool.parts]
        self._slabs_planned = slab_sizes(limit_bytes, sum(self._sizes))
        self._pages: list[Tensor] = []
        self._staging = [torch.empty_like(part[:, 0]) for part in pool.parts]
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            lowest, _ = torch.cuda.Stream.priority_range()
            self._stream = torch.cuda.Stream(device, priority=lowest)
            self._done = torch.cuda.Event(blocking=True)

    @property
    def planned(self) -> int:
        """Pages that there will be."""
        return sum(self._slabs_planned)

    @property
    def count(self) -> int:
        """Pages that there are."""
        return len(self._pages)

    def allocate(
        self, say: Callable[[str], None], take: Callable[[int, bool], Tensor] | None = None
    ) -> None:
        """Pin the memory, or as much of it as can be had. ``take`` gives so many bytes, pinned or
        not, or raises RuntimeError; torch does by default."""
        if self._pages or not self._slabs_planned:
            return
        each = sum(self._sizes)
        say(f"pinning {self.planned * each / (1 << 30):.1f} GiB of memory for voices")
        for pages in self._slabs_planned:
            try:
                slab = (take or _taken)(pages * each, self._stream is not None)
            except RuntimeError as error:
                say(f"only {self.count * each / (1 << 30):.1f} GiB could be pinned: {error}")
                return
            self._pages.extend(slab.view(pages, each))

    @torch.inference_mode()
    def save(self, pages: Sequence[int], host_pages: Sequence[int]) -> None:
        """Returns when ``pages`` of the pool are in ``host_pages``."""
        with self._copying():
            for page, host_page in zip(pages, host_pages, strict=True):
                for part, staged, kept in self._parts(host_page):
                    staged.copy_(part[:, page])
                    kept.copy_(staged, non_blocking=True)
            self._wait()

    @torch.inference_mode()
    def load(self, host_pages: Sequence[int], pages: Sequence[int]) -> None:
        """Returns when ``host_pages`` are in ``pages`` of the pool."""
        with self._copying():
            for host_page, page in zip(host_pages, pages, strict=True):
                for part, staged, kept in self._parts(host_page):
                    staged.copy_(kept, non_blocking=True)
                    part[:, page].copy_(staged)
            self._wait()

    def _parts(self, host_page: int) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Of every part: the pool's, the staging page's and the host page's."""
        kept = self._pages[host_page].split(self._sizes)
        return [
            (part, staged, piece.view(part.dtype).view(staged.shape))
            for part, staged, piece in zip(self._pool.parts, self._staging, kept, strict=True)
        ]

    def _copying(self) -> AbstractContextManager[object]:
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    def _wait(self) -> None:
        if self._stream is not None:
            self._done.record()
            self._done.synchronize()


def _taken(size: int, pinned: bool) -> Tensor:
    return torch.empty(size, dtype=torch.uint8, pin_memory=pinned)

"""How much memory this process may use: the machine's, or less where a control group bounds it."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)


def host_memory_bytes(limits: tuple[Path, ...] = LIMITS) -> int:
    """The least of the machine's memory and what the files ``limits`` say."""
    sizes = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in limits:
        with suppress(OSError, ValueError):  # no such group, or "max"
            sizes.append(int(path.read_text()))
    return min(sizes)

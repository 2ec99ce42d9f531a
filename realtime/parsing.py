"""``Parsing``: large messages are parsed beside the event loop, one after another.

Everybody's audio waits while the loop works, so what takes more than a moment is done on another
thread; in small pieces, since threads take turns. One at a time: the second would take its turns
from the loop too. Belongs to the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

LARGE_BYTES: Final = 256 << 10
"""What is no larger is parsed on the loop: to hand it over would take longer."""

Parsed = TypeVar("Parsed")


class Parsing:
    """One for all of a server's sockets and requests."""

    def __init__(self) -> None:
        self._lane = asyncio.Lock()

    async def run(self, size: int, parse: Callable[[], Parsed]) -> Parsed:
        """What ``parse``, which shares nothing with the loop, makes of ``size`` bytes or
        characters. Raises what it raises."""
        if size <= LARGE_BYTES:
            return parse()
        async with self._lane:
            return await asyncio.to_thread(parse)

"""``VoiceNames``: which voice answers to the name that a client gives.

A configured alias comes first, then the voices that the server has, then the ids that clients name
unasked, then the fallback. Which voices there are is listed again and again, for others may add
some; what this server itself adds or removes counts at once. On the event loop; the listing runs
on a thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from typing import Final

from .config import PUBLIC_DEFAULT_VOICES

POLL_S: Final = 10.0

logger = logging.getLogger("shoal.voice_names")


class VoiceNames:
    """See the module. ``list_ids`` may read the disk, and may fail. ``fallback`` answers to every
    unknown name; "" is the model's default voice, ``None`` is no fallback."""

    def __init__(
        self,
        list_ids: Callable[[], Collection[str]],
        aliases: Mapping[str, str],
        fallback: str | None,
        poll_s: float = POLL_S,
    ) -> None:
        self._list_ids = list_ids
        self._aliases = aliases
        self._fallback = fallback
        self._poll_s = poll_s
        self._changes: dict[str, bool] = {}  # since the listing that runs began
        self._failing = False
        self.known: frozenset[str] = frozenset()
        self.listed = asyncio.Event()
        """The voices were listed, or could not be, once."""

    async def watch(self) -> None:
        """Keep up with what others add and remove, until it is cancelled."""
        while True:
            await self.refresh()
            self.listed.set()
            await asyncio.sleep(self._poll_s)

    async def refresh(self) -> None:
        """List the voices anew. Where that fails, those that were known are."""
        self._changes.clear()
        try:
            listed = set(await asyncio.to_thread(self._list_ids))
        except Exception:  # the edge of the store
            if not self._failing:
                logger.exception("voices_not_listed")
            self._failing = True
            return
        self._failing = False
        for voice_id, there in self._changes.items():  # what it may have come too early for
            (listed.add if there else listed.discard)(voice_id)
        self.known = frozenset(listed)

    def added(self, voice_id: str) -> None:
        """This server has it from now on."""
        self._changes[voice_id] = True
        self.known |= {voice_id}

    def removed(self, voice_id: str) -> None:
        self._changes[voice_id] = False
        self.known -= {voice_id}

    def has(self, name: str) -> bool:
        """Whether something of this server's own is called so."""
        return name in self._aliases or name in self.known or name in PUBLIC_DEFAULT_VOICES

    def preset(self) -> str | None:
        """The name to take for a voice of another vendor's that is not here."""
        return self._fallback or None

    def voice_of(self, reference_id: str | None) -> str | None:
        """The voice that answers to ``reference_id``; ``None`` is the model's default."""
        if reference_id is None:
            return None
        if (voice := self._aliases.get(reference_id)) is None:
            voice = reference_id
            if reference_id in PUBLIC_DEFAULT_VOICES and reference_id not in self.known:
                voice = PUBLIC_DEFAULT_VOICES[reference_id]
        if voice and self._fallback is not None and voice not in self.known:
            voice = self._fallback
        return voice or None

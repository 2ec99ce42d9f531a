"""Where a replica's voices come from: a directory that all replicas see, or object storage.

Knows no Ray. Any thread.
"""

from __future__ import annotations

from pathlib import Path

from shoal.engine.voices import VoiceStore

from .settings import ReplicaSettings


def voice_store(settings: ReplicaSettings) -> VoiceStore | None:
    """The store of ``settings``; ``None`` when it names none."""
    where = settings.voices
    if where is None:
        return None
    return VoiceStore(Path(where))

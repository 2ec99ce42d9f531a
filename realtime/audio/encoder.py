"""``AudioEncoder``: what every format's encoder does. Types only."""

from __future__ import annotations

from typing import Protocol


class FormatUnavailable(Exception):
    """This machine or version cannot encode the format; the message says what would help."""


class AudioEncoder(Protocol):
    """One stream of one format. Belongs to one turn, used by one thread at a time."""

    content_type: str
    sample_rate: int
    """The rate that a player will see."""

    @property
    def encoded_s(self) -> float:
        """Seconds of the sound given so far that a player hears from what was handed out: behind
        the seconds given by what the encoder holds back, and the same after ``finish``."""
        ...

    def encode(self, pcm: bytes) -> bytes:
        """Mono s16le at the model's rate in, whole samples; what is ready of the stream out,
        maybe nothing. Raises ValueError for half a sample."""
        ...

    def finish(self) -> bytes:
        """The rest of the stream. Called once, last."""
        ...

"""What a turn of the decode thread sends, and how columns to prefill are cut for it. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from .api import Event
from .jobs import CodecMessage, ToPrefill, ToVoice
from .memory import Memory
from .runner import Int32Array, PrefillChunk


@dataclass(slots=True)
class Outgoing:
    """What a turn of the decode thread sends, in order per addressee."""

    prefill: list[ToPrefill] = field(default_factory=list["ToPrefill"])
    voice: list[ToVoice] = field(default_factory=list["ToVoice"])
    codec: list[CodecMessage] = field(default_factory=list["CodecMessage"])
    events: list[Event] = field(default_factory=list["Event"])


def chunked(
    columns: Int32Array,
    at: int,
    pages: tuple[int, ...],
    memory: Memory,
    size: int,
    copy: tuple[int, int] | None = None,
) -> tuple[PrefillChunk, ...]:
    """``columns`` at position ``at`` onwards, in chunks of at most ``size``."""
    chunks: list[PrefillChunk] = []
    for begin in range(0, len(columns), size):
        part = columns[begin : begin + size]
        end = at + begin + len(part)
        chunks.append(
            PrefillChunk(
                part,
                at + begin,
                pages[: memory.pages_for(end)],
                copy if not begin else None,
            )
        )
    return tuple(chunks)

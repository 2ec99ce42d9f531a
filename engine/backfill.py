"""Streams of batch priority: when they may run, who of them makes room, how they come back.

Pure functions on streams. One that is parked gives everything back: its slot, its pages. To go on
it says again, unheard, what its context was made of, and then its utterance from the beginning;
equal draws give equal codes, and the codec thread leaves out what was delivered before. One thread:
decode's.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from .config import Limits
from .jobs import Utterance
from .streams import Past, Phase, Stream

_PARKABLE = (Phase.WAITING, Phase.PREFILLING, Phase.JOINING, Phase.RUNNING)


def spare(leads: Sequence[float | None], starting: bool, limits: Limits) -> bool:
    """Whether a step may have rows of batch priority: no live stream is short of sound.

    ``leads`` and ``starting`` as in :func:`.pacing.choose`.
    """
    return not starting and all(lead is not None and lead > limits.batch_lead_s for lead in leads)


def reserved(slots: int, limits: Limits) -> int:
    """Slots that are left free for live turns to begin in; one machine of one slot has none."""
    return min(slots - 1, math.ceil(slots * limits.batch_reserve))


def victims(seated: Iterable[Stream], count: int) -> list[Stream]:
    """At most ``count`` streams to park: those with the least to say again."""
    able = [stream for stream in seated if stream.backfill and stream.phase in _PARKABLE]
    able.sort(key=_to_redo)
    return able[: max(0, count)]


def _to_redo(stream: Stream) -> int:
    return stream.draws - stream.past.draws if stream.past is not None else 0


def began(stream: Stream, utterance: Utterance, *, afresh: bool) -> None:
    """An utterance was laid out; ``afresh``: in a new context. Before the stream's state is its."""
    if stream.backfill:
        if afresh or stream.past is None:
            stream.past = Past(stream.spoken, stream.draws)
        stream.past.utterances.append(utterance)


def rewind(stream: Stream) -> bool:
    """Put back what has to be said again; True when the codec has begun the current utterance."""
    past = stream.past
    if past is None:
        return False
    again = past.utterances
    sounding = stream.phase is Phase.RUNNING and not stream.silent
    waiting = stream.phase is Phase.WAITING
    stream.silent += len(again) - (not waiting)
    stream.resuming |= sounding
    stream.utterances.extendleft(reversed(again))
    stream.draws, stream.spoken, stream.past = past.draws, past.spoken, None
    return sounding

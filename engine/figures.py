"""``EngineStats`` out of what the decode thread owns. Pure; one thread: decode's."""

from __future__ import annotations

from collections.abc import Iterable

from .api import EngineStats, TierStats
from .batch import Batch
from .pages import PagePool
from .streams import Phase, Stream


def engine_stats(
    batch: Batch,
    pool: PagePool,
    hot: TierStats,
    streams_open: int,
    awake: Iterable[Stream],
    now: float,
    last_step_s: float,
) -> EngineStats:
    """A snapshot. Waits and leads are the live streams': nobody hears the others."""
    waiting = [s for s in awake if s.waiting_since_s is not None and s.slot is None]
    waits = [now - s.waiting_since_s for s in waiting if not s.backfill and s.waiting_since_s]
    seated = batch.seated()
    leads = [
        lead
        for stream in seated
        if stream.phase is Phase.RUNNING and not stream.backfill
        if (lead := stream.lead_s(now, batch.frame_s)) is not None
    ]
    return EngineStats(
        slots_busy=batch.busy,
        streams_open=streams_open,
        streams_waiting=len(waits),
        oldest_wait_s=max(waits, default=0.0),
        pages_used=pool.total - pool.free,
        pages_total=pool.total,
        hot=hot,
        steps=batch.steps,
        frames=batch.frames,
        cut_off=batch.cut_off,
        last_step_s=last_step_s,
        min_lead_s=min(leads, default=0.0),
        batch_slots=sum(stream.backfill for stream in seated),
        batch_waiting=sum(stream.backfill for stream in waiting),
        parked=batch.parked,
    )

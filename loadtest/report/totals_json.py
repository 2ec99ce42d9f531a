"""Totals as the result file holds them. Pure."""

from __future__ import annotations

from typing import Any

from shoal.loadtest.measure.metrics import Fault
from shoal.loadtest.measure.totals import Totals


def as_json(totals: Totals) -> dict[str, Any]:
    """Plain JSON values; seconds unless the name says otherwise."""
    verdict = totals.verdict()
    return {
        "window_s": totals.window_s,
        "turns": totals.turns,
        "cold_turns": totals.cold_turns,
        "good_turns": totals.good,
        "early_turns": totals.early,
        "goodput": totals.goodput,
        "good_turns_per_s": totals.good_turns_per_s,
        "slo_kept": verdict.kept,
        "slo_reasons": list(verdict.reasons),
        "failed": totals.failed,
        "refused": totals.refused,
        "frames_per_s": totals.frames_per_s,
        "audio_s_per_s": totals.audio_s_per_s,
        "audio_s": totals.audio_s,
        "stale_audio_s": totals.stale_audio_s,
        "endings": dict(totals.endings),
        "cold_endings": dict(totals.cold_endings),
        "faults": {fault.value: totals.faults[fault.value] for fault in Fault},
        "errors": dict(totals.errors),
        "stalled_turns": dict(totals.stalled),
        "stalls": dict(totals.stalls),
        "total_stall_s": totals.total_stall_s,
        "worst_stall_s": totals.worst_stall_s,
        "min_lead_s": totals.min_lead_s,
        "percentiles": {
            name: {"count": histogram.count, "mean": histogram.mean, **totals.percentiles(name)}
            for name, histogram in totals.histograms.items()
            if histogram.count
        },
        "stages": {
            name: {
                "count": histogram.count,
                "mean": histogram.mean,
                **dict(zip(("p50", "p95"), histogram.percentiles((50, 95)), strict=True)),
            }
            for name, histogram in totals.stages.items()
        },
        "histograms": {
            name: histogram.encode().decode("ascii")
            for name, histogram in totals.histograms.items()
            if histogram.count
        },
    }
